"""`python -m runlane.audit_sink`."""

from runlane.audit_sink.app import NAME, serve
from runlane.audit_sink.settings import AuditSinkSettings
from runlane.hosting.service import main

if __name__ == "__main__":
    main(NAME, lambda connections: serve(AuditSinkSettings(), connections))
