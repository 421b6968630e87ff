"""`python -m runlane.retention`."""

from runlane.hosting.service import main
from runlane.retention.app import NAME, serve
from runlane.retention.settings import RetentionSettings

if __name__ == "__main__":
    main(NAME, lambda connections: serve(RetentionSettings(), connections))
