"""What goes out next to one reader of one run, whatever it is written on: a place in the run, and its four lanes.

It knows nothing of connections, and nothing here waits. Whoever writes asks `take` for the next piece that there is
room for. When there is none, `want` says what to wait for, and `notify` is called when it is time to ask again. Facts
wait in the hub's ring or in the view, never in here: of history a page or two are held, and dropped when the reader
does not take them.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Protocol

from runlane.edge_gateway.burst import Burst, BurstMaker, Piece
from runlane.edge_gateway.frames import Chunk, FactFrames
from runlane.edge_gateway.history import SMALL_PAGE_BYTES, History, Hole
from runlane.edge_gateway.hub import RunHub
from runlane.edge_gateway.lanes import Lane
from runlane.edge_gateway.meters import Meters
from runlane.edge_gateway.pressure import Pressure, PressureLimits
from runlane.edge_gateway.preview_lane import PreviewLanes
from runlane.edge_gateway.preview_reader import PreviewReader
from runlane.edge_gateway.run_state import EncodedSnapshot
from runlane.edge_gateway.view import ViewCommit
from runlane.kernel.errors import KernelError
from runlane_contracts.cursor import REDUCER_VERSION, Position
from runlane_contracts.resume import End, EndReason, Hello, Mark, Outcome, ResetReason, Synced

_STALE_TRIES = 100

Page = tuple[ViewCommit, ...]
Fetched = Page | None
"""None: what follows is not in the view."""


class Start(Protocol):
    """Runs something beside, until it is done or cancelled."""

    def __call__(self, work: Coroutine[Any, Any, Fetched], /) -> "asyncio.Task[Fetched]":
        """The task."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingLimits:
    """Sizes of one reader's share."""

    preview_bytes: int = 16 * 1024
    burst_bytes: int = 32 * 1024
    page_bytes: int = 512 * 1024
    stale_retry_s: float = 0.05
    heartbeat_s: float = 12.0
    pressure: PressureLimits = field(default_factory=PressureLimits)


@dataclass(slots=True, kw_only=True)
class Plan:
    """What was decided before the stream opened. What is large in it is let go of once it was taken over."""

    outcome: Outcome
    after: Position
    encoder: FactFrames
    previews: PreviewLanes | None = None
    snapshot: EncodedSnapshot | None = None
    reason: ResetReason | None = None
    history: History | None = None
    first_page: Page = ()


class Want(Enum):
    """What it takes to go on when `take` has nothing."""

    NEWS = auto()  # wait until `notify` is called
    ROOM = auto()  # there is something, in a lane that was not allowed
    END = auto()  # the run is over and everything was taken
    NOTHING = auto()  # what follows is not in the view: break off


