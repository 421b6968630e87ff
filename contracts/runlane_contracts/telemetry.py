"""Names of metrics, spans, attributes and log events. What is not here is not emitted.

Labels are bounded: service, stream, durable, outcome; never a run, an item or a text. No signal has a payload.
"""

from enum import StrEnum


class LogEvent(StrEnum):
    """What a log line is about: its `event` field."""

    SERVICE_STARTED = "service.started"
    SERVICE_DRAINING = "service.draining"
    SERVICE_STOPPED = "service.stopped"
    SERVICE_FAILED = "service.failed"
    HTTP_LISTENING = "http.listening"
    HTTP_FAILED = "http.failed"
    BROKER_ENDED = "broker.ended"
    BROKER_DISCONNECTED = "broker.disconnected"
    BROKER_RECONNECTED = "broker.reconnected"
    BROKER_ERROR = "broker.error"
    PROVISIONED = "provision.changed"
    CONSUMER_RECREATED = "consumer.recreated"
    CONSUMER_STANDBY = "consumer.standby"
    CONSUMER_ACTIVE = "consumer.active"
    DELIVERY_RETRIED = "delivery.retried"
    DELIVERY_BURIED = "delivery.buried"
    PREVIEWS_DROPPED = "previews.dropped"
    AUDIT_FULL = "audit.full"
    AUDIT_RESUMED = "audit.resumed"
    REFUSALS_DROPPED = "refusals.dropped"
    ACCESS_CHANGED = "access.changed"
    ACCESS_UNREADABLE = "access.unreadable"
    VIEW_HOLE = "view.hole"
    VIEW_BROKEN = "view.broken"
    VIEW_UNREACHABLE = "view.unreachable"


class Metric(StrEnum):
    """Instruments. `_total` counts, `_seconds` and `_bytes` measure."""

    DELIVERIES = "runlane_deliveries_total"
    DELIVERY_DURATION = "runlane_delivery_duration_seconds"
    CONSUMER_LAG = "runlane_consumer_lag_messages"
    CONSUMER_ACTIVE = "runlane_consumer_active"
    COMMITS = "runlane_commits_total"
    COMMIT_DURATION = "runlane_commit_duration_seconds"
    FACTS = "runlane_facts_total"
    PREVIEWS = "runlane_previews_total"
    PREVIEWS_DROPPED = "runlane_previews_dropped_total"
    PREVIEWS_MERGED = "runlane_previews_merged_total"
    HTTP_REQUESTS = "runlane_http_requests_total"
    HTTP_DURATION = "runlane_http_request_duration_seconds"
    WATCHERS = "runlane_watchers"
    WATCHES = "runlane_watches_total"
    WATCH_OVERFLOWS = "runlane_watch_overflows_total"
    WATCHED_RUNS = "runlane_watched_runs"
    VIEW_REPAIRS = "runlane_view_repairs_total"
    HISTORY_PAGES = "runlane_history_pages_total"
    AUDIT_RECORDS = "runlane_audit_records_total"
    AUDIT_CHECKPOINTS = "runlane_audit_checkpoints_total"
    AUDIT_REFUSALS = "runlane_audit_refusals_total"
    AUDIT_REFUSALS_DROPPED = "runlane_audit_refusals_dropped_total"
    COMMANDS = "runlane_commands_total"
    LEASES = "runlane_leases"
    MOMENTS = "runlane_moments"
    LOOKS = "runlane_moment_looks_total"
    RECOVERIES = "runlane_recoveries_total"
    STARTS_REFUSED = "runlane_starts_refused_total"
    READY = "runlane_ready"
    UP = "runlane_up_info"


class Attribute(StrEnum):
    """Labels of metrics and attributes of spans."""

    SERVICE = "service"
    STREAM = "stream"
    DURABLE = "durable"
    OUTCOME = "outcome"
    ACTION = "action"
    VERSION = "version"
    ROUTE = "route"
    METHOD = "method"
    STATUS = "status"
    TENANT_ID = "runlane.tenant_id"
    RUN_ID = "runlane.run_id"
    SEQUENCE = "runlane.sequence"


class Span(StrEnum):
    """Names of spans."""

    COMMIT = "runlane.commit"
    DELIVERY = "runlane.delivery"
    COMMAND = "runlane.command"
    HTTP = "runlane.http"


SCOPE = "runlane"
"""The instrumentation scope of all of them."""
