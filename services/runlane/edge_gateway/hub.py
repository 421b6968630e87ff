"""One place per watched run where live commits arrive once and everyone who watches is told.

A hub holds one subscription, a ring of the newest commits bounded by bytes, and no queue per watcher: a watcher
is only a position. What the subscription misses shows as a gap in the run's sequence and is read again from
the view; a slow sweep finds what was missed at the end, where no gap would ever show.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

from runlane.edge_gateway.burst import Burst, BurstMaker
from runlane.edge_gateway.frames import FactFrames
from runlane.edge_gateway.history import History, HistoryRoom, Hole
from runlane.edge_gateway.lanes import Lane, is_critical
from runlane.edge_gateway.meters import Meters
from runlane.edge_gateway.preview_lane import PreviewBudget, PreviewLanes
from runlane.edge_gateway.resume import Head
from runlane.edge_gateway.ring import CommitRing
from runlane.edge_gateway.run_state import (
    SHORT_RUN_FACTS,
    EncodedSnapshot,
    Folded,
    RunStates,
    RunStatus,
    StateAt,
    encoded_snapshot,
)
from runlane.edge_gateway.view import Feed, Subscription, View, ViewCommit
from runlane.hosting.telemetry import about_run
from runlane.kernel.errors import KernelError, Retryable
from runlane_contracts.cursor import Position
from runlane_contracts.events import LogCompacted
from runlane_contracts.lean import decode_lean_commit
from runlane_contracts.reducer import Poison, fold, initial_state
from runlane_contracts.subjects import RunAddress
from runlane_contracts.telemetry import LogEvent

T = TypeVar("T")

_log = logging.getLogger("runlane.edge_gateway.hub")

LARGE_RUN_FACTS = 5_000
LARGE_SNAPSHOT_BYTES = 256 * 1024
MAX_BURSTS = 16
"""Joined frames that are kept for watchers at the same place; those who are elsewhere join their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubLimits:
    """Bounds of a hub and of all of them."""

    ring_bytes: int = 1024 * 1024
    preview_bytes: int = 256 * 1024
    total_preview_bytes: int = 64 * 1024 * 1024
    total_ring_bytes: int = 128 * 1024 * 1024
    burst_bytes: int = 32 * 1024
    page_bytes: int = 512 * 1024
    history_readers: int = 32
    history_bytes: int = 32 * 1024 * 1024
    linger_s: float = 10.0
    sweep_s: float = 5.0
    read_timeout_s: float = 10.0
    max_hubs: int = 20_000


class RunAbsent(Exception):
    """The view holds nothing of this run."""


class TooManyRuns(Exception):
    """Every hub is in use."""


class Listener(Protocol):
    """Who is told. Called often and synchronously: must be quick and never raise."""

    def wake(self) -> None:
        """There is something new."""
        ...

    def lose(self) -> None:
        """The hub cannot go on: what follows is not in the view."""
        ...


