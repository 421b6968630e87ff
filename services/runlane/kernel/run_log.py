"""One run opened for writing: what is known of it, and the one way to add to it.

`transact` decides on the known state and commits by compare-and-set; if somebody else wrote first it reads what
is new and decides again. Transactions that come while a commit is under way become the next commit together
(group commit), each decided on the state that its predecessors leave.
"""

import asyncio
import hashlib
import logging
import random
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from time import monotonic
from weakref import WeakValueDictionary

import msgspec

from runlane.kernel.clock import NewId, Now
from runlane.kernel.errors import Compacted, Conflict, Gap, KernelError, Retryable, StreamReplaced
from runlane.kernel.event_log import NOTHING, EventLog, StoredCommit
from runlane.kernel.faults import trace_of
from runlane_contracts.codec import encode, timestamp
from runlane_contracts.cursor import Position
from runlane_contracts.envelope import Actor, Commit, Fact
from runlane_contracts.events import InputRequested, decode_payload
from runlane_contracts.lifecycle import (
    MAX_FACTS_PER_COMMIT,
    FactDraft,
    Refused,
    RunLifecycle,
    admit,
    place,
    validate,
)
from runlane_contracts.problems import Code
from runlane_contracts.streams import MAX_COMMIT_BYTES
from runlane_contracts.subjects import RunAddress

_log = logging.getLogger("runlane.kernel.run_log")

MAX_CONFLICTS = 50
"""How often one commit may lose to other writers before its caller is told to try later."""
MAX_QUEUED = 4096
"""Transactions that wait on one run; the next one is refused as Retryable."""
_ENVELOPE_BYTES = 1024  # what a commit has around its facts

Decide = Callable[[RunLifecycle], Sequence[FactDraft]]
"""Which facts follow from the state, or `Refused`. Pure: it is called again after a conflict."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a transaction wrote. No facts: nothing was to be written (a repeat)."""

    facts: tuple[Fact, ...]
    position: Position
    lifecycle_sequence: int


