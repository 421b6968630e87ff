"""`python -m runlane.projector`."""

from runlane.hosting.service import main
from runlane.projector.app import NAME, serve
from runlane.projector.settings import ProjectorSettings

if __name__ == "__main__":
    main(NAME, lambda connections: serve(ProjectorSettings(), connections))