class RunHub:
    """What the gateway holds of one watched run."""

    def __init__(self, run: RunAddress, owner: "Hubs") -> None:
        self.run = run
        self.head = Position("", 0, 0)
        self.urgent_through = 0
        """The sequence of the last fact that somebody waits for."""
        self.listeners: set[Listener] = set()
        self.users = 0
        self.previews: PreviewLanes | None = None
        self.broken = False
        self.closed = False
        self._owner = owner
        self._ring = CommitRing(owner.limits.ring_bytes)
        self._status: RunStatus | None = None
        self._early: list[ViewCommit] | None = []
        self._live: Subscription | None = None
        self._preview_live: Subscription | None = None
        self._preview_users = 0
        self._preview_lock = asyncio.Lock()
        self._snapshot: EncodedSnapshot | None = None
        self._snapshot_lock = asyncio.Lock()
        self._bursts: dict[tuple[str, int, int, int], Burst] = {}
        self._wake_due = False
        self._repair_to = 0
        self._repairing = False
        self._counted_bytes = 0
        self._moved: list[asyncio.Future[None]] = []

    # --- what watchers ask --------------------------------------------------------------------------------

    @property
    def view(self) -> View:
        """Where its history is."""
        return self._owner.view

    @property
    def history_slots(self) -> asyncio.Semaphore:
        """How many may read history at a time, over all hubs."""
        return self._owner.history_slots

    @property
    def history_room(self) -> HistoryRoom:
        """What readers may hold of it, over all hubs."""
        return self._owner.history_room

    @property
    def status(self) -> str:
        """The run's status at the head."""
        return self._status.status if self._status else ""

    @property
    def terminal(self) -> bool:
        """Whether the run is over, and everything up to its end has arrived."""
        status = self._status
        return status is not None and status.terminal and status.through <= self.head.sequence

    def standing(self, hole: Hole | None = None) -> Head:
        """What there is to resume in, as far as reading it went."""
        if hole is None:
            return Head(self.head, self.terminal)
        return Head(self.head, self.terminal, hole.got, hole.is_declared)

    def report(self, hole: Hole) -> None:
        """Facts are missing: what somebody has to look into."""
        self._owner.meters.holes += 1
        _log.error("%s", hole, extra=about_run(self.run, event=LogEvent.VIEW_HOLE))

    def holds(self, sequence: int) -> bool:
        """Whether everything after a sequence is at hand, without reading history."""
        return sequence >= self.head.sequence or self._ring.holds(sequence)

    def commits_after(self, sequence: int) -> list[ViewCommit]:
        """What follows a sequence. Only if `holds(sequence)`."""
        return [entry.commit for entry in self._ring.after(sequence)]

    def burst(self, encoder: FactFrames, *, after: int, through: int = 0, max_facts: int = 0) -> Burst:
        """Frames after a sequence, some at a time. Only if `holds(after)` and there is something.

        `through`: whole commits up to there, 0: all. `max_facts`: no more than so many, 0: no bound.
        """
        key = (encoder.key, after, through, max_facts)
        known = self._bursts.get(key)
        if known is None:
            if len(self._bursts) >= MAX_BURSTS:
                self._bursts.clear()
            known = self._bursts[key] = self._make_burst(encoder, after, through or self.head.sequence, max_facts)
        return known

    def known_burst(self, encoder: FactFrames, after: int) -> Burst | None:
        """What somebody at the same place was given already; quickly told."""
        return self._bursts.get((encoder.key, after, 0, 0))

    def lane_after(self, sequence: int) -> Lane:
        """Of the facts after a sequence."""
        return Lane.CRITICAL if sequence < self.urgent_through else Lane.FACTS

    def _make_burst(self, encoder: FactFrames, after: int, through: int, max_facts: int) -> Burst:
        made = BurstMaker(Position(self.head.epoch, self.head.stream_seq, after), max_facts)
        for entry in self._ring.after(after):
            if entry.commit.last_sequence > through:
                break
            made.add(entry.commit, self._ring.frames(entry, encoder, after=made.position.sequence))
            if made.size_bytes >= self._owner.limits.burst_bytes or made.full:
                break
        self._account()
        return made.burst(self.lane_after(after))

    async def snapshot(self) -> EncodedSnapshot:
        """The state at the head; a large one also a little before, if what followed is at hand.

        Raises Retryable, Hole, ViewQuarantined.
        """
        async with self._snapshot_lock:
            known = self._snapshot
            if known is None or not self._is_good_enough(known):
                at = self._fold_ring() or await self._owner.states.at_least(self.run, self.head.sequence)
                # Of a state of many megabytes the checksum alone takes a second: others go on in between.
                is_large = at.position.sequence > LARGE_RUN_FACTS
                encoding = asyncio.to_thread(encoded_snapshot, self.run, at) if is_large else None
                known = self._snapshot = encoded_snapshot(self.run, at) if encoding is None else await encoding
            return known

    def _is_good_enough(self, known: EncodedSnapshot) -> bool:
        sequence = known.position.sequence
        return sequence >= self.head.sequence or (known.size_bytes > LARGE_SNAPSHOT_BYTES and self.holds(sequence))

    def _fold_ring(self) -> Folded | None:
        if self.head.sequence > SHORT_RUN_FACTS or not self._ring.holds(0):
            return None
        state = initial_state(*self.run)
        try:
            for entry in self._ring.after(0):
                for fact in decode_lean_commit(entry.commit.body).facts:
                    fold(state, fact)
        except Poison:
            return None
        return StateAt(state, self.head)

    async def reached(self, sequence: int, *, within_s: float) -> bool:
        """Wait until the view has reached a sequence; False: it did not in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while self.head.sequence < sequence:
            moved = loop.create_future()
            self._moved.append(moved)
            try:
                async with asyncio.timeout_at(deadline):
                    await moved
            except TimeoutError:
                return self.head.sequence >= sequence
        return True

    @asynccontextmanager
    async def with_previews(self) -> AsyncIterator[PreviewLanes]:
        """The preview lanes, subscribed to while anyone wants it. Raises Retryable."""
        self._preview_users += 1
        try:
            async with self._preview_lock:
                if self.previews is None:
                    self._preview_live = await self._owner.feed.previews(self.run, self._on_previews)
                    self.previews = PreviewLanes(self._owner.limits.preview_bytes, self._owner.preview_budget)
                lane = self.previews
            yield lane
        finally:
            self._preview_users -= 1
            if self._preview_users == 0:
                asyncio.get_running_loop().call_later(self._owner.limits.linger_s, self._leave_previews)

    def _leave_previews(self) -> None:
        if self._preview_users == 0 and self._preview_live is not None and self._live is not None:
            subscription, self._preview_live = self._preview_live, None
            self._drop_previews()
            self._owner.spawn(subscription.close())

    def _drop_previews(self) -> None:
        if self.previews is not None:
            self.previews.close()
            self.previews = None

    # --- opening and closing ------------------------------------------------------------------------------

    async def open(self) -> None:
        """Subscribe, then look where the run is. Raises RunAbsent, Retryable."""
        self._live = await self._owner.feed.commits(self.run, self.on_commit)
        head = await self._owner.view.head(self.run)
        if head is None:
            raise RunAbsent(self.run.run_id)
        commits = await self._whole_run(head)
        if commits:
            self._status = RunStatus(initial_state(*self.run))
        else:
            commits = [head]
            self._status = await self._owner.states.status(self.run, head.last_sequence)
        self.head = Position(head.epoch, head.stream_seq, commits[0].first_sequence - 1)
        early, self._early = self._early or [], None
        for commit in [*commits, *early]:
            self.on_commit(commit)

    async def _whole_run(self, head: ViewCommit) -> list[ViewCommit]:
        """Every commit of a short run, so that nobody has to read its history; empty when it is not short."""
        if head.last_sequence > SHORT_RUN_FACTS:
            return []
        history = History(self._owner.view, self.run, Position("", 0, 0))
        try:
            commits = await history.next(self._owner.limits.ring_bytes // 2)
        except (Hole, Retryable):  # an archive that does not answer keeps nobody from the state
            return []
        return commits if commits and commits[-1].last_sequence >= head.last_sequence else []

    async def close(self) -> None:
        """Unsubscribe. May be called again."""
        self.closed = True
        subscriptions = [one for one in (self._live, self._preview_live) if one is not None]
        self._live = self._preview_live = None
        self._drop_previews()
        self._owner.ring_bytes -= self._counted_bytes
        self._counted_bytes = 0
        for subscription in subscriptions:
            await subscription.close()

    # --- what arrives -------------------------------------------------------------------------------------

    def on_commit(self, commit: ViewCommit) -> None:
        """A commit from the subscription or from a repair; may be early, repeated, or leave a gap before it."""
        if self._live is None:
            return
        if self._early is not None:
            self._early.append(commit)
        elif commit.first_sequence == self.head.sequence + 1:
            self._append(commit)
        elif commit.last_sequence > self.head.sequence:
            self.want(commit.last_sequence)

    def _append(self, commit: ViewCommit) -> None:
        facts = commit.facts()
        if facts and facts[0].type == LogCompacted.TYPE:
            self._ring.forget()  # it holds what was taken out: a cursor into that is told so by every gateway alike
        self._ring.append(commit)
        self.head = commit.position
        for fact in facts:
            if self._status is not None:
                self._status.apply(fact)
            if fact.preview_id is not None and self.previews is not None:
                self.previews.retire(fact.preview_id)
            if is_critical(fact.type):
                self.urgent_through = fact.sequence
        self._account()
        if self._owner.ring_bytes > self._owner.limits.total_ring_bytes:
            self._ring.shrink_to(self._owner.limits.burst_bytes)
            self._account()
        self._bursts.clear()
        moved, self._moved = self._moved, []
        for waiting in moved:
            if not waiting.done():
                waiting.set_result(None)
        self._wake_soon()

    def _account(self) -> None:
        self._owner.ring_bytes += self._ring.size_bytes - self._counted_bytes
        self._counted_bytes = self._ring.size_bytes

    def _on_previews(self, body: bytes) -> None:
        if self.previews is not None and not self.terminal and self.previews.append_batch(body):
            self._wake_soon()

    def _wake_soon(self) -> None:
        # What arrives in the same turn of the loop is told, and written, together.
        if not self._wake_due:
            self._wake_due = True
            asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        self._wake_due = False
        for listener in tuple(self.listeners):
            listener.wake()

    # --- repair -------------------------------------------------------------------------------------------

    def want(self, sequence: int) -> None:
        """The run has reached `sequence`, and it did not come live: read it."""
        self._repair_to = max(self._repair_to, sequence)
        if not self._repairing:
            self._repairing = True
            self._owner.spawn(self._repair())

    async def _repair(self) -> None:
        self._owner.meters.repairs += 1
        attempt = 0
        try:
            while self.head.sequence < self._repair_to and self._live is not None:
                try:
                    moved = await self._read_on()
                except (Retryable, TimeoutError) as exc:
                    _log.warning("a repair waits: %r", exc, extra=about_run(self.run, event=LogEvent.VIEW_UNREACHABLE))
                    moved = False
                # A replica that answers may be a moment behind the one that told us.
                attempt = 0 if moved else attempt + 1
                if not moved:
                    await asyncio.sleep(min(0.02 * 2**attempt, 0.5))
        except Hole as exc:
            self.report(exc)
            self._break()
        except Exception:  # noqa: BLE001 - whatever it is, other runs go on
            _log.exception("a run cannot be followed", extra=about_run(self.run, event=LogEvent.VIEW_BROKEN))
            self._break()
        finally:
            self._repairing = False

    async def _read_on(self) -> bool:
        before = self.head.sequence
        history = History(self._owner.view, self.run, self.head, trusted=True)
        async with asyncio.timeout(self._owner.limits.read_timeout_s):
            for commit in await history.next(self._owner.limits.page_bytes):
                if commit.first_sequence == self.head.sequence + 1:
                    self._append(commit)
        return self.head.sequence > before

    def _break(self) -> None:
        self.broken = True
        for listener in tuple(self.listeners):
            listener.lose()


class Hubs:
    """All hubs of one gateway, by run. Opened when first watched, closed some seconds after the last watcher left."""

    def __init__(
        self,
        *,
        view: View,
        feed: Feed,
        states: RunStates,
        limits: HubLimits,
        meters: Meters,
        jitter: Callable[[], float],
    ) -> None:
        self.view = view
        self.feed = feed
        self.states = states
        self.limits = limits
        self.meters = meters
        self.ring_bytes = 0
        self.preview_budget = PreviewBudget(limits.total_preview_bytes)
        self.history_room = HistoryRoom(limits.history_bytes)
        self.history_slots = asyncio.Semaphore(limits.history_readers)
        self._jitter = jitter
        self._hubs: dict[RunAddress, RunHub] = {}
        self._wanted: Counter[RunAddress] = Counter()
        self._opening: dict[RunAddress, asyncio.Task[RunHub | Exception]] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._sweep_now = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._tasks = await asyncio.TaskGroup().__aenter__()
        self._sweeper = self.start(self._sweep_for_ever())
        return self

    async def __aexit__(self, *error: object) -> None:
        tasks, self._tasks = self._tasks, None
        self._sweeper.cancel()
        for opening in self._opening.values():
            opening.cancel()
        for hub in tuple(self._hubs.values()):
            await hub.close()
        self._hubs.clear()
        if tasks is not None:
            await tasks.__aexit__(None, None, None)

    def start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run something beside, until the hubs are closed. Raises Retryable when they are."""
        if self._tasks is None:
            work.close()
            raise Retryable("shutting down")
        return self._tasks.create_task(work)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside that nobody asks about. Raises Retryable when the hubs are closed."""
        self.start(_guarded(work)).set_name("hub work")

    @asynccontextmanager
    async def use(self, run: RunAddress) -> AsyncIterator[RunHub]:
        """The hub of a run, open. Raises RunAbsent, TooManyRuns, Retryable."""
        self._wanted[run] += 1
        try:
            hub = await self._get(run)
            hub.users += 1
        finally:
            self._wanted[run] -= 1
            if not self._wanted[run]:
                del self._wanted[run]
        try:
            yield hub
        finally:
            hub.users -= 1
            if hub.users == 0:
                self._linger(hub)

    def sweep_soon(self) -> None:
        """Something may have been missed (a reconnect): look now."""
        self._sweep_now.set()

    async def _get(self, run: RunAddress) -> RunHub:
        hub = self._hubs.get(run)
        if hub is not None and not hub.broken:
            return hub
        opening = self._opening.get(run)
        if opening is None:
            if len(self._hubs) >= self.limits.max_hubs:
                raise TooManyRuns
            opening = self._opening[run] = self.start(self._open(run))
            opening.add_done_callback(lambda _task: self._opening.pop(run, None))
        outcome = await asyncio.shield(opening)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def _open(self, run: RunAddress) -> RunHub | Exception:
        """Never raises: a failed task would end the whole group."""
        hub = RunHub(run, self)
        try:
            async with asyncio.timeout(self.limits.read_timeout_s):
                await hub.open()
        except (RunAbsent, KernelError, TimeoutError) as exc:
            await hub.close()
            return Retryable("the view does not answer") if isinstance(exc, TimeoutError) else exc
        self._hubs[run] = hub
        self.meters.hubs = len(self._hubs)
        self._linger(hub)
        return hub

    def _linger(self, hub: RunHub) -> None:
        delay_s = self.limits.linger_s * (1 + 0.2 * self._jitter())
        asyncio.get_running_loop().call_later(delay_s, self._leave, hub)

    def _leave(self, hub: RunHub) -> None:
        if hub.users or hub.closed or self._tasks is None:
            return
        if hub.run in self._wanted:  # somebody is about to take it
            self._linger(hub)
            return
        hub.closed = True
        if self._hubs.get(hub.run) is hub:
            del self._hubs[hub.run]
            self.meters.hubs = len(self._hubs)
        self.spawn(hub.close())

    # --- sweep --------------------------------------------------------------------------------------------

    async def _sweep_for_ever(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.limits.sweep_s * (0.8 + 0.4 * self._jitter())):
                    await self._sweep_now.wait()
            self._sweep_now.clear()
            try:
                await self._sweep()
            except KernelError as exc:
                _log.warning("the sweep waits: %s", exc, extra={"event": LogEvent.VIEW_UNREACHABLE})

    async def _sweep(self) -> None:
        known = {run: hub.head for run, hub in self._hubs.items() if not hub.terminal}
        if not known:
            return
        for run, sequence in (await self.view.newer(known)).items():
            hub = self._hubs.get(run)
            if hub is not None and hub.head.sequence < sequence:
                self.meters.swept += 1
                hub.want(sequence)


async def _guarded(work: Coroutine[Any, Any, None]) -> None:
    """One failure must not end the group, and with it every watch."""
    try:
        await work
    except Exception:  # noqa: BLE001
        _log.exception("work beside failed", extra={"event": LogEvent.SERVICE_FAILED})


__all__ = ["HubLimits", "Hubs", "Listener", "RunAbsent", "RunHub", "TooManyRuns"]
