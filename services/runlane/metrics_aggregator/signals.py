"""A signal as this service reads it: the envelope, and of all payloads the fields that are counted."""

from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Raw, Struct

from runlane_contracts.envelope import Actor

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_CLOCK_LAG_S = 300
"""A producer's clock is believed if it says a moment so long before the broker's, or less."""


class Signal(Struct, frozen=True, gc=False):
    """A fact without content."""

    type: str
    tenant_id: str
    run_id: str
    sequence: int
    occurred_at: datetime
    actor: Actor
    payload: Raw = Raw(b"{}")
    lease_epoch: int = 0
    recorded_at: datetime | None = None
    session_id: str | None = None
    agent_id: str | None = None
    turn_id: str | None = None
    task_id: str | None = None
    parent_id: str | None = None
    traceparent: str | None = None
    log_seq: int = 0
    """Where its commit stands in the log; no part of the body. 0: nobody asked."""

    @property
    def recorded_ns(self) -> int:
        """When the broker stored it: one clock for all of them."""
        return _ns(self.recorded_at or self.occurred_at)

    @property
    def at_ns(self) -> int:
        """When it happened: as the producer says, unless its clock is far off.

        Finer than `recorded_ns`, which is the same for all facts of a commit.
        """
        recorded_ns, occurred_ns = self.recorded_ns, _ns(self.occurred_at)
        return occurred_ns if 0 <= recorded_ns - occurred_ns <= MAX_CLOCK_LAG_S * 1_000_000_000 else recorded_ns


class Fault(Struct, frozen=True, gc=False):
    """Of an error, what is no content."""

    code: str = ""


class Details(Struct, frozen=True, gc=False):
    """The fields of all payloads that are counted, under the names they have there."""

    agent: str = ""
    pool: str = "default"
    dispatch: str = "pool"
    parent_run_id: str | None = None
    lease_epoch: int = 0
    attempt: int = 1
    worker_id: str = ""
    cause: str = ""
    error: Fault | None = None
    usage: Any = None
    turn_id: str = ""
    message_id: str = ""
    role: str = ""
    model: str | None = None
    provider: str | None = None
    reasoning_id: str = ""
    tool_call_id: str | None = None
    name: str = ""
    retry_of: str | None = None
    side_effect: str = "none"
    outcome: str = ""
    approval_id: str = ""
    decision: str = ""
    decided_by: str = ""
    input_id: str = ""
    task_id: str = ""
    by: str = ""


NO_DETAILS = Details()

decode_signal = msgspec.json.Decoder(Signal).decode
_decode_details = msgspec.json.Decoder(Details).decode


def details_of(signal: Signal) -> Details:
    """The payload; of one that does not fit, nothing."""
    try:
        return _decode_details(signal.payload)
    except msgspec.MsgspecError:
        return NO_DETAILS


def _ns(at: datetime) -> int:
    since = at - _EPOCH
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1000
