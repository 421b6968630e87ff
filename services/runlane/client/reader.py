"""Follow one run: every fact once, in order, without a hole, over any number of connections.

    async with RunReader(transport, "run_1", store=FileCursorStore("cursors")) as reader:
        async for item in reader:
            state.apply(item)

The cursor of an item is saved when the *next* item is asked for, so when the body has finished with it. A
process that dies in the body meets that item again after its restart, and no other.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from runlane.client.backoff import Backoff, BackoffPolicy
from runlane.client.cursor_store import CursorStore
from runlane.client.errors import ContractViolation, RequestRefused, RunlaneError, Unreachable
from runlane.client.transports.ports import Frame, Item, ReaderTransport, WatchRequest
from runlane_contracts.envelope import Fact
from runlane_contracts.resume import End, EndReason, From, Hello, Outcome, ResetReason, SnapshotFrame, Synced

OVER = "the run is over"
MAX_VIOLATIONS = 3
"""So many connections in a row that break the protocol at the same place are not a glitch."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """The exact suffix after `after_sequence` follows."""

    after_sequence: int


@dataclass(frozen=True, slots=True)
class SnapshotGiven:
    """State first, then the suffix: no cursor was given, or a snapshot was asked for."""


@dataclass(frozen=True, slots=True)
class ResetRequired:
    """The cursor cannot be continued: forget what was built from it; a snapshot follows."""

    reason: ResetReason | None


@dataclass(frozen=True, slots=True)
class RunTerminal:
    """The run is over: what is left of it follows, if anything, and then the end."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The server will not show it; asking again is of no use."""

    code: str
    detail: str


ReadOutcome = Resumed | SnapshotGiven | ResetRequired | RunTerminal | Refused


class Connection(StrEnum):
    """How a reader is connected. Whether it has caught up is `RunReader.is_live`."""

    IDLE = "idle"  # not begun, left, or the run is over
    RESTORING = "restoring"  # looking for what was kept of an earlier process
    CONNECTING = "connecting"
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"  # lost; tries again by itself
    UNRECOVERABLE = "unrecoverable"  # the server said no for good: asking again is of no use
    FAILED = "failed"  # gave up: the retry budget is used up, or the protocol was broken again and again


OnConnection = Callable[[Connection, str], None]
"""Told of each change, with a reason for people."""

_RETRY_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})


