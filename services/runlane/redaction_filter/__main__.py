"""`python -m runlane.redaction_filter`."""

from runlane.hosting.service import main
from runlane.redaction_filter.app import NAME, serve
from runlane.redaction_filter.settings import RedactionFilterSettings

if __name__ == "__main__":
    main(NAME, lambda connections: serve(RedactionFilterSettings(), connections))
