"""Names of message headers. No logic."""

COMMIT_ID = "Nats-Msg-Id"
EXPECTED_LAST_SEQUENCE = "Nats-Expected-Last-Sequence"
EXPECTED_LAST_SUBJECT_SEQUENCE = "Nats-Expected-Last-Subject-Sequence"

# What JetStream adds to a direct-get answer or a republished message.
NATS_SEQUENCE = "Nats-Sequence"
NATS_LAST_SEQUENCE = "Nats-Last-Sequence"
NATS_SUBJECT = "Nats-Subject"
NATS_TIME_STAMP = "Nats-Time-Stamp"

FIRST_SEQUENCE = "Rl-First-Sequence"
LAST_SEQUENCE = "Rl-Last-Sequence"
LOG_POSITION = "Rl-Log-Position"  # `<log epoch>:<stream sequence in the LOG stream>`
RULES = "Rl-Rules"  # version of the redaction rules that made this view message

TRACEPARENT = "traceparent"

CE_ID = "ce-id"
CE_TYPE = "ce-type"
CE_SOURCE = "ce-source"
CE_TIME = "ce-time"
CE_SPECVERSION = "ce-specversion"
