"""One run, opened for writing: decide, place, commit; and what queues meanwhile is the next commit.

    written = await run_logs.of(run).transact(decide, lease_epoch=0, actor=actor)

`decide` is a pure function of the run's lifecycle that answers the facts to write, or refuses. Its answer becomes
true by the log's compare-and-set: when somebody else wrote first, what is new is read and everything that has not
been committed is decided again.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from runlane.kernel.clock import NewId, Now
from runlane.kernel.errors import Conflict, Permanent, Retryable, StreamReplaced
from runlane.kernel.event_log import NOTHING, EventLog
from runlane_contracts import codec, lifecycle
from runlane_contracts.cursor import Position
from runlane_contracts.envelope import Actor, Commit, Fact
from runlane_contracts.lifecycle import MAX_FACTS_PER_COMMIT, FactDraft, Refused, RunLifecycle
from runlane_contracts.problems import Code
from runlane_contracts.streams import MAX_COMMIT_BYTES
from runlane_contracts.subjects import RunAddress

Decide = Callable[[RunLifecycle], Sequence[FactDraft]]

MAX_CONFLICTS = 50
"""Lost compare-and-sets in a row before the log counts as unusable for this run."""
MAX_WAITING = 4096
"""Transactions that may wait for one run; more is the caller's overload."""
ENVELOPE_BYTES = 512
"""What a fact weighs besides its payload, generously."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a transaction wrote, and where. No facts: it had been written before, or there was nothing to write."""

    facts: tuple[Fact, ...]
    position: Position


@dataclass(slots=True, eq=False)
class _Transaction:
    decide: Decide
    lease_epoch: int
    actor: Actor
    answer: "asyncio.Future[Written]"
    asked_at: int  # how many times the log had been looked at
    facts: tuple[Fact, ...] = ()


@dataclass(slots=True)
class _Round:
    """What one commit will hold: the transactions, and the lifecycle after each."""

    state: RunLifecycle
    taken: list[_Transaction] = field(default_factory=list)
    refused: list[tuple[_Transaction, Exception]] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    size: int = 0
    forked: bool = False
    doubtful: bool = False  # something was decided on a state that nothing proves to be the log's