class Outgoing:
    """One reader's place, and what comes after it."""

    __slots__ = (
        "_ahead", "_history", "_hub", "_limits", "_loop", "_meters", "_notify", "_page", "_page_begun", "_page_bytes",
        "_pressure", "_previews", "_retry", "_stale", "_start", "_status", "_waking", "encoder", "gone", "high_water",
        "ids_sent", "plan", "position", "synced",
    )  # fmt: skip

    def __init__(
        self,
        hub: RunHub,
        plan: Plan,
        *,
        notify: Callable[[], None],
        start: Start,
        limits: OutgoingLimits,
        meters: Meters,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._hub = hub
        self._notify = notify
        self._start = start
        self._limits = limits
        self._meters = meters
        self.plan = plan
        self.encoder = plan.encoder
        self.position = plan.snapshot.position if plan.snapshot else plan.after
        self.high_water = max(hub.head.sequence, self.position.sequence)
        self.synced = False
        self.gone = False
        """What follows is not in the view."""
        self.ids_sent = False
        """Whether anything was taken that carries a cursor."""
        self._history = plan.history
        self._page: deque[ViewCommit] = deque()
        self._page_begun = False
        self._hold(plan.first_page)
        plan.history, plan.first_page = None, ()
        self._ahead: asyncio.Task[Fetched] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._page_bytes = limits.page_bytes
        self._stale = 0
        lanes = plan.previews
        self._status = None if lanes is None else PreviewReader(lanes.status, meters.previews)
        self._previews = None if lanes is None else PreviewReader(lanes.previews, meters.previews)
        self._pressure = Pressure(limits.pressure)
        self._waking: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """From now on `notify` is called."""
        self._hub.listeners.add(self)
        self.gone = self.gone or self._hub.broken

    def wake(self) -> None:
        """The hub has something new."""
        self._notify()

    def lose(self) -> None:
        """The hub cannot go on."""
        self.gone = True
        self._notify()

    def close(self) -> None:
        """Nobody takes any more. May be called again."""
        self._hub.listeners.discard(self)
        self.forget_page()
        self._wake_no_more()
        self._status = self._previews = None

    # --- what is said around it ---------------------------------------------------------------------------

    def hello(self) -> Hello:
        """Always said first."""
        plan, head = self.plan, self._hub.head
        high_water = head if head.sequence >= self.high_water else self.position
        self.high_water = high_water.sequence
        return Hello(
            outcome=plan.outcome, run_id=self._hub.run.run_id, status=self._hub.status,
            baseline=self._mark(self.position), high_water=self._mark(high_water),
            reducer_version=REDUCER_VERSION, heartbeat_s=self._limits.heartbeat_s,
            filter={"types": list(self.encoder.types.types), "previews": self._previews is not None},
            reason=plan.reason,
        )  # fmt: skip

    def snapshot(self) -> bytes | None:
        """The frame that is said next, if the plan has a snapshot."""
        snapshot = self.plan.snapshot
        if snapshot is None:
            return None
        self.plan.snapshot = None
        self.ids_sent = True
        cursor = self.encoder.cursor(snapshot.position)
        return self.encoder.wire.frame("snapshot", snapshot.with_cursor(cursor), cursor)

    def end(self, reason: EndReason, *, retry_after_ms: int | None = None) -> End:
        """Always said last."""
        return End(reason=reason, cursor=self.encoder.cursor(self.position), retry_after_ms=retry_after_ms)

    def _mark(self, position: Position) -> Mark:
        return Mark(sequence=position.sequence, cursor=self.encoder.cursor(position))

    # --- what comes next ----------------------------------------------------------------------------------

    @property
    def behind(self) -> bool:
        """Whether there are facts to take."""
        return self.position.sequence < self._hub.head.sequence

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to take and nothing to do until `notify` is called; quickly told."""
        previews = self._previews
        if previews is not None and (previews.pending or (self._status is not None and self._status.pending)):
            return False
        hub = self._hub
        return self.position.sequence >= hub.head.sequence and self.synced and not hub.terminal

    @property
    def lane(self) -> Lane | None:
        """The most urgent lane that has something."""
        if self.behind or not self.synced:
            return self._hub.lane_after(self.position.sequence)
        if self._status is None or self._previews is None or self._hub.terminal:
            return None
        if self._status.pending:
            return Lane.STATUS
        return Lane.PREVIEWS if self._previews.pending and self._waking is None else None

    @property
    def want(self) -> Want:
        """What to do when `take` had nothing."""
        if self.gone:
            return Want.NOTHING
        if self.behind:
            return Want.NEWS if self._waits_for_page else Want.ROOM
        if self._hub.terminal and self.synced:
            return Want.END
        return Want.NEWS if self.lane is None else Want.ROOM

    def take(self, lowest: Lane | None = Lane.PREVIEWS, *, max_facts: int | None = None) -> Piece | None:
        """What comes next and is at hand, if its lane is `lowest` or more urgent (None: nothing may be written now).

        `max_facts`: no more than so many. Facts are never overtaken: while there are some, even if they are not allowed
        just now, there is no preview.
        """
        if max_facts is None and lowest is not None and lowest >= Lane.FACTS and self.synced and not self.holds_page:
            known = self._hub.known_burst(self.encoder, self.position.sequence)
            if known is not None and known.sequences:
                return self._taken(known)  # as the thousand others at this place
        lane = self.lane
        if lane is None or self.gone:
            return None
        if lowest is None or lane > lowest:
            if lane is Lane.PREVIEWS and self._previews is not None:
                self._meters.coalescings += self._pressure.closed(self._previews.pending_bytes, self._loop.time())
            return None
        if lane > Lane.FACTS:
            return self._take_status(lowest) if lane is Lane.STATUS else self._take_previews()
        if self._is_to_say_synced:
            return self._take_synced()
        return None if max_facts == 0 else self._take_facts(max_facts or 0)

    @property
    def _is_to_say_synced(self) -> bool:
        return not self.synced and self.position.sequence >= self.high_water

    def _take_synced(self) -> Piece:
        self.synced = True
        return Piece(Lane.FACTS, Chunk(self.encoder.struct("synced", Synced(sequence=self.position.sequence))))

    def _take_facts(self, max_facts: int) -> Piece | None:
        while self.behind:
            burst = self._next_burst(max_facts)
            if burst is None or burst.position.sequence == self.position.sequence:
                return None
            if burst.sequences:
                return self._taken(burst)
            self.position = burst.position
            if self._is_to_say_synced:
                return self._take_synced()
        return None

    def _taken(self, burst: Burst) -> Piece:
        self.position = burst.position
        self.ids_sent = True
        self._meters.facts_sent += len(burst.sequences)
        return burst

    def _next_burst(self, max_facts: int) -> Burst | None:
        through = 0 if self.synced else self.high_water
        if self._hub.holds(self.position.sequence):
            if self.holds_page:
                self.forget_page()  # it was read for another place
            shared = self._hub.burst(self.encoder, after=self.position.sequence, through=through)
            if not max_facts or shared.facts <= max_facts:
                return shared
            return self._hub.burst(self.encoder, after=self.position.sequence, through=through, max_facts=max_facts)
        if not self._page:
            self._turn_page()
        return self._page_burst(through, max_facts) if self._page else None

    def _page_burst(self, through: int, max_facts: int) -> Burst:
        if self._page_begun and self._ahead is None and self._history is not None and not self._history.exhausted:
            self._read(self._history)  # it takes what was read, so it will want the next one
        self._page_begun = True
        made = BurstMaker(self.position, max_facts)
        while self._page and made.size_bytes < self._limits.burst_bytes and not made.full:
            commit = self._page[0]
            made.add(commit, self.encoder.encode(commit, after=made.position.sequence))
            if made.position.sequence < commit.last_sequence:
                break
            self._page.popleft()
            self._hub.history_room.used_bytes -= len(commit.body)
            if through and made.position.sequence >= through:
                break
        self._page_bytes = min(self._page_bytes * 2, self._limits.page_bytes)
        return made.burst(self._hub.lane_after(self.position.sequence))

    # --- what may be lost ---------------------------------------------------------------------------------

    def _take_status(self, lowest: Lane) -> Piece | None:
        if self._status is None:
            return None
        while self._status.pending:
            chunk = self._status.take(self._limits.preview_bytes, self.encoder.wire, merge=True)
            if chunk is not None:
                return Piece(Lane.STATUS, chunk)
        return self.take(lowest)

    def _take_previews(self) -> Piece | None:
        previews, pressure, now = self._previews, self._pressure, self._loop.time()
        if previews is None:
            return None
        self._meters.coalescings += pressure.opened(previews.pending_bytes, now)
        wait_s = pressure.wait_s(previews.pending_bytes, now)
        if wait_s > 0:
            self._waking = self._loop.call_later(wait_s, self._wake_again)
            return None
        chunk = None
        while chunk is None and previews.pending:
            chunk = previews.take(self._limits.preview_bytes, self.encoder.wire, merge=pressure.merges)
        if not previews.pending:
            pressure.emptied(now)
        return None if chunk is None else Piece(Lane.PREVIEWS, chunk)

    def _wake_again(self) -> None:
        self._waking = None
        self._notify()

    def _wake_no_more(self) -> None:
        if self._waking is not None:
            self._waking.cancel()
            self._waking = None

    # --- history ------------------------------------------------------------------------------------------

    @property
    def holds_page(self) -> bool:
        """Whether history is in memory for this reader alone."""
        return bool(self._page) or self._ahead is not None

    def slow_down(self) -> None:
        """The reader does not take what was read: hold nothing for it, and read less the next time."""
        self.forget_page()
        self._page_bytes = SMALL_PAGE_BYTES

    def forget_page(self) -> None:
        """Hold no history. It is read again when it is wanted."""
        self._hub.history_room.used_bytes -= sum(len(commit.body) for commit in self._page)
        self._page.clear()
        self._history = None
        if self._ahead is not None:
            self._ahead.cancel()
            self._ahead = None
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    @property
    def _waits_for_page(self) -> bool:
        is_reading = self._retry is not None or (self._ahead is not None and not self._ahead.done())
        return is_reading and not self._page and not self._hub.holds(self.position.sequence)

    def _turn_page(self) -> None:
        if self._ahead is None:
            if self._retry is None:
                if self._history is None or self._history.sequence != self.position.sequence:
                    self._history = History(self._hub.view, self._hub.run, self.position)
                self._read(self._history)
        elif self._ahead.done():
            fetched = self._ahead.result()
            self._ahead = None
            self._take_in(fetched)

    def _take_in(self, fetched: Fetched) -> None:
        if fetched is None:
            self.gone = True
        elif fetched:
            self._stale = 0
            self._hold(fetched)
        else:
            # The replica that answers may be a moment behind the one that told us.
            self._stale += 1
            self.gone = self._stale > _STALE_TRIES
            self._retry = self._loop.call_later(self._limits.stale_retry_s, self._read_again)

    def _hold(self, page: Page) -> None:
        self._page.extend(page)
        self._page_begun = False
        self._hub.history_room.used_bytes += sum(len(commit.body) for commit in page)

    def _read_again(self) -> None:
        self._retry = None
        self._notify()

    def _read(self, history: History) -> None:
        self._ahead = self._start(self._fetch(history))
        self._ahead.add_done_callback(self._was_read)

    def _was_read(self, task: "asyncio.Task[Fetched]") -> None:
        if not task.cancelled():
            self._notify()

    async def _fetch(self, history: History) -> Fetched:
        """Never raises: a failed task would end the whole group."""
        self._meters.history_pages += 1
        try:
            async with self._hub.history_slots:
                return tuple(await history.next(self._hub.history_room.page_bytes(self._page_bytes)))
        except Hole:
            self._meters.holes += 1
            return None
        except KernelError:
            return ()
