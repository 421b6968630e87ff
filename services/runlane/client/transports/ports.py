"""What a transport can do, by role. HTTP has all roles; NATS those of a platform worker.

Every method may raise `RequestRefused` (the server's answer) and `Unreachable` (no answer). None of them
retries: that is the business of the reader, the writer and the actions, which know what may be repeated.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol, runtime_checkable

from msgspec import Struct

from runlane_contracts.envelope import Fact
from runlane_contracts.events import ContentRef, Limits
from runlane_contracts.lifecycle import FactDraft
from runlane_contracts.previews import Preview, PreviewGap
from runlane_contracts.resume import End, From, Hello, SnapshotFrame, Synced

Item = Hello | SnapshotFrame | Fact | Preview | PreviewGap | Synced | End
"""What a reader yields."""


class Frame(NamedTuple):
    """One item as it came, with the cursor that continues after it; only facts and snapshots have one."""

    item: Item
    cursor: str | None


class WatchRequest(Struct, frozen=True, kw_only=True):
    """What a reader asks for. A cursor wins over `from_`."""

    run_id: str
    cursor: str | None = None
    from_: From | None = None
    previews: bool = True
    types: tuple[str, ...] = ()


class NewRun(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run to start."""

    agent: str
    run_id: str
    idempotency_key: str
    input: Any = None
    session_id: str | None = None
    pool: str = "default"
    dispatch: str = "pool"
    deadline_at: str | None = None
    limits: Limits | None = None
    parent_run_id: str | None = None


class StartedRun(Struct, frozen=True, kw_only=True):
    """A run that was accepted. `sequence` is None while `run.created` is not durable yet."""

    run_id: str
    command_id: str
    status: str = ""
    sequence: int | None = None
    cursor: str | None = None


class Lease(Struct, frozen=True, kw_only=True):
    """The right to drive a run until `expires_at`, unless confirmed again before."""

    lease_epoch: int
    expires_at: str


class Written(Struct, frozen=True, kw_only=True):
    """Where one fact is."""

    event_id: str
    sequence: int


class Claim(Struct, frozen=True, kw_only=True):
    """A run to execute, with its lease taken."""

    run_id: str
    lease_epoch: int
    agent: str
    input: Any = None
    sequence: int = 0
    tenant_id: str = ""
    """Whose run it is, where the transport knows."""


class CommandReceipt(Struct, frozen=True, kw_only=True):
    """A command's ledger entry as clients see it."""

    command_id: str
    status: str
    run_id: str = ""
    type: str = ""
    applied_through: str | None = None
    applied_sequence: int | None = None
    rejection: dict[str, Any] | None = None


class ReaderTransport(Protocol):
    """Watches runs."""

    def watch(self, request: WatchRequest) -> AbstractAsyncContextManager[AsyncIterator[Frame] | None]:
        """Open one connection. None: the run is over and nothing follows the cursor.

        The iterator ends at the end of the stream, with or without an `End`; it raises `Unreachable` when
        the connection breaks or falls silent. Leaving the context closes the connection.
        """
        ...


class WriterTransport(Protocol):
    """Drives a run."""

    async def start_run(self, new: NewRun) -> StartedRun:
        """Start a run; the same `idempotency_key` starts it once."""
        ...

    async def take_lease(self, run_id: str, *, worker_id: str, ttl_s: float) -> Lease:
        """Become the owner. Refused as `lease_held` while another is."""
        ...

    async def confirm_lease(self, run_id: str, *, worker_id: str, lease_epoch: int) -> Lease:
        """Heartbeat. Refused as `lease_fenced` when the lease is gone."""
        ...

    async def release_lease(self, run_id: str, *, worker_id: str, lease_epoch: int) -> None:
        """Give the run back."""
        ...

    async def append(
        self, run_id: str, drafts: Sequence[FactDraft], *, lease_epoch: int, expected_sequence: int | None = None
    ) -> list[Written]:
        """Write all or nothing. Repeating the same event ids gives the first answer."""
        ...

    async def publish_previews(self, run_id: str, previews: Sequence[Preview], *, lease_epoch: int) -> None:
        """Send fragments that may get lost."""
        ...


class WorkTransport(WriterTransport, ReaderTransport, Protocol):
    """Takes runs of a pool, and drives and tails them."""

    async def claim(self, pool: str, *, worker_id: str, ttl_s: float, wait_s: float) -> Claim | None:
        """The next run of the pool with its lease taken, or None after `wait_s`."""
        ...


@runtime_checkable
class ContentTransport(Protocol):
    """Keeps content that is too large for a fact. A transport that does not is one without large results."""

    async def put_content(
        self, data: bytes, *, media_type: str, run_id: str | None = None, classification: str | None = None
    ) -> ContentRef:
        """Keep it; the same content of the same run again has the same address."""
        ...

    async def get_content(self, uri: str, *, raw: bool = False) -> bytes:
        """What people may see of it; `raw`: as it came, with the right to produce. Refused as `not_found`."""
        ...


class SharedWork(ABC):
    """Takes runs of a pool for several tenants."""

    @abstractmethod
    async def claim_any(
        self, pool: str, *, worker_id: str, ttl_s: float, wait_s: float
    ) -> tuple[Claim, WorkTransport] | None:
        """The next run with its lease taken, and what drives it; or None after `wait_s`."""


class CommandTransport(Protocol):
    """Asks that something happen."""

    async def submit(
        self, run_id: str, type_: str, payload: Struct | dict[str, Any], *, idempotency_key: str, wait_s: float
    ) -> CommandReceipt:
        """Send one command and wait up to `wait_s` for its outcome. A rejection is a `RequestRefused`."""
        ...

    async def find_command(self, idempotency_key: str) -> CommandReceipt | None:
        """The ledger entry, or None: not known, which never means "not executed"."""
        ...
