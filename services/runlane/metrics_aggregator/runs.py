"""Unfinished runs, and what a signal changes about them. Pure: signals in, happenings out.

A happening is what metrics count and spans show: a run began, was taken by an owner, an item ended, a run ended.
"""

from msgspec import Struct

from runlane.metrics_aggregator.usage import Usage

MAX_ITEMS = 2_000
"""Open items of one run; beyond it the oldest is forgotten."""
MAX_EVENTS = 64


class OpenItem(Struct, array_like=True, gc=False):
    """Something in a run that began and has not ended. Times in nanoseconds since 1970."""

    kind: str
    id: str
    name: str
    started_ns: int
    recorded_ns: int
    sequence: int
    lease_epoch: int
    parent: str
    """The key of the span it hangs under."""
    attempt: int = 1
    retry_of: str = ""
    side_effect: str = ""
    traceparent: str = ""
    """The context its producer stated."""
    working_ns: int = 0
    """Of a call: since when it is executed, where that is known; before, it waits for an approval or for its turn."""
    model: str = ""
    """Of a message: the model that was asked."""
    provider: str = ""
    log_seq: int = 0
    """Where the fact that began it stands in the log."""

    @property
    def key(self) -> str:
        """Names its span. A call that is asked for again under its id is another one."""
        return f"{self.kind}:{self.id}:{self.sequence}"


class Tenure(Struct, array_like=True, gc=False):
    """The time that one owner drives a run."""

    lease_epoch: int
    attempt: int
    worker_id: str
    started_ns: int

    @property
    def key(self) -> str:
        """Names its span."""
        return f"attempt:{self.lease_epoch}"


class OpenRun(Struct, array_like=True):
    """A run that is not over."""

    tenant_id: str
    run_id: str
    agent: str = ""
    pool: str = ""
    session_id: str = ""
    trace_id: str = ""
    parent_span_id: str = ""
    """Of whoever asked for it; empty: it is the root of its trace."""
    sampled: bool = True
    created_ns: int = 0
    sequence: int = 0
    status: str = "created"
    status_before_lost: str = "running"
    waits_since_ns: int = 0
    """For an owner; 0: it does not."""
    is_pooled: bool = False
    """Workers of a pool are asked; else its producer brings its own."""
    tenure: Tenure | None = None
    items: dict[str, OpenItem] = {}
    last_ns: int = 0
    """When the last fact about the agent's own work happened."""
    usage: Usage = {}
    events: list[tuple[int, str]] = []
    parent_run_id: str = ""
    log_seq: int = 0
    """Where `run.created` stands in the log; 0: it is not known."""

    @property
    def key(self) -> str:
        """Its place among the runs."""
        return f"{self.tenant_id}/{self.run_id}"


class RunBegan(Struct, frozen=True):
    run: OpenRun


class RunTaken(Struct, frozen=True):
    """An owner took it. `waited_ns`: how long it had waited for one; None: it did not."""

    run: OpenRun
    waited_ns: int | None
    attempt: int


class LeaseLost(Struct, frozen=True):
    run: OpenRun
    cause: str


class TenureEnded(Struct, frozen=True):
    run: OpenRun
    tenure: Tenure
    ended_ns: int
    cause: str


class ItemBegan(Struct, frozen=True):
    run: OpenRun
    item: OpenItem


class ItemEnded(Struct, frozen=True):
    """`lease_epoch`: under which the fact that ended it was written; 0: by a service."""

    run: OpenRun
    item: OpenItem
    ended_ns: int
    recorded_ns: int
    outcome: str
    lease_epoch: int
    by: str = ""
    error: str = ""
    traceparent: str = ""
    usage: Usage = {}
    model: str = ""
    """Of a message: the model that answered."""
    provider: str = ""
    log_seq: int = 0
    sequence: int = 0
    """Of the fact that ended it."""


class Used(Struct, frozen=True):
    """Tokens and dollars that were not counted before."""

    run: OpenRun
    usage: Usage


class RunEnded(Struct, frozen=True):
    run: OpenRun
    status: str
    ended_ns: int
    recorded_ns: int
    error: str = ""
    log_seq: int = 0
    """Where the fact that ended it stands in the log."""


Happening = RunBegan | RunTaken | LeaseLost | TenureEnded | ItemBegan | ItemEnded | Used | RunEnded
