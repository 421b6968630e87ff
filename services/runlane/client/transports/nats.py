"""For workers of the platform: facts, leases, work and the run's own log, straight on the broker.

Only platform workers are users of the platform's account; everybody else goes over HTTP. A worker reads the LOG,
so a decision reaches it unmasked (an edited approval, a password it asked for). Starting runs for a pool, and
commands, go over HTTP.
"""

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Self, TypeVar
from urllib.parse import urlsplit

import msgspec

from runlane.client.errors import ContractViolation, ProblemBody, RequestRefused, Unreachable
from runlane.client.transports.ports import (
    Claim,
    Frame,
    Lease,
    NewRun,
    StartedRun,
    WatchRequest,
    Written,
)
from runlane.client.transports.wires import Wires
from runlane.kernel.clock import NewId, Now, new_id, utc_now
from runlane.kernel.connection import Connection, connect
from runlane.kernel.errors import Compacted, Fenced, KernelError, Overloaded, Permanent, StreamReplaced
from runlane.kernel.event_log import NOTHING, StoredCommit
from runlane.kernel.lease import LeaseHeld, NoRoom
from runlane_contracts import events, lifecycle, reducer
from runlane_contracts.access import inbox_prefix
from runlane_contracts.codec import encode
from runlane_contracts.cursor import REDUCER_VERSION, Position
from runlane_contracts.envelope import Actor, Fact
from runlane_contracts.lifecycle import FactDraft, Refused, RunLifecycle
from runlane_contracts.previews import Preview, PreviewBatch
from runlane_contracts.problems import MEANINGS, Code
from runlane_contracts.resume import End, EndReason, Hello, Mark, Outcome, ResetReason, SnapshotFrame, Synced
from runlane_contracts.streams import Layout
from runlane_contracts.subjects import RunAddress

T = TypeVar("T")

NATS_HEARTBEAT_S = 5.0
"""The connection's own ping interval: it is what notices a dead peer."""
WORKER = "worker"
LOOK_FOR_ROOM_S = 0.25
"""How often a worker whose tenant is at its bound looks whether a run has ended."""


