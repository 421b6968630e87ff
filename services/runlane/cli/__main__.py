"""`python -m runlane.cli`."""

from runlane.cli.main import main

main()
