"""One HTTP connection that follows one run over server-sent events.

What goes out next is `Outgoing`'s business; here it is written as far as there is room, and said goodbye. Caught up,
the task sleeps and the hub drives: `wake` writes what is new straight to the connection, without a task switch, and
calls the task back only for what needs waiting.
"""

import asyncio
import math
from dataclasses import dataclass, field

from runlane.edge_gateway.connection import AsgiConnection, Connection, ConnectionLost, Stalled
from runlane.edge_gateway.frames import HEARTBEAT, Chunk, retry_hint
from runlane.edge_gateway.hub import RunHub
from runlane.edge_gateway.lanes import Gate, Lane, LaneBytes
from runlane.edge_gateway.meters import Meters
from runlane.edge_gateway.outgoing import Outgoing, OutgoingLimits, Plan, Start, Want
from runlane_contracts.resume import EndReason

_HEARTBEAT = Chunk(HEARTBEAT)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchLimits(OutgoingLimits):
    """Times and sizes of one watch."""

    lanes: LaneBytes = field(default_factory=LaneBytes)
    stall_s: float = 30.0
    """A client that takes nothing for so long is closed."""
    patience_s: float = 0.25
    """A client that takes nothing for so long has the page it was reading dropped, and read again later."""
    goodbye_s: float = 5.0
    lifetime_s: float = 0.0
    """0: no bound. Each watch ends up to a fifth earlier, so that not all come back at once."""


class Watcher:
    """Writes `hello`, what the plan says, then everything that comes, then `end`."""

    __slots__ = (
        "_attention", "_backlog", "_blocked_since", "_connection", "_ends_at", "_gate", "_heartbeat_due",
        "_heartbeat_s", "_last_write", "_limits", "_loop", "_meters", "_out", "_retry_after_ms", "_stop",
    )  # fmt: skip

    def __init__(
        self, hub: RunHub, plan: Plan, *, start: Start, limits: WatchLimits, meters: Meters, jitter: float
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._limits = limits
        self._meters = meters
        self._out = Outgoing(hub, plan, notify=self.wake, start=start, limits=limits, meters=meters)
        self._gate = Gate(limits.lanes)
        self._heartbeat_s = limits.heartbeat_s * (0.75 + 0.25 * jitter)
        self._heartbeat_due = False
        self._stop: EndReason | None = None
        self._attention: asyncio.Future[None] | None = None
        self._last_write = self._blocked_since = self._loop.time()
        self._ends_at = self._last_write + (limits.lifetime_s * (0.8 + 0.2 * jitter) or math.inf)
        self._retry_after_ms: int | None = None
        self._backlog = 0
        self._connection: Connection

    # --- the task -----------------------------------------------------------------------------------------

    async def run(self, connection: Connection) -> None:
        """Follow until the run, the client or the gateway ends. Returns when the response is over."""
        self._connection = connection
        self._out.open()
        try:
            if isinstance(connection, AsgiConnection):
                await self._run_beside(connection)
            else:
                await self._run()
        finally:
            self._out.close()

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
        out = self._out
        frames = [out.encoder.struct("hello", out.hello())]
        snapshot = out.snapshot()
        if snapshot is not None:
            frames.append(snapshot)
        size = sum(map(len, frames))
        while size < self._limits.burst_bytes and (piece := out.take()) is not None:
            frames += piece.chunk.frames
            size += piece.chunk.size_bytes
        await self._write(Chunk(*frames))

    async def _follow(self) -> None:
        while self._stop is None:
            if self._connection.lost:
                raise ConnectionLost
            lowest = self._allowed()
            piece = self._out.take(lowest)
            if piece is not None:
                await self._write(piece.chunk)
            elif self._out.want is Want.NOTHING:
                return
            elif self._heartbeat_due and lowest is not None:
                await self._write(_HEARTBEAT)
            elif self._out.want is Want.END and not self._connection.paused:
                self._stop = EndReason.RUN_TERMINAL
            else:
                await self._wait()

    def _allowed(self) -> Lane | None:
        """The least urgent lane that may be written now."""
        connection = self._connection
        return self._gate.lowest(connection.backlog_bytes) if connection.paused else self._gate.open()

    async def _write(self, chunk: Chunk) -> None:
        self._heartbeat_due = False
        await self._connection.write(chunk)
        self._last_write = self._loop.time()

    async def _wait(self) -> None:
        paused = self._connection.paused
        if paused:
            self._backlog, self._blocked_since = self._connection.backlog_bytes, self._loop.time()
        self._attention = self._loop.create_future()
        try:
            if paused and self._out.holds_page:
                async with asyncio.timeout(self._limits.patience_s):
                    await self._attention
            else:
                await self._attention
        except TimeoutError:
            self._out.slow_down()  # a client that does not read holds no page in memory
        finally:
            self._attention = None

    def _call_task(self) -> None:
        if self._attention is not None and not self._attention.done():
            self._attention.set_result(None)

    # --- what others tell it ------------------------------------------------------------------------------

    def wake(self) -> None:
        """There is something new, or there is room again."""
        # Called for each reader with each commit: what is asked twice here costs a thousand readers something.
        attention = self._attention
        if attention is None or attention.done():
            return  # the task is at it
        connection, out = self._connection, self._out
        if connection.writable:
            while (piece := out.take(self._allowed())) is not None:
                connection.write_now(piece.chunk)
                self._heartbeat_due = False
                self._last_write = self._loop.time()
                if out.is_idle:
                    return
        if self._needs_task():
            self._call_task()

    def _needs_task(self) -> bool:
        want = self._out.want
        if want is Want.NEWS:
            return self._heartbeat_due
        if want is Want.ROOM:
            return not self._connection.paused or self._out.holds_page
        return True

    def connection_moved(self) -> None:
        """There is room again, or the client is gone."""
        if self._connection.lost:
            self._call_task()
        else:
            self.wake()

    def stop(self, reason: EndReason, *, retry_after_ms: int | None = None) -> None:
        """Say `end` and close, after the frame that is being written."""
        if self._stop is None:
            self._stop, self._retry_after_ms = reason, retry_after_ms
        self._call_task()

    def tick(self, now: float) -> None:
        """Called about once a second."""
        if self._attention is not None and self._connection.paused:
            backlog = self._connection.backlog_bytes
            if backlog < self._backlog:
                self._backlog, self._blocked_since = backlog, now
            elif now - self._blocked_since >= self._limits.stall_s:
                self.stop(EndReason.SLOW_READER)
        elif now - self._last_write >= self._heartbeat_s:
            self._heartbeat_due = True
            self.wake()
        if now >= self._ends_at:
            self.stop(EndReason.LIFETIME)

    # --- the end ------------------------------------------------------------------------------------------

    async def _close(self) -> None:
        connection = self._connection
        if self._out.gone or self._stop is None:
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
        retry_after_ms = self._retry_after_ms
        text = self._out.encoder.struct("end", self._out.end(reason, retry_after_ms=retry_after_ms))
        if reason is EndReason.RUN_TERMINAL and not self._out.ids_sent:
            # EventSource comes back without an id and would get all of this again, every three seconds.
            text = retry_hint(60_000) + text
        elif retry_after_ms is not None:
            text = retry_hint(retry_after_ms) + text
        return Chunk(text)
