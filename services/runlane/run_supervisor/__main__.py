"""`python -m runlane.run_supervisor`."""

from runlane.hosting.service import main
from runlane.run_supervisor.app import NAME, serve
from runlane.run_supervisor.settings import RunSupervisorSettings

if __name__ == "__main__":
    main(NAME, lambda connections: serve(RunSupervisorSettings(), connections))