class NatsTransport:
    """One tenant's runs, over one connection, or over the wires that several tenants share.

    `connect` makes and closes a connection of its own.
    """

    def __init__(
        self,
        connection: Connection | Wires,
        tenant_id: str,
        *,
        layout: Layout | None = None,
        actor_id: str = WORKER,
        now: Now = utc_now,
        new_id: NewId = new_id,
    ) -> None:
        if not isinstance(connection, Wires):
            connection = Wires(connection, layout or Layout(), now=now, new_id=new_id)
        self._wires = connection
        self._connection, self._layout = self._wires.connection, self._wires.layout
        self._log, self._run_logs, self._leases = self._wires.log, self._wires.run_logs, self._wires.leases
        self._tenant_id = tenant_id
        self._actor = Actor(kind="agent", id=actor_id)

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        url: str,
        tenant_id: str,
        *,
        user: str | None = None,
        password: str | None = None,
        layout: Layout | None = None,
        name: str = "runlane-worker",
    ) -> AsyncIterator[Self]:
        """Connect as a worker of the platform; user and password may also stand in the URL.

        Raises:
            Unreachable: no broker answers.
            ContractViolation: it knows neither user nor password.
        """
        async with connected(url, user=user, password=password, name=name) as (connection, actor_id):
            transport = cls(connection, tenant_id, layout=layout, actor_id=actor_id)
            try:
                yield transport
            finally:
                await transport.aclose()

    async def aclose(self) -> None:
        """Give back what was made on the connection; the connection stays."""
        await self._wires.close()

    def _run(self, run_id: str) -> RunAddress:
        return RunAddress(self._tenant_id, run_id)

    # -- writing ------------------------------------------------------------------------------------------

    async def start_run(self, new: NewRun) -> StartedRun:
        """Write `run.created` of a run that this process drives itself (`dispatch="external"`).

        Refused as `forbidden` for a pool or with a deadline: dispatch and timers are the supervisor's, over HTTP.
        """
        if new.dispatch != "external" or new.deadline_at is not None:
            raise _refusal(Code.FORBIDDEN, "over NATS only external runs without a deadline are started")
        created = events.RunCreated(
            agent=new.agent, input=new.input, pool=new.pool, dispatch="external", limits=new.limits,
            parent_run_id=new.parent_run_id,
        )  # fmt: skip

        def decide(run: RunLifecycle) -> Sequence[FactDraft]:
            return [] if run.exists else [lifecycle.draft(created, session_id=new.session_id)]

        run_log = self._run_logs.of(self._run(new.run_id))
        await translated(run_log.transact(decide, lease_epoch=0, actor=self._actor))
        known = run_log.lifecycle
        return StartedRun(run_id=new.run_id, command_id="", status=known.status, sequence=known.sequence)

    async def take_lease(self, run_id: str, *, worker_id: str, ttl_s: float) -> Lease:
        """Become the owner. Refused as `lease_held` while another is."""
        lease = await translated(self._leases.take(self._run(run_id), worker_id, ttl_s))
        return Lease(lease_epoch=lease.lease_epoch, expires_at=lease.expires_at)

    async def confirm_lease(self, run_id: str, *, worker_id: str, lease_epoch: int) -> Lease:
        """Heartbeat. Refused as `lease_fenced` when the lease is gone."""
        lease = await translated(self._leases.renew(self._run(run_id), worker_id, lease_epoch))
        return Lease(lease_epoch=lease.lease_epoch, expires_at=lease.expires_at)

    async def release_lease(self, run_id: str, *, worker_id: str, lease_epoch: int) -> None:
        """Give the run back."""
        await translated(self._leases.release(self._run(run_id), worker_id, lease_epoch))

    async def append(
        self, run_id: str, drafts: Sequence[FactDraft], *, lease_epoch: int, expected_sequence: int | None = None
    ) -> list[Written]:
        """Write all or nothing. Repeating the same event ids gives the first answer."""
        written = await translated(
            self._run_logs.of(self._run(run_id)).append(
                drafts, lease_epoch=lease_epoch, actor=self._actor, expected_sequence=expected_sequence
            )
        )
        return [Written(event_id=event_id, sequence=sequence) for event_id, sequence in written]

    async def publish_previews(self, run_id: str, previews: Sequence[Preview], *, lease_epoch: int) -> None:
        """Send fragments that may get lost. The redaction filter checks the lease."""
        run = self._run(run_id)
        batch = PreviewBatch(
            tenant_id=run.tenant_id,
            run_id=run.run_id,
            previews=tuple(
                msgspec.structs.replace(one, tenant_id=run.tenant_id, run_id=run.run_id, lease_epoch=lease_epoch)
                for one in previews
            ),
        )
        if not self._connection.is_connected:
            raise Unreachable("not connected", sent=False)
        await self._connection.nc.publish(self._layout.subjects.preview_raw(*run), encode(batch))

    # -- work ---------------------------------------------------------------------------------------------

    async def claim(self, pool: str, *, worker_id: str, ttl_s: float, wait_s: float) -> Claim | None:
        """The next run of the pool with its lease taken, or None after `wait_s`.

        None also while the tenant's workers drive as many runs as they may.
        """
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + wait_s
        while not await translated(self._wires.seats.has_room(self._tenant_id)):
            left_s = ends_at - loop.time()
            if left_s <= 0:
                return None
            await asyncio.sleep(min(LOOK_FOR_ROOM_S, left_s))
        left_s = max(0.0, ends_at - loop.time())
        return await translated(self._wires.claim(self._tenant_id, pool, worker_id, ttl_s, wait_s=left_s))

    # -- reading ------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def watch(self, request: WatchRequest) -> AsyncIterator[AsyncIterator[Frame] | None]:
        """Follow the LOG; see `ReaderTransport.watch`. Has no previews. Outlives reconnects of the connection."""
        run = self._run(request.run_id)
        history = [stored async for stored in _commits(self._log.read(run))]
        if not history:
            raise _refusal(Code.RUN_NOT_FOUND, "no such run")
        folded = _Folded(run, history)
        start = _start(request, folded)
        if start is None:
            yield None
            return
        async with aclosing(self._frames(request, run, folded, start)) as frames:
            yield frames

    async def _frames(
        self, request: WatchRequest, run: RunAddress, folded: "_Folded", start: "_Start"
    ) -> AsyncGenerator[Frame, None]:
        yield Frame(start.hello, None)
        if start.with_snapshot:
            yield Frame(folded.snapshot(), _cursor(folded.head))
        sequence, synced = start.position.sequence, False
        if sequence >= folded.head.sequence:
            synced = True
            yield Frame(Synced(sequence=sequence), None)
        async for stored in _commits(self._log.tail(run, after=start.position)):
            for fact in stored.commit.facts:
                if fact.sequence <= sequence:
                    continue
                sequence = fact.sequence
                if not request.types or fact.type in request.types:
                    yield Frame(_recorded(fact, stored), _cursor(_at(stored, sequence)))
                if not synced and sequence >= folded.head.sequence:
                    synced = True
                    yield Frame(Synced(sequence=sequence), None)
                if fact.type in events.TERMINAL_RUN:
                    cursor = _cursor(_at(stored, sequence))
                    yield Frame(End(reason=EndReason.RUN_TERMINAL, cursor=cursor), None)
                    return


