"""One attempt to hand over a message, and what may be answered to it."""

from msgspec import Struct
from nats.aio.msg import Msg

from runlane_contracts.headers import TRACEPARENT
from runlane_contracts.tracing import parse_traceparent

ACK, IN_PROGRESS, TERMINATE = b"+ACK", b"+WPI", b"+TERM"

NO_HEADERS: dict[str, str] = {}


class Delivery(Struct, frozen=True):
    """A message as its handler sees it. `pending`: how many more the consumer had then."""

    subject: str
    data: bytes
    headers: dict[str, str]
    stream: str
    stream_seq: int
    consumer_seq: int
    attempt: int
    """1 the first time."""
    time_ns: int
    """When the stream stored it, since 1970."""
    pending: int
    reply: str
    """Where the verdict goes. For the consumer loop only."""


def trace_of_delivery(delivery: Delivery) -> dict[str, str]:
    """For a line about a delivery: the trace that it brought, if any."""
    found = parse_traceparent(delivery.headers.get(TRACEPARENT))
    return {} if found is None else {"trace_id": found.trace_id}


def delivery_of(message: Msg) -> Delivery:
    """The delivery in a message of a pull consumer.

    Raises:
        ValueError: its reply is no acknowledgement subject.
    """
    # $JS.ACK.<stream>.<consumer>.<attempt>.<sseq>.<cseq>.<ns>.<pending>, or with <domain>.<hash> before <stream>.
    tokens = message.reply.split(".")
    if len(tokens) >= 11:
        tokens = tokens[2:]
    if len(tokens) < 9:
        raise ValueError(f"no acknowledgement subject: {message.reply!r}")
    return Delivery(
        message.subject,
        message.data,
        message.headers or NO_HEADERS,
        tokens[2],
        int(tokens[5]),
        int(tokens[6]),
        int(tokens[4]),
        int(tokens[7]),
        int(tokens[8]),
        message.reply,
    )


def negative(delay_s: float) -> bytes:
    """Give it again after a while. A bare one would come back at once, ignoring any server-side back-off."""
    return b'-NAK {"delay": %d}' % max(1, round(delay_s * 1_000_000_000))
