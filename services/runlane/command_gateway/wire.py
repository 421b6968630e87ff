"""Bodies in and out, as `PROTOCOL.md` names them. Fields nobody knows are ignored, but where a run is started."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, Struct, field

from runlane_contracts.commands import IdempotencyKey, LedgerEntry, LedgerStatus, Rejection
from runlane_contracts.events import Limits
from runlane_contracts.ids import AgentName, CommandId, PoolName, RunId, SessionId, TenantId, Timestamp, WorkerId

MAX_EVENTS = 1_000
MAX_PREVIEWS = 1_000

TtlS = Annotated[float, Meta(ge=0.5, le=3600)]
Epoch = Annotated[int, Meta(ge=0)]


class StartBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/runs`. A field that is misspelt would start another run than was meant."""

    agent: AgentName
    input: Any = None
    run_id: RunId | None = None
    session_id: SessionId | None = None
    pool: PoolName = "default"
    dispatch: Literal["pool", "external"] = "pool"
    deadline_at: Timestamp | None = None
    limits: Limits | None = None
    parent_run_id: RunId | None = None
    idempotency_key: IdempotencyKey | None = None


class ReExecuteBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/runs/{run_id}/re-execute`. What is not said is as it was in that run, but for the deadline."""

    from_: Literal["input", "checkpoint"] = field(default="input", name="from")
    allow_unsafe: bool = False
    run_id: RunId | None = None
    session_id: SessionId | None = None
    pool: PoolName | None = None
    dispatch: Literal["pool", "external"] | None = None
    deadline_at: Timestamp | None = None
    limits: Limits | None = None
    idempotency_key: IdempotencyKey | None = None


class Started(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """201 with `sequence` and `cursor`; 202 without."""

    run_id: RunId
    command_id: CommandId
    status: str
    sequence: int | None = None
    cursor: str | None = None
    parent_run_id: RunId | None = None
    """Which run it executes again."""


class CommandBody(Struct, frozen=True, kw_only=True):
    """`POST /v1/runs/{run_id}/commands`."""

    type: str
    payload: Raw = Raw(b"{}")
    idempotency_key: IdempotencyKey | None = None
    meta: dict[str, Any] | None = None
    run_id: str | None = None
    """Need not be said again; what is said has to be the path's."""


class CommandView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A ledger entry as clients see it. `applied_through`: the cursor that reads past what the command did."""

    command_id: CommandId
    idempotency_key: str
    type: str
    tenant_id: TenantId
    run_id: RunId
    status: LedgerStatus
    accepted_at: Timestamp
    settled_at: Timestamp | None = None
    applied_sequence: int | None = None
    applied_through: str | None = None
    rejection: Rejection | None = None


def command_view(entry: LedgerEntry, applied_through: str | None) -> CommandView:
    """The entry with its cursor."""
    return CommandView(
        command_id=entry.command_id,
        idempotency_key=entry.idempotency_key,
        type=entry.type,
        tenant_id=entry.tenant_id,
        run_id=entry.run_id,
        status=entry.status,
        accepted_at=entry.accepted_at,
        settled_at=entry.settled_at,
        applied_sequence=entry.applied_sequence,
        applied_through=applied_through,
        rejection=entry.rejection,
    )


class TakeBody(Struct, frozen=True, kw_only=True):
    """`POST …/lease`."""

    worker_id: WorkerId
    ttl_s: TtlS = 30.0


class HoldBody(Struct, frozen=True, kw_only=True):
    """`PUT|DELETE …/lease`."""

    worker_id: WorkerId
    lease_epoch: Epoch


class LeaseView(Struct, frozen=True, kw_only=True):
    """A lease that is held."""

    lease_epoch: int
    expires_at: Timestamp


class Released(Struct, frozen=True, kw_only=True):
    """A lease that was given back."""

    lease_epoch: int


class AppendBody(Struct, frozen=True, kw_only=True):
    """`POST …/events`. Each event is decoded on its own, so that a fault names its index."""

    lease_epoch: Epoch
    events: list[Raw]
    expected_sequence: Annotated[int, Meta(ge=0)] | None = None


class Placed(Struct, frozen=True):
    """Where an event came to stand."""

    event_id: str
    sequence: int


class Appended(Struct, frozen=True, kw_only=True):
    """The answer to an append, in the order of the request."""

    events: list[Placed]


class PreviewsBody(Struct, frozen=True, kw_only=True):
    """`POST …/previews`."""

    lease_epoch: Epoch
    previews: list[Raw]


class PreviewsTaken(Struct, frozen=True, kw_only=True):
    """How many fragments were taken. They may still be lost on their way, and that is counted."""

    accepted: int


class ContentTaken(Struct, frozen=True, kw_only=True):
    """Where content lies: what a fact states as its `content_ref`. `ref` is the last part of `uri`."""

    uri: str
    ref: str
    sha256: str
    size: int
    media_type: str


class ClaimBody(Struct, frozen=True, kw_only=True):
    """`POST /v1/pools/{pool}/claim`."""

    worker_id: WorkerId
    ttl_s: TtlS = 30.0
    wait_s: Annotated[float, Meta(ge=0, le=60)] = 20.0


class Claimed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run to execute, and the lease on it."""

    run_id: RunId
    lease_epoch: int
    expires_at: Timestamp
    agent: AgentName
    input: Any
    sequence: int
    attempt: int
    session_id: SessionId | None = None