class _Folded:
    """The run as it stood when the watch began."""

    def __init__(self, run: RunAddress, history: Sequence[StoredCommit]) -> None:
        self.state = reducer.initial_state(*run)
        for stored in history:
            for fact in stored.commit.facts:
                reducer.reduce(self.state, _recorded(fact, stored))
        self.run_id = run.run_id
        self.head = history[-1].position

    @property
    def is_over(self) -> bool:
        return reducer.is_terminal(self.state)

    def snapshot(self) -> SnapshotFrame:
        return SnapshotFrame(
            state=self.state, through_sequence=self.head.sequence, reducer_version=REDUCER_VERSION,
            checksum=reducer.checksum(self.state), cursor=_cursor(self.head),
        )  # fmt: skip

    def hello(self, outcome: Outcome, at: Position, reason: ResetReason | None = None) -> Hello:
        return Hello(
            outcome=outcome,
            run_id=self.run_id,
            status=str(self.state["run"]["status"]),
            baseline=Mark(sequence=at.sequence, cursor=_cursor(at)),
            high_water=Mark(sequence=self.head.sequence, cursor=_cursor(self.head)),
            reducer_version=REDUCER_VERSION,
            heartbeat_s=NATS_HEARTBEAT_S,
            filter={},
            reason=reason,
        )


class _Start(msgspec.Struct, frozen=True):
    hello: Hello
    position: Position
    with_snapshot: bool = False


def _start(request: WatchRequest, folded: _Folded) -> _Start | None:
    """Where the frames begin, and what they say first; None when nothing follows."""
    if request.cursor is not None:
        return _resume(_position(request.cursor), folded)
    if request.from_ == "start":
        outcome = Outcome.RUN_TERMINAL if folded.is_over else Outcome.RESUMED
        return _Start(folded.hello(outcome, NOTHING), NOTHING)
    if request.from_ == "now":
        return _Start(folded.hello(Outcome.RESUMED, folded.head), folded.head)
    return _Start(folded.hello(Outcome.SNAPSHOT, folded.head), folded.head, with_snapshot=True)