class RunLog:
    """A run's lifecycle and the only writer of this process to it. Get one from `RunLogs`."""

    def __init__(self, log: EventLog, address: RunAddress, *, now: Now, new_id: NewId) -> None:
        self.address = address
        self.lifecycle = RunLifecycle(tenant_id=address.tenant_id, run_id=address.run_id)
        self.position = NOTHING
        self._log, self._now, self._new_id = log, now, new_id
        self._waiting: deque[_Transaction] = deque()
        self._turn = asyncio.Lock()  # one commit, or one refresh, at a time
        self._writing: asyncio.Task[None] | None = None
        self._looks = 0  # how many times the log was read
        self._known = False  # whether `lifecycle` was read, and nothing since made it doubtful

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is being written."""
        return not self._waiting and (self._writing is None or self._writing.done()) and not self._turn.locked()

    async def load(self) -> RunLifecycle:
        """The run as it is in the log now. Do not change it.

        Raises:
            Retryable: the log cannot be read.
        """
        async with self._turn:
            await self._refresh()
        return self.lifecycle

    async def transact(self, decide: Decide, *, lease_epoch: int, actor: Actor) -> Written:
        """Write what `decide` answers; durable when this returns.

        Raises:
            Refused: `decide` said no; nothing was written.
            Retryable: the log cannot be reached or is full; it is not known to be written. Trying again is safe
                when the facts have ids of their own or `decide` recognises its own work.
            Permanent: it can never be written.
        """
        if len(self._waiting) >= MAX_WAITING:
            raise Retryable(f"{MAX_WAITING} transactions wait for run {self.address.run_id}")
        answer: asyncio.Future[Written] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Transaction(decide, lease_epoch, actor, answer, self._looks))
        if self._writing is None or self._writing.done():
            # A task of its own: a caller that goes away must not tear a commit that holds others' facts.
            self._writing = asyncio.create_task(self._write_all())
        return await answer

    async def append(
        self, drafts: Sequence[FactDraft], *, lease_epoch: int, actor: Actor, expected_sequence: int | None = None
    ) -> list[tuple[str, int]]:
        """Write a lease holder's facts, all or nothing; `(event id, sequence)` of each, again for a repeat.

        Raises:
            Refused: misshapen, fenced, ended, conflicting; nothing was written.
            Retryable, Permanent: as `transact`.
        """
        lifecycle.validate(drafts)
        named = [one if one.event_id else _with_id(one, self._new_id("evt")) for one in drafts]

        def decide(run: RunLifecycle) -> Sequence[FactDraft]:
            return lifecycle.admit(run, named, lease_epoch=lease_epoch, expected_sequence=expected_sequence)

        written = await self.transact(decide, lease_epoch=lease_epoch, actor=actor)
        placed = {fact.event_id: fact.sequence for fact in written.facts} or self.lifecycle.event_ids
        return [(one.event_id or "", placed[one.event_id or ""]) for one in named]

    # -- the writer -------------------------------------------------------------------------------------------

    async def _write_all(self) -> None:
        while self._waiting:
            async with self._turn:
                await self._write_one_commit()

    async def _write_one_commit(self) -> None:
        try:
            await self._commit_what_waits()
        except asyncio.CancelledError:
            self._fail_waiting(Retryable("stopped while writing"))
            raise
        except Exception as exc:  # noqa: BLE001 - whatever it is belongs to those who wait, not to this task
            self._known = False
            self._fail_waiting(exc)

    async def _commit_what_waits(self) -> None:
        if not self._known:
            await self._refresh()
        for _ in range(MAX_CONFLICTS):
            planned = self._plan()
            if planned.doubtful:
                await self._refresh()
                continue
            if not planned.facts:
                self._settle(planned, self.position)
                return
            try:
                position = await self._log.commit(self._commit_of(planned), after=self.position)
            except Conflict:
                await self._refresh()
                continue
            except (Retryable, Permanent) as exc:
                self._known = False
                self._fail(planned, exc)
                return
            self._adopt(planned, position)
            self._settle(planned, position)
            return
        raise Retryable(f"run {self.address.run_id}: lost {MAX_CONFLICTS} compare-and-sets in a row")

    def _plan(self) -> _Round:
        """Decide what waits, in order, until the commit is full.

        Nothing is answered yet: that is for when the facts that the decisions build on are in the log. Only a
        commit proves that the state it was decided on is the log's. A refusal, or that there is nothing to write,
        counts when the log was read after the question was asked; else the round is doubtful.
        """
        planned = _Round(self.lifecycle)
        for one in list(self._waiting):
            if one.answer.done():
                self._waiting.remove(one)
                continue
            if planned.doubtful or not self._fits(planned, one):
                break
        return planned

    def _fits(self, planned: _Round, one: _Transaction) -> bool:
        """Decide one transaction and take it into the round; False when the commit is full."""
        if planned.taken and not planned.forked and planned.facts:
            planned.state = planned.state.fork()
            planned.state.evolve(planned.facts)
            planned.forked = True
        try:
            drafts = one.decide(planned.state)
            size = sum(len(bytes(draft.payload)) + ENVELOPE_BYTES for draft in drafts)
            _bound(len(drafts), size)
        except Exception as exc:  # noqa: BLE001 - a refusal, or a fault of `decide`: its caller's, nobody else's
            planned.doubtful = self._looks <= one.asked_at
            planned.refused.append((one, exc))
            return True
        if not drafts and self._looks <= one.asked_at:
            planned.doubtful = True
            return True
        too_many = len(planned.facts) + len(drafts) > MAX_FACTS_PER_COMMIT
        if planned.facts and (too_many or planned.size + size > MAX_COMMIT_BYTES):
            return False
        one.facts = self._place(planned.state, drafts, one)
        planned.taken.append(one)
        planned.facts += one.facts
        planned.size += size
        if planned.forked:
            planned.state.evolve(one.facts)
        return True

    def _place(self, run: RunLifecycle, drafts: Sequence[FactDraft], one: _Transaction) -> tuple[Fact, ...]:
        return lifecycle.place(
            run, drafts, lease_epoch=one.lease_epoch, actor=one.actor, occurred_at=codec.timestamp(self._now()),
            event_ids=[draft.event_id or self._new_id("evt") for draft in drafts],
        )  # fmt: skip

    def _commit_of(self, planned: _Round) -> Commit:
        return Commit(
            commit_id=self._new_id("cmt"),
            tenant_id=self.address.tenant_id,
            run_id=self.address.run_id,
            first_sequence=planned.facts[0].sequence,
            facts=tuple(planned.facts),
        )

    def _adopt(self, planned: _Round, position: Position) -> None:
        if planned.forked:
            self.lifecycle = planned.state
        else:
            self.lifecycle.evolve(planned.facts)
        self.position = position

    def _settle(self, planned: _Round, position: Position) -> None:
        for one, exc in planned.refused:
            self._waiting.remove(one)
            if not one.answer.done():
                one.answer.set_exception(exc)
        for one in planned.taken:
            self._waiting.remove(one)
            if not one.answer.done():
                one.answer.set_result(Written(facts=one.facts, position=position))

    def _fail(self, planned: _Round, exc: Exception) -> None:
        for one in planned.taken:
            self._waiting.remove(one)
            if not one.answer.done():
                one.answer.set_exception(exc)

    def _fail_waiting(self, exc: Exception) -> None:
        while self._waiting:
            one = self._waiting.popleft()
            if not one.answer.done():
                one.answer.set_exception(exc)

    async def _refresh(self) -> None:
        """Read what the log holds after what is known."""
        self._looks += 1
        try:
            await self._read_on()
        except StreamReplaced:
            self.lifecycle = RunLifecycle(tenant_id=self.address.tenant_id, run_id=self.address.run_id)
            self.position = NOTHING
            await self._read_on()
        self._known = True

    async def _read_on(self) -> None:
        async for stored in self._log.read(self.address, after=self.position):
            self.lifecycle.evolve(stored.commit.facts)
            self.position = stored.position


class RunLogs:
    """One `RunLog` per run in this process; the longest idle ones are forgotten when there are too many."""

    def __init__(
        self, log: EventLog, *, now: Now, new_id: NewId, max_runs: int = 10_000, max_facts: int = 2_000_000
    ) -> None:
        self._log, self._now, self._new_id = log, now, new_id
        self._max_runs, self._max_facts = max_runs, max_facts
        self._open: OrderedDict[RunAddress, RunLog] = OrderedDict()

    def of(self, run: RunAddress) -> RunLog:
        """The run's log, the same object for every caller while it is in use."""
        found = self._open.get(run)
        if found is None:
            self._make_room()
            found = self._open[run] = RunLog(self._log, run, now=self._now, new_id=self._new_id)
        self._open.move_to_end(run)
        return found

    def _make_room(self) -> None:
        facts = sum(one.lifecycle.sequence for one in self._open.values()) if len(self._open) % 64 == 0 else 0
        while self._open and (len(self._open) >= self._max_runs or facts > self._max_facts):
            victim = next((run for run, one in self._open.items() if one.idle), None)
            if victim is None:
                return
            facts -= self._open.pop(victim).lifecycle.sequence


def _bound(count: int, size: int) -> None:
    if size > MAX_COMMIT_BYTES + count * ENVELOPE_BYTES:
        raise Refused(Code.PAYLOAD_TOO_LARGE, f"{size} bytes at once, at most {MAX_COMMIT_BYTES}; use a content_ref")


def _with_id(one: FactDraft, event_id: str) -> FactDraft:
    return msgspec.structs.replace(one, event_id=event_id)
