"""One connection that follows one run: a position, and what it takes to move it.

The watcher's task reads history, waits for slow clients and says goodbye. Once it is caught up it sleeps, and the
hub drives it: `wake` writes what is new straight to the connection, without a task switch, and calls the task
back only for what needs waiting.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from runlane.edge_gateway.connection import AsgiConnection, Chunk, Connection, ConnectionLost, Stalled
from runlane.edge_gateway.frames import FACT_EVENT, HEARTBEAT, FactFrames, frame, retry_hint, struct_frame
from runlane.edge_gateway.history import History, Hole
from runlane.edge_gateway.hub import RunHub
from runlane.edge_gateway.meters import Meters
from runlane.edge_gateway.preview_lane import PreviewLane, PreviewReader
from runlane.edge_gateway.run_state import EncodedSnapshot
from runlane.edge_gateway.view import ViewCommit
from runlane.kernel.errors import KernelError
from runlane_contracts.cursor import REDUCER_VERSION, Position
from runlane_contracts.resume import End, EndReason, Hello, Mark, Outcome, ResetReason, Synced

_HEARTBEAT = Chunk(HEARTBEAT)
_SLOW_PAGE_BYTES = 64 * 1024
_STALE_TRIES = 100


Page = tuple[ViewCommit, ...]


class Start(Protocol):
    """Runs something beside, until it is done or cancelled."""

    def __call__(self, work: Coroutine[Any, Any, Page], /) -> "asyncio.Task[Page]":
        """The task."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchLimits:
    """Times and sizes of one watch."""

    heartbeat_s: float = 12.0
    stall_s: float = 30.0
    """A client that takes nothing for so long is closed."""
    patience_s: float = 0.25
    """A client that takes nothing for so long has the page it was reading dropped, and read again later."""
    goodbye_s: float = 5.0
    lifetime_s: float = 0.0
    """0: no bound."""
    reauthorize_s: float = 1.0
    preview_bytes: int = 16 * 1024
    burst_bytes: int = 32 * 1024
    page_bytes: int = 512 * 1024
    stale_retry_s: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What was decided before the stream opened."""

    outcome: Outcome
    after: Position
    encoder: FactFrames
    previews: PreviewLane | None = None
    snapshot: EncodedSnapshot | None = None
    reason: ResetReason | None = None
    history: History | None = None
    first_page: Page = ()


class Watcher:
    """Writes `hello`, what the plan says, then everything that comes, then `end`."""

    __slots__ = (
        "_ahead", "_attention", "_backlog", "_blocked_since", "_connection", "_encoder", "_first_page", "_gone",
        "_heartbeat_due", "_heartbeat_s", "_high_water", "_history", "_hub", "_ids_sent", "_last_write", "_limits",
        "_loop", "_meters", "_opened_at", "_page_bytes", "_plan", "_position", "_previews", "_stale", "_start", "_stop",
        "_synced", "_waiting",
    )  # fmt: skip

    def __init__(
        self, hub: RunHub, plan: Plan, *, start: Start, limits: WatchLimits, meters: Meters, jitter: float
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._hub = hub
        self._start = start
        self._plan = plan
        self._limits = limits
        self._meters = meters
        self._encoder = plan.encoder
        self._position = plan.snapshot.position if plan.snapshot else plan.after
        self._high_water = max(hub.head.sequence, self._position.sequence)
        self._history = plan.history
        self._first_page = plan.first_page
        self._ahead: asyncio.Task[Page] | None = None
        self._page_bytes = limits.page_bytes
        self._previews = PreviewReader(plan.previews) if plan.previews is not None else None
        self._heartbeat_s = limits.heartbeat_s * (0.75 + 0.25 * jitter)
        self._synced = False
        self._ids_sent = False
        self._heartbeat_due = False
        self._stop: EndReason | None = None
        self._gone = False  # the hub cannot go on
        self._waiting = ""
        self._attention: asyncio.Future[None] | None = None
        self._opened_at = self._last_write = self._blocked_since = self._loop.time()
        self._backlog = 0
        self._stale = 0
        self._connection: Connection

    # --- the task -----------------------------------------------------------------------------------------

    async def run(self, connection: Connection) -> None:
        """Follow until the run, the client or the gateway ends. Returns when the response is over."""
        self._connection = connection
        self._hub.listeners.add(self)
        try:
            if isinstance(connection, AsgiConnection):
                await self._run_beside(connection)
            else:
                await self._run()
        finally:
            self._hub.listeners.discard(self)
            self._forget_page()
            self._count_previews()

    async def _run_beside(self, connection: AsgiConnection) -> None:
        async with asyncio.TaskGroup() as tasks:
            noticing = tasks.create_task(connection.watch_disconnect())
            await self._run()
            noticing.cancel()

    async def _run(self) -> None:
        try:
            await self._open()
            await self._follow()
        except ConnectionLost:
            await self._connection.part(None, within_s=self._limits.goodbye_s)
            return
        except Stalled:
            self._stop = EndReason.SLOW_READER
            self._meters.slow_readers += 1
            return
        await self._close()

    async def _open(self) -> None:
        plan = self._plan
        head = self._hub.head
        high_water = head if head.sequence >= self._high_water else self._position
        hello = Hello(
            outcome=plan.outcome, run_id=self._hub.run.run_id, status=self._hub.status,
            baseline=self._mark(self._position), high_water=self._mark(high_water),
            reducer_version=REDUCER_VERSION, heartbeat_s=self._limits.heartbeat_s,
            filter={"types": list(self._encoder.types.types), "previews": self._previews is not None},
            reason=plan.reason,
        )  # fmt: skip
        self._high_water = high_water.sequence
        first = struct_frame("hello", hello)
        if plan.snapshot is not None:
            cursor = self._encoder.cursor(plan.snapshot.position)
            first += frame("snapshot", plan.snapshot.with_cursor(cursor), id_=cursor)
            self._ids_sent = True
        parts, size = [first], len(first)
        while size < self._limits.burst_bytes and (chunk := self._next()) is not None:
            parts.append(chunk.data)
            size += len(chunk.data)
        await self._write(Chunk(b"".join(parts)))

    def _mark(self, position: Position) -> Mark:
        return Mark(sequence=position.sequence, cursor=self._encoder.cursor(position))

    async def _follow(self) -> None:
        while self._stop is None and not self._gone:
            if self._connection.lost:
                raise ConnectionLost
            if self._connection.paused:
                await self._room()
                continue
            if self._heartbeat_due:
                self._heartbeat_due = False
                await self._write(_HEARTBEAT)
                continue
            chunk = self._next()
            if chunk is not None:
                await self._write(chunk)
            elif self._position.sequence < self._hub.head.sequence:
                await self._read_history()
            elif self._hub.terminal:
                self._stop = EndReason.RUN_TERMINAL
            else:
                await self._wait("news")

    def _next(self) -> Chunk | None:
        """What comes next and is at hand; the position has moved past it."""
        hub = self._hub
        while self._position.sequence < hub.head.sequence or not self._synced:
            if not self._synced and self._position.sequence >= self._high_water:
                self._synced = True
                return Chunk(struct_frame("synced", Synced(sequence=self._position.sequence)))
            if not hub.holds(self._position.sequence):
                return None
            through = None if self._synced else self._high_water
            burst = hub.burst(self._encoder, after=self._position.sequence, through=through)
            if burst.position.sequence == self._position.sequence:
                return None
            self._position = burst.position
            self._forget_page()  # it was read for another place
            if burst.facts:
                self._ids_sent = True
                self._meters.facts_sent += burst.facts
                return burst.chunk
        return self._next_preview()

    def _next_preview(self) -> Chunk | None:
        if self._previews is not None and self._previews.pending and not self._hub.terminal:
            frames = self._previews.take(self._limits.preview_bytes)
            if frames:
                return Chunk(b"".join(frames))
        if self._heartbeat_due:
            self._heartbeat_due = False
            return _HEARTBEAT
        return None

    async def _write(self, chunk: Chunk) -> None:
        await self._connection.write(chunk)
        self._last_write = self._loop.time()

    # --- history ------------------------------------------------------------------------------------------

    async def _read_history(self) -> None:
        """One page, written as far as the client takes it, while the next one is read."""
        commits = self._first_page or await self._next_page()
        self._first_page = ()
        if commits and self._history is not None and not self._history.exhausted:
            self._ahead = self._start(self._fetch(self._history))
        parts: list[bytes] = []
        size = 0
        position = self._position
        for commit in commits:
            made = self._encoder.encode(commit, after=position.sequence, through=commit.last_sequence)
            position = commit.position
            parts.append(made)
            size += len(made)
            at_mark = not self._synced and position.sequence >= self._high_water
            if size >= self._limits.burst_bytes or at_mark or commit is commits[-1]:
                if not await self._write_history(b"".join(parts), position):
                    return
                parts, size = [], 0
                if at_mark and (synced := self._next()) is not None:
                    await self._write(synced)
                position = self._position
                if self._stop is not None or self._hub.holds(position.sequence):
                    return

    async def _next_page(self) -> Page:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            commits = await ahead
        else:
            if self._history is None or self._history.sequence != self._position.sequence:
                self._history = History(self._hub.view, self._hub.run, self._position)
            commits = await self._fetch(self._history)
        if commits:
            self._stale = 0
            return commits
        # The replica that answers may be a moment behind the one that told us.
        self._stale += 1
        self._gone = self._gone or self._stale > _STALE_TRIES
        await asyncio.sleep(self._limits.stale_retry_s)
        return ()

    async def _fetch(self, history: History) -> Page:
        """Never raises: a failed task would end the whole group."""
        self._meters.history_pages += 1
        try:
            async with self._hub.history_slots:
                return tuple(await history.next(self._page_bytes))
        except Hole:
            self._meters.holes += 1
            self._gone = True
        except KernelError:
            pass
        return ()

    def _forget_page(self) -> None:
        self._first_page, self._history = (), None
        if self._ahead is not None:
            self._ahead.cancel()
            self._ahead = None

    async def _write_history(self, frames: bytes, position: Position) -> bool:
        if frames:
            if self._connection.paused and not await self._soon_room():
                self._forget_page()  # a client that does not read holds no page in memory
                self._page_bytes = _SLOW_PAGE_BYTES
                return False
            await self._write(Chunk(frames))
            self._meters.facts_sent += frames.count(FACT_EVENT)
            self._ids_sent = True
        self._position = position
        self._page_bytes = min(self._page_bytes * 2, self._limits.page_bytes)
        return True

    # --- waiting ------------------------------------------------------------------------------------------

    async def _room(self) -> None:
        self._backlog = self._connection.backlog_bytes
        self._blocked_since = self._loop.time()
        await self._wait("room")

    async def _soon_room(self) -> bool:
        try:
            async with asyncio.timeout(self._limits.patience_s):
                while self._connection.paused and self._stop is None:
                    await self._room()
        except TimeoutError:
            return False
        if self._connection.lost:
            raise ConnectionLost
        return self._stop is None

    async def _wait(self, what: str) -> None:
        self._attention = self._loop.create_future()
        self._waiting = what
        try:
            await self._attention
        finally:
            self._waiting = ""
            self._attention = None

    def _call_task(self) -> None:
        if self._attention is not None and not self._attention.done():
            self._waiting = ""
            self._attention.set_result(None)

    # --- what others tell it ------------------------------------------------------------------------------

    def wake(self) -> None:
        """The hub has something new."""
        if self._waiting != "news":
            return
        while self._connection.writable:
            chunk = self._next()
            if chunk is None:
                break
            self._connection.write_now(chunk)
            self._last_write = self._loop.time()
        if self._needs_task():
            self._call_task()

    def lose(self) -> None:
        """The hub cannot go on."""
        self._gone = True
        self._call_task()

    def connection_moved(self) -> None:
        """There is room again, or the client is gone."""
        if self._connection.lost or (self._waiting == "room" and not self._connection.paused):
            self._call_task()

    @property
    def stopping(self) -> bool:
        """Whether it was told to end."""
        return self._stop is not None

    def stop(self, reason: EndReason) -> None:
        """Say `end` and close, after the frame that is being written."""
        if self._stop is None:
            self._stop = reason
        self._call_task()

    def tick(self, now: float) -> None:
        """Called about once a second."""
        if self._waiting == "room":
            backlog = self._connection.backlog_bytes
            if backlog < self._backlog:
                self._backlog, self._blocked_since = backlog, now
            elif now - self._blocked_since >= self._limits.stall_s:
                self.stop(EndReason.SLOW_READER)
        elif now - self._last_write >= self._heartbeat_s:
            self._heartbeat_due = True
            self.wake()
        if self._limits.lifetime_s and now - self._opened_at >= self._limits.lifetime_s:
            self.stop(EndReason.LIFETIME)

    def _needs_task(self) -> bool:
        return (
            self._position.sequence < self._hub.head.sequence
            or self._hub.terminal
            or self._heartbeat_due
            or (self._previews is not None and self._previews.pending > 0)
        )

    # --- the end ------------------------------------------------------------------------------------------

    async def _close(self) -> None:
        connection = self._connection
        if self._gone or self._stop is None:
            await connection.part(None, within_s=self._limits.goodbye_s)
            return
        end = self._end(self._stop)
        if self._stop is EndReason.SLOW_READER:
            self._meters.slow_readers += 1
        if connection.paused:
            await connection.part(end, within_s=self._limits.goodbye_s)
            return
        try:
            async with asyncio.timeout(self._limits.goodbye_s):
                await connection.write(end)
                await connection.finish()
        except TimeoutError:
            await connection.part(end, within_s=self._limits.goodbye_s)
        except (ConnectionLost, Stalled):
            await connection.part(None, within_s=self._limits.goodbye_s)

    def _end(self, reason: EndReason) -> Chunk:
        retry_after_ms = None
        if reason is EndReason.SHUTDOWN:
            retry_after_ms = 500 + int(1500 * (self._heartbeat_s / self._limits.heartbeat_s - 0.75) * 4)
        end = End(reason=reason, cursor=self._encoder.cursor(self._position), retry_after_ms=retry_after_ms)
        text = struct_frame("end", end)
        if reason is EndReason.RUN_TERMINAL and not self._ids_sent:
            # EventSource comes back without an id and would get all of this again, every three seconds.
            text = retry_hint(60_000) + text
        elif retry_after_ms is not None:
            text = retry_hint(retry_after_ms) + text
        return Chunk(text)

    def _count_previews(self) -> None:
        if self._previews is not None:
            self._meters.previews_sent += self._previews.sent
            self._meters.preview_drops += self._previews.dropped