class RunLog:
    """The writing side of one run in this process. Use `RunLogs.of`, so that there is one of them."""

    def __init__(self, log: EventLog, address: RunAddress, *, now: Now, new_id: NewId) -> None:
        self.address = address
        self.position = NOTHING
        self.lifecycle = RunLifecycle(tenant_id=address.tenant_id, run_id=address.run_id)
        self._log = log
        self._now = now
        self._new_id = new_id
        self._queue: deque[_Transaction] = deque()
        self._driver: asyncio.Task[None] | None = None
        self._busy = asyncio.Lock()
        self._synced_at = float("-inf")
        self._stale = True

    @property
    def idle(self) -> bool:
        """Whether nothing is queued or under way."""
        return self._driver is None and not self._queue and not self._busy.locked()

    async def load(self) -> RunLifecycle:
        """The run as it is now: the first call reads its log, later ones what is new. Raises Retryable, Gap."""
        async with self._busy:
            await self._refresh()
            return self.lifecycle

    async def transact(self, decide: Decide, *, lease_epoch: int, actor: Actor) -> Written:
        """Write what `decide` says, once, right after the state it was shown. A cancelled caller may still write.

        Raises:
            Refused: `decide` refused, on the newest state; nothing was written.
            Overloaded: the log takes nothing more; nothing was written.
            Retryable: the log could not be reached; it may have been written, so `decide` must find out.
        """
        if len(self._queue) >= MAX_QUEUED:
            raise Retryable(f"{len(self._queue)} transactions wait on {self.address.run_id}")
        written: asyncio.Future[Written] = asyncio.get_running_loop().create_future()
        self._queue.append(_Transaction(decide, lease_epoch, actor, written, monotonic()))
        if self._driver is None:
            self._driver = asyncio.create_task(self._drive())
        return await written

    async def append(
        self,
        drafts: Sequence[FactDraft],
        *,
        lease_epoch: int,
        actor: Actor,
        expected_sequence: int | None = None,
    ) -> list[tuple[str, int]]:
        """Write what a lease holder states; (event id, sequence) of each draft. A repeat gets the first answer.

        Raises: as `transact`.
        """
        validate(drafts)
        _refuse_unanswerable(drafts)
        named = [one if one.event_id is not None else _with_id(one, self._new_id("evt")) for one in drafts]
        places: list[int] = []

        def decide(run: RunLifecycle) -> Sequence[FactDraft]:
            admitted = admit(run, named, lease_epoch=lease_epoch, expected_sequence=expected_sequence)
            places[:] = [] if admitted else [run.event_ids[str(one.event_id)] for one in named]
            return admitted

        written = await self.transact(decide, lease_epoch=lease_epoch, actor=actor)
        if not written.facts:
            return [(str(one.event_id), place) for one, place in zip(named, places, strict=True)]
        sequences = {fact.event_id: fact.sequence for fact in written.facts}
        return [(str(one.event_id), sequences[str(one.event_id)]) for one in named]

    async def close(self) -> None:
        """Wait for what is under way; what is queued still runs."""
        if self._driver is not None:
            await asyncio.wait({self._driver})

    # --- group commit ---------------------------------------------------------------------------------------

    async def _drive(self) -> None:
        try:
            while self._queue:
                async with self._busy:
                    await self._commit_next()
        finally:
            self._driver = None
            for transaction in self._queue:  # only when this task was cancelled: the loop is shutting down
                transaction.fail(Retryable("shutting down"))
            self._queue.clear()

    async def _commit_next(self) -> None:
        """One commit, with as many waiting transactions as it holds."""
        group = _Group()
        try:
            for attempt in range(MAX_CONFLICTS):
                if self._stale:
                    await self._refresh()
                await self._decide(group)
                if not group.facts:
                    break
                if await self._commit(group, attempt):
                    break
            else:
                group.fail(Retryable(f"{self.address.run_id}: lost {MAX_CONFLICTS} compare-and-sets in a row"))
        except KernelError as exc:
            group.fail(exc)
            self._fail_if_unread(exc)
        except asyncio.CancelledError:
            group.fail(Retryable("shutting down"))
            raise
        except Exception as exc:  # noqa: BLE001 - a fault of ours must not leave the callers waiting
            _log.error("a commit failed unexpectedly: %s: %s", self.address.run_id, trace_of(exc))
            self._stale = True
            group.fail(Retryable(f"{self.address.run_id}: {type(exc).__name__}"))

    def _fail_if_unread(self, exc: KernelError) -> None:
        # Without the state nothing can be decided: who waits is told, rather than each trying in turn.
        if self._stale:
            while self._queue:
                self._queue.popleft().fail(exc)

    async def _decide(self, group: "_Group") -> None:
        """Fill the group from the queue (a group that lost a conflict is decided anew, in its order)."""
        again = deque(group.restart(self.lifecycle, self.position))
        group.occurred_at = timestamp(self._now())
        while again or self._queue:
            transaction = (again or self._queue).popleft()
            if transaction.written.cancelled():
                continue
            if not await self._decide_one(group, transaction):
                self._queue.appendleft(transaction)
                self._queue.extendleft(reversed(again))
                return

    async def _decide_one(self, group: "_Group", transaction: "_Transaction") -> bool:
        """False: it does not fit into this commit any more."""
        while True:
            try:
                drafts = transaction.decide(group.state)
                if drafts:
                    return self._place(group, transaction, drafts)
            except Exception as exc:  # noqa: BLE001 - whatever `decide` raises is its caller's to hear
                refusal: Exception | None = exc
            else:
                refusal = None
            # Nothing will be written, so no compare-and-set will tell whether the state was the newest one.
            if self._synced_at >= transaction.queued_at or group.facts:
                group.answer_without_writing(transaction, refusal)
                return True
            if not await self._refreshed(group):
                group.answer_without_writing(transaction, refusal)
                return True

    async def _refreshed(self, group: "_Group") -> bool:
        """Whether reading again brought something new. Only while the group is empty."""
        before = self.position
        await self._refresh()
        group.restart(self.lifecycle, self.position)
        return self.position != before

    def _place(self, group: "_Group", transaction: "_Transaction", drafts: Sequence[FactDraft]) -> bool:
        if group.facts and len(group.facts) + len(drafts) > MAX_FACTS_PER_COMMIT:
            return False
        facts = place(
            group.state,
            drafts,
            lease_epoch=transaction.lease_epoch,
            actor=transaction.actor,
            occurred_at=group.occurred_at,
            event_ids=[one.event_id or self._new_id("evt") for one in drafts],
        )
        size = len(encode(facts))
        if group.bytes + size > MAX_COMMIT_BYTES:
            if group.facts:
                return False
            raise Refused(Code.PAYLOAD_TOO_LARGE, f"{size} bytes are more than one commit may have")
        group.add(transaction, facts, size)
        return True

    async def _commit(self, group: "_Group", attempt: int) -> bool:
        """False: somebody else wrote first, and the state now has what they wrote."""
        commit = Commit(
            commit_id=_commit_id(self.address, group.facts),
            tenant_id=self.address.tenant_id,
            run_id=self.address.run_id,
            first_sequence=group.facts[0].sequence,
            facts=tuple(group.facts),
        )
        began = monotonic()
        try:
            position = await self._log.commit(commit, after=self.position)
        except Conflict:
            if attempt:
                await asyncio.sleep(random.uniform(0, 0.002 * 2 ** min(attempt, 8)))  # noqa: S311
            await self._refresh()
            return False
        except KernelError:
            self._stale = True  # it may be written after all
            raise
        self.lifecycle, self.position = group.written(), position
        self._synced_at = began
        group.succeed(position)
        return True

    async def _refresh(self) -> None:
        """Read what is new; everything, if nothing is known, the stream was made anew, or what is new was archived.

        Everything, too, where the last message does not hold what is known of it: it may be one that counts wrong.
        """
        began = monotonic()
        try:
            await self._read_new()
        except (StreamReplaced, Compacted, Gap) as exc:
            if isinstance(exc, Gap) and self.position == NOTHING:
                raise
            self.position = NOTHING
            self.lifecycle = RunLifecycle(tenant_id=self.address.tenant_id, run_id=self.address.run_id)
            await self._read_new()
        self._stale = False
        self._synced_at = began

    async def _read_new(self) -> None:
        self._stale = True
        async with aclosing(self._log.read(self.address, after=self.position)) as commits:
            async for stored in commits:
                self.lifecycle.evolve(stored.commit.facts)
                self.position = stored.position