class RunReader:
    """An async iterator over one run's items.

    They are `Hello`, `SnapshotFrame`, `Fact`, `Preview`, `PreviewGap`, `Synced` and `End` of the contract.

    Promises: facts come gapless and without repeats; each connection says first how it continues; a lost
    connection is never taken for the end of the run, and is opened again with back-off within `backoff.budget_s`.

    Raises, out of the iteration:
        RequestRefused: the server refused for good (no such run, no right, a foreign cursor).
        Unreachable: the retry budget is used up.
        ContractViolation: the server broke the protocol again and again.
    """

    def __init__(  # noqa: PLR0913 - the options of a public constructor, by keyword
        self,
        transport: ReaderTransport,
        run_id: str,
        *,
        cursor: str | None = None,
        store: CursorStore | None = None,
        from_: From | None = None,
        previews: bool = True,
        types: tuple[str, ...] = (),
        backoff: BackoffPolicy | None = None,
        on_connection: OnConnection | None = None,
    ) -> None:
        self.run_id = run_id
        self.connection = Connection.IDLE
        self.is_live = False
        """Whether everything up to the high-water mark of this connection was yielded."""
        self.hello: Hello | None = None
        self._transport = transport
        self._store = store
        self._from = from_
        self._previews = previews
        self._types = types
        self._backoff = Backoff(backoff or BackoffPolicy())
        self._on_connection = on_connection
        self._cursor = cursor
        self._sequence: int | None = None
        self._pending: Frame | None = None
        self._violations = 0
        self._greeted = False
        self._peeked: Item | None = None
        self._items = self._follow()

    # -- what the caller sees -----------------------------------------------------------------------------

    @property
    def cursor(self) -> str | None:
        """Continues after the last item that was *applied*."""
        return self._cursor

    @property
    def pending_cursor(self) -> str | None:
        """Continues after the item in hand; becomes `cursor` when the next one is asked for."""
        return None if self._pending is None else self._pending.cursor

    @property
    def sequence(self) -> int | None:
        """`sequence` of the last fact or snapshot that was yielded."""
        return self._sequence

    async def connect(self) -> ReadOutcome:
        """Open the first connection and say how it continues. The iteration then starts with its `Hello`."""
        if self._peeked is None:
            try:
                self._peeked = await anext(self._items)
            except StopAsyncIteration:
                return RunTerminal()
            except RequestRefused as refused:
                return Refused(refused.code, str(refused))
        return self.outcome or RunTerminal()

    @property
    def outcome(self) -> ReadOutcome | None:
        """How the newest connection continues; None before the first."""
        if self.hello is None:
            return None
        match self.hello.outcome:
            case Outcome.RESUMED:
                return Resumed(self.hello.baseline.sequence)
            case Outcome.SNAPSHOT:
                return SnapshotGiven()
            case Outcome.RESET_REQUIRED:
                return ResetRequired(self.hello.reason)
            case Outcome.RUN_TERMINAL:
                return RunTerminal()

    async def mark_applied(self) -> None:
        """Save the cursor of the item in hand now, not when the next one is asked for: before leaving the loop."""
        frame, self._pending = self._pending, None
        if frame is None or frame.cursor is None:
            return
        self._cursor = frame.cursor
        if self._store is not None:
            await self._store.save(self.run_id, frame.cursor)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        if self._peeked is not None:
            item, self._peeked = self._peeked, None
            return item
        return await anext(self._items)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Leave. Changes nothing for the run; the item in hand counts as not applied."""
        await self._items.aclose()
        if self.connection not in (Connection.UNRECOVERABLE, Connection.FAILED, Connection.IDLE):
            self._turn(Connection.IDLE, "left")

    # -- connections --------------------------------------------------------------------------------------

    async def _follow(self) -> AsyncGenerator[Item, None]:
        if self._cursor is None and self._store is not None:
            self._turn(Connection.RESTORING)
            self._cursor = await self._store.load(self.run_id)
        while True:
            again_after_s: float | None = None
            try:
                self._turn(Connection.CONNECTING if self.hello is None else Connection.RECONNECTING)
                self._greeted = self.is_live = False
                async with self._transport.watch(self._request()) as frames:
                    if frames is None:
                        self._turn(Connection.IDLE, OVER)
                        return
                    async for frame in frames:
                        if not self._accept(frame):
                            continue
                        self._pending = frame
                        yield frame.item
                        await self.mark_applied()
                        if isinstance(frame.item, End):
                            if frame.item.reason is EndReason.RUN_TERMINAL:
                                self._turn(Connection.IDLE, OVER)
                                return
                            again_after_s = (frame.item.retry_after_ms or 0) / 1000
                            lost: RunlaneError = Unreachable(f"the server closed: {frame.item.reason}")
                            break
                    else:
                        lost = Unreachable("the connection was lost")
            except (Unreachable, ContractViolation, RequestRefused) as exc:
                lost = exc
            await self._wait_or_give_up(lost, again_after_s)

    def _request(self) -> WatchRequest:
        return WatchRequest(
            run_id=self.run_id,
            cursor=self._cursor,
            from_=None if self._cursor else self._from,
            previews=self._previews,
            types=self._types,
        )

    async def _wait_or_give_up(self, lost: RunlaneError, again_after_s: float | None) -> None:
        if isinstance(lost, RequestRefused):
            if lost.problem.status not in _RETRY_STATUS:
                self._turn(Connection.UNRECOVERABLE, str(lost))
                raise lost
            again_after_s = lost.retry_after_s
        if isinstance(lost, ContractViolation):
            self._violations += 1
            if self._violations >= MAX_VIOLATIONS:
                self._turn(Connection.FAILED, str(lost))
                raise lost
        delay_s = self._backoff.next_delay_s(now_s=asyncio.get_running_loop().time(), at_least_s=again_after_s)
        if delay_s is None:
            self._turn(Connection.FAILED, str(lost))
            raise lost
        self._turn(Connection.RECONNECTING, f"{lost}; again in {delay_s:.1f} s")
        await asyncio.sleep(delay_s)

    def _turn(self, connection: Connection, reason: str = "") -> None:
        if connection is self.connection and not reason:
            return
        self.connection = connection
        if self._on_connection is not None:
            with suppress(Exception):  # a listener's fault is not the reader's
                self._on_connection(connection, reason)

    # -- frames -------------------------------------------------------------------------------------------

    def _accept(self, frame: Frame) -> bool:
        """Whether to yield the frame; raises ContractViolation where one is missing."""
        item = frame.item
        if isinstance(item, Hello):
            self._greet(item)
            return True
        if not self._greeted:
            raise ContractViolation(f"{type(item).__name__} before hello")
        if isinstance(item, Fact):
            return self._accept_fact(item)
        if isinstance(item, SnapshotFrame):
            self._sequence = item.through_sequence
        elif isinstance(item, Synced):
            self._backoff.healthy()
            self.is_live = True
            self._turn(Connection.CONNECTED, "live")
        return True

    def _greet(self, hello: Hello) -> None:
        self.hello = hello
        self._greeted = True
        self._turn(Connection.CONNECTED, "catching up")
        if hello.outcome not in (Outcome.RESUMED, Outcome.RUN_TERMINAL):
            return  # a snapshot follows and says where we are
        if self._sequence is None:
            self._sequence = hello.baseline.sequence
        elif hello.baseline.sequence > self._sequence:
            raise ContractViolation(f"applied {self._sequence}, resumed after {hello.baseline.sequence}")
        if self._cursor is None:
            self._cursor = hello.baseline.cursor

    def _accept_fact(self, fact: Fact) -> bool:
        if self._sequence is None:
            assert self.hello is not None  # noqa: S101 - `_accept` saw to it
            self._sequence = self.hello.baseline.sequence
        if fact.sequence <= self._sequence:
            return False  # at least once on the wire, once here
        if not self._types and fact.sequence != self._sequence + 1:
            raise ContractViolation(f"expected sequence {self._sequence + 1}, got {fact.sequence}")
        self._sequence = fact.sequence
        self._violations = 0
        self._backoff.healthy()
        return True
