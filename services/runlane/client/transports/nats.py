"""For workers of the platform: facts, leases, work and the run's own log, straight on the broker.

Only platform workers are users of the platform's account; everybody else goes over HTTP. A worker reads the LOG,
so a decision reaches it unmasked (an edited approval, a password it asked for). Starting runs for a pool, and
commands, go over HTTP.
"""

import base64
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
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
from runlane.kernel.clock import NewId, Now, new_id, utc_now
from runlane.kernel.connection import Connection, connect
from runlane.kernel.direct import DirectReader
from runlane.kernel.errors import Compacted, Fenced, KernelError, Overloaded, Permanent, Retryable, StreamReplaced
from runlane.kernel.event_log import NOTHING, StoredCommit
from runlane.kernel.kv import Bucket
from runlane.kernel.lease import LeaseDesk, LeaseHeld
from runlane.kernel.nats_event_log import NatsEventLog
from runlane.kernel.publisher import WindowedPublisher
from runlane.kernel.run_log import RunLogs
from runlane.kernel.work import Invitation, WorkQueue
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


class NatsTransport:
    """One tenant's runs, over one connection. `connect` makes and closes the connection; `of` shares one."""

    def __init__(
        self,
        connection: Connection,
        tenant_id: str,
        *,
        layout: Layout | None = None,
        actor_id: str = WORKER,
        now: Now = utc_now,
        new_id: NewId = new_id,
    ) -> None:
        self._connection = connection
        self._tenant_id = tenant_id
        self._layout = layout or Layout()
        self._actor = Actor(kind="agent", id=actor_id)
        self._publisher = WindowedPublisher(connection)
        self._direct = DirectReader(connection)
        self._log = NatsEventLog(connection, self._layout, publisher=self._publisher, direct=self._direct)
        self._run_logs = RunLogs(self._log, now=now, new_id=new_id)
        bucket = Bucket(self._publisher, self._direct, self._layout.lease_bucket)
        self._leases = LeaseDesk(bucket, self._run_logs, now=now)
        self._work = WorkQueue(connection, self._layout)

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
        user = user or urlsplit(url.partition(",")[0]).username
        # A user listens to its own inboxes only.
        prefix = inbox_prefix(user) if user else None
        async with AsyncExitStack() as stack:
            connection = await _translated(
                connect(url=url, user=user if password else None, password=password, name=name, inbox_prefix=prefix)
            )
            stack.push_async_callback(connection.close)
            transport = cls(connection, tenant_id, layout=layout, actor_id=user or WORKER)
            stack.push_async_callback(transport.aclose)
            yield transport

    async def aclose(self) -> None:
        """Give back what was made on the connection; the connection stays."""
        await self._publisher.close()
        await self._direct.close()

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
        await _translated(run_log.transact(decide, lease_epoch=0, actor=self._actor))
        known = run_log.lifecycle
        return StartedRun(run_id=new.run_id, command_id="", status=known.status, sequence=known.sequence)

    async def take_lease(self, run_id: str, *, worker_id: str, ttl_s: float) -> Lease:
        """Become the owner. Refused as `lease_held` while another is."""
        lease = await _translated(self._leases.take(self._run(run_id), worker_id, ttl_s))
        return Lease(lease_epoch=lease.lease_epoch, expires_at=lease.expires_at)

    async def confirm_lease(self, run_id: str, *, worker_id: str, lease_epoch: int) -> Lease:
        """Heartbeat. Refused as `lease_fenced` when the lease is gone."""
        lease = await _translated(self._leases.renew(self._run(run_id), worker_id, lease_epoch))
        return Lease(lease_epoch=lease.lease_epoch, expires_at=lease.expires_at)

    async def release_lease(self, run_id: str, *, worker_id: str, lease_epoch: int) -> None:
        """Give the run back."""
        await _translated(self._leases.release(self._run(run_id), worker_id, lease_epoch))

    async def append(
        self, run_id: str, drafts: Sequence[FactDraft], *, lease_epoch: int, expected_sequence: int | None = None
    ) -> list[Written]:
        """Write all or nothing. Repeating the same event ids gives the first answer."""
        written = await _translated(
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
        """The next run of the pool with its lease taken, or None after `wait_s`."""
        invitation = await _translated(self._work.pull(self._tenant_id, pool, wait_s=wait_s))
        if invitation is None:
            return None
        run = RunAddress(invitation.item.tenant_id, invitation.item.run_id)
        lease = await _translated(self._accept(invitation, run, worker_id, ttl_s))
        if lease is None:
            return None
        known = await _translated(self._run_logs.of(run).load())
        created = known.created
        return Claim(
            run_id=run.run_id,
            lease_epoch=lease.lease_epoch,
            agent=created.agent if created else invitation.item.agent,
            input=created.input if created else None,
            sequence=known.sequence,
        )

    async def _accept(self, invitation: Invitation, run: RunAddress, worker_id: str, ttl_s: float) -> Lease | None:
        try:
            lease = await self._leases.take(run, worker_id, ttl_s)
        except (LeaseHeld, Refused):
            await invitation.taken()  # somebody drives it, or it is over
            return None
        except Retryable:
            await invitation.later()
            raise
        await invitation.taken()
        return Lease(lease_epoch=lease.lease_epoch, expires_at=lease.expires_at)

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


# -- errors ---------------------------------------------------------------------------------------------------------


async def _translated(call: Awaitable[T]) -> T:
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