def _resume(at: Position, folded: _Folded) -> _Start | None:
    if at.epoch and at.epoch != folded.head.epoch:
        hello = folded.hello(Outcome.RESET_REQUIRED, folded.head, ResetReason.STREAM_REBUILT)
        return _Start(hello, folded.head, with_snapshot=True)
    if at.sequence > folded.head.sequence:
        hello = folded.hello(Outcome.RESET_REQUIRED, folded.head, ResetReason.AHEAD_OF_STREAM)
        return _Start(hello, folded.head, with_snapshot=True)
    if folded.is_over and at.sequence == folded.head.sequence:
        return None
    return _Start(folded.hello(Outcome.RUN_TERMINAL if folded.is_over else Outcome.RESUMED, at), at)


def _recorded(fact: Fact, stored: StoredCommit) -> Fact:
    return msgspec.structs.replace(fact, recorded_at=stored.recorded_at)


def _at(stored: StoredCommit, sequence: int) -> Position:
    return Position(stored.position.epoch, stored.position.stream_seq, sequence)


# -- cursors of this transport: a position in the LOG, for whoever may read the LOG ---------------------------------


def _cursor(at: Position) -> str:
    return "n1." + base64.urlsafe_b64encode(msgspec.msgpack.encode(at)).rstrip(b"=").decode()


def _position(cursor: str) -> Position:
    version, _, text = cursor.partition(".")
    if version != "n1":
        raise _refusal(Code.CURSOR_FOREIGN, "a cursor of another transport")
    try:
        return msgspec.msgpack.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=Position)
    except (ValueError, msgspec.MsgspecError) as exc:
        raise _refusal(Code.CURSOR_INVALID, "not a cursor") from exc


@asynccontextmanager
async def connected(
    url: str, *, user: str | None, password: str | None, name: str
) -> AsyncIterator[tuple[Connection, str]]:
    """A connection as a worker of the platform, and its user's name; closed at the end.

    Raises:
        Unreachable: no broker answers.
        ContractViolation: it knows neither user nor password.
    """
    user = user or urlsplit(url.partition(",")[0]).username
    # A user listens to its own inboxes only.
    prefix = inbox_prefix(user) if user else None
    connection = await translated(
        connect(url=url, user=user if password else None, password=password, name=name, inbox_prefix=prefix)
    )
    try:
        yield connection, user or WORKER
    finally:
        await connection.close()


# -- errors ---------------------------------------------------------------------------------------------------------


async def translated(call: Awaitable[T]) -> T:
    """What the kernel raises, in the client's words. Raises RequestRefused, Unreachable, ContractViolation."""
    try:
        return await call
    except (KernelError, Refused) as exc:
        raise _client_error(exc) from exc


async def _commits(source: AsyncGenerator[StoredCommit, None]) -> AsyncGenerator[StoredCommit, None]:
    async with aclosing(source):
        try:
            async for stored in source:
                yield stored
        except KernelError as exc:
            raise _client_error(exc) from exc


def _client_error(exc: KernelError | Refused) -> Exception:
    match exc:
        case Refused():
            return _refusal(exc.code, exc.detail, index=exc.index, current_sequence=exc.current_sequence)
        case LeaseHeld():
            return _refusal(Code.LEASE_HELD, str(exc))
        case NoRoom():
            return _refusal(Code.QUOTA_EXCEEDED, str(exc), retry_after_s=exc.retry_after_s)
        case Fenced():
            return _refusal(Code.LEASE_FENCED, str(exc))
        case Overloaded():
            return _refusal(Code.OVERLOADED, str(exc), retry_after_s=exc.retry_after_s)
        case Permanent() if not isinstance(exc, (StreamReplaced, Compacted)):
            return ContractViolation(str(exc))
        case _:
            return Unreachable(str(exc))  # of a replaced stream, the next connection says how to go on


def _refusal(code: Code, detail: str, **extra: object) -> RequestRefused:
    meaning = MEANINGS[code]
    body = {"code": code.value, "title": meaning.title, "detail": detail, "status": meaning.status}
    return RequestRefused(msgspec.convert({**body, "retryable": meaning.retryable, **extra}, ProblemBody))