class _Transaction:
    __slots__ = ("actor", "decide", "lease_epoch", "queued_at", "written")

    def __init__(
        self, decide: Decide, lease_epoch: int, actor: Actor, written: "asyncio.Future[Written]", queued_at: float
    ) -> None:
        self.decide = decide
        self.lease_epoch = lease_epoch
        self.actor = actor
        self.written = written
        self.queued_at = queued_at

    def fail(self, exc: Exception) -> None:
        if not self.written.done():
            self.written.set_exception(exc)


class _Group:
    """The transactions of one commit, and the state as they leave it."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.bytes = _ENVELOPE_BYTES
        self.occurred_at = ""
        self._known: RunLifecycle = RunLifecycle(tenant_id="", run_id="")
        self._trial: RunLifecycle | None = None
        self._after = NOTHING
        self._members: list[tuple[_Transaction, tuple[Fact, ...], Exception | None, int]] = []

    def restart(self, lifecycle: RunLifecycle, after: Position) -> list[_Transaction]:
        """Begin anew on a state; returns who was in it, in their order."""
        members = [transaction for transaction, *_ in self._members]
        self.facts, self.bytes, self._members = [], _ENVELOPE_BYTES, []
        self._known, self._trial, self._after = lifecycle, None, after
        return members

    @property
    def state(self) -> RunLifecycle:
        """The state as the transactions so far leave it. A copy, once one of them wrote: it may yet fail."""
        if not self.facts:
            return self._known
        if self._trial is None:
            self._trial = self._known.fork()
            self._trial.evolve(self.facts)
        return self._trial

    @property
    def sequence(self) -> int:
        return self._known.sequence + len(self.facts)

    def add(self, transaction: _Transaction, facts: tuple[Fact, ...], size: int) -> None:
        if self._trial is not None:
            self._trial.evolve(facts)
        self.facts.extend(facts)
        self.bytes += size
        self._members.append((transaction, facts, None, self.sequence))

    def written(self) -> RunLifecycle:
        """The state now that the facts are in the log."""
        if self._trial is None:
            self._known.evolve(self.facts)
            return self._known
        return self._trial

    def answer_without_writing(self, transaction: _Transaction, refusal: Exception | None) -> None:
        if self.facts:
            # It was decided on facts that are not written yet: it holds only if they are.
            self._members.append((transaction, (), refusal, self.sequence))
        elif refusal is not None:
            transaction.fail(refusal)
        elif not transaction.written.done():
            transaction.written.set_result(Written((), self._after, self.sequence))

    def succeed(self, position: Position) -> None:
        for transaction, facts, refusal, sequence in self._members:
            if refusal is not None:
                transaction.fail(refusal)
            elif not transaction.written.done():
                there = Position(position.epoch, position.stream_seq, sequence)
                transaction.written.set_result(Written(facts, there, sequence))

    def fail(self, exc: KernelError) -> None:
        for transaction, *_ in self._members:
            transaction.fail(exc)


class RunLogs:
    """The open runs of this process, at most `max_runs` and `max_facts` known facts of idle ones.

    The least recently used idle run is forgotten first; one that somebody still holds is found again.
    """

    def __init__(
        self, log: EventLog, *, now: Now, new_id: NewId, max_runs: int = 10_000, max_facts: int = 1_000_000
    ) -> None:
        self._log = log
        self._now = now
        self._new_id = new_id
        self._max_runs = max_runs
        self._max_facts = max_facts
        self._recent: OrderedDict[RunAddress, RunLog] = OrderedDict()
        self._held: WeakValueDictionary[RunAddress, RunLog] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._recent)

    def of(self, run: RunAddress) -> RunLog:
        """The one RunLog of a run."""
        found = self._recent.get(run)
        if found is None:
            found = self._held.get(run) or RunLog(self._log, run, now=self._now, new_id=self._new_id)
            self._recent[run] = self._held[run] = found
            self._evict()
        self._recent.move_to_end(run)
        return found

    def read(self, run: RunAddress) -> AsyncGenerator[StoredCommit, None]:
        """A run's commits as the log has them now, without keeping the run. Raises Gap, Retryable."""
        return self._log.read(run)

    def forget(self, run: RunAddress) -> None:
        """Let go of a run that turned out not to exist: asking for absent runs must not push out present ones."""
        found = self._recent.get(run)
        if found is not None and found.idle and not found.lifecycle.exists:
            del self._recent[run]

    async def close(self) -> None:
        """Wait for what is under way in all of them."""
        for run_log in tuple(self._recent.values()):
            await run_log.close()

    def _evict(self) -> None:
        if len(self._recent) <= self._max_runs and len(self._recent) % 64:
            return
        facts = sum(len(run_log.lifecycle.event_ids) for run_log in self._recent.values())
        for run, run_log in tuple(self._recent.items())[:-1]:
            if len(self._recent) <= self._max_runs and facts <= self._max_facts:
                return
            if run_log.idle:
                facts -= len(run_log.lifecycle.event_ids)
                del self._recent[run]


def _commit_id(run: RunAddress, facts: Sequence[Fact]) -> str:
    # Derived: the same facts at the same place are the same commit, whoever tries it again.
    digest = hashlib.sha256(f"{run.tenant_id}\n{run.run_id}\n{facts[0].sequence}".encode())
    for fact in facts:
        digest.update(b"\n" + fact.event_id.encode())
    return "cmt_" + digest.hexdigest()[:32]


def _refuse_unanswerable(drafts: Sequence[FactDraft]) -> None:
    """A question whose schema is none would be asked for ever: whatever came would not fit it."""
    for index, one in enumerate(drafts):
        if one.type != InputRequested.TYPE:
            continue
        asked = decode_payload(one.type, one.payload)
        if not isinstance(asked, InputRequested) or asked.schema is None:
            continue
        from runlane.kernel.schemas import why_unanswerable  # noqa: PLC0415  slow to load, and few need it

        reason = why_unanswerable(asked.schema)
        if reason is not None:
            raise Refused(Code.INVALID_REQUEST, f"{one.type}: nothing can fit the schema: {reason}", index=index)


def _with_id(one: FactDraft, event_id: str) -> FactDraft:
    return msgspec.structs.replace(one, event_id=event_id)
