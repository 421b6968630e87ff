"""`GET /v1/runs/{run_id}/watch`: what was asked, how it continues, and everyone who is watching now."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from runlane.edge_gateway.connection import Receive, Scope, Send, open_connection
from runlane.edge_gateway.frames import FactFrames
from runlane.edge_gateway.history import History, Hole
from runlane.edge_gateway.hub import Hubs, RunHub
from runlane.edge_gateway.meters import Meters
from runlane.edge_gateway.queries import WatchRequest, opened_cursor
from runlane.edge_gateway.resume import (
    AheadOfView,
    AlreadyEnded,
    Asked,
    Decision,
    ResetRequired,
    Resumed,
    RunTerminal,
    Snapshot,
    decide,
    outcome_of,
)
from runlane.edge_gateway.run_state import EncodedSnapshot
from runlane.edge_gateway.type_filter import TypeFilter
from runlane.edge_gateway.view import ViewCommit
from runlane.edge_gateway.watcher import Plan, Watcher, WatchLimits
from runlane.hosting.http import ProblemError
from runlane_contracts.cursor import CursorKeys, Position
from runlane_contracts.problems import Code
from runlane_contracts.resume import EndReason
from runlane_contracts.telemetry import LogEvent

_log = logging.getLogger("runlane.edge_gateway.watch")

AHEAD_WAIT_S = 2.0
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store, no-transform"),
    (b"x-accel-buffering", b"no"),
]


StillAllowed = Callable[[], Awaitable[bool]]
"""Whether the client's credentials still hold."""


class Watches:
    """Everyone who watches through this gateway."""

    def __init__(
        self,
        hubs: Hubs,
        *,
        keys: CursorKeys,
        limits: WatchLimits,
        meters: Meters,
        jitter: Callable[[], float],
        max_watchers: int,
    ) -> None:
        self._hubs = hubs
        self._keys = keys
        self._limits = limits
        self._meters = meters
        self._jitter = jitter
        self._max_watchers = max_watchers
        self._watchers: dict[Watcher, StillAllowed] = {}
        self._closing = False
        self._nobody = asyncio.Event()

    @asynccontextmanager
    async def ticking(self, every_s: float = 1.0) -> AsyncIterator[None]:
        """Heartbeats and deadlines, while the block lasts; then everybody is told to come back."""
        tasks = [self._hubs.start(self._tick(every_s)), self._hubs.start(self._authorize_again())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await self.shut_down()

    async def _tick(self, every_s: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(every_s)
            now = loop.time()
            for watcher in tuple(self._watchers):
                watcher.tick(now)

    async def _authorize_again(self) -> None:
        while True:
            await asyncio.sleep(self._limits.reauthorize_s)
            for watcher, still_allowed in tuple(self._watchers.items()):
                if not await _holds(still_allowed):
                    watcher.stop(EndReason.UNAUTHORIZED)
                await asyncio.sleep(0)  # a check may cost a signature: others go on in between

    async def shut_down(self) -> None:
        """End every watch, each with its cursor; no new ones. Returns when they are gone, or it took too long."""
        self._closing = True
        for watcher in tuple(self._watchers):
            watcher.stop(EndReason.SHUTDOWN)
        if self._watchers:
            self._nobody.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2 * self._limits.goodbye_s):
                    await self._nobody.wait()

    async def serve(
        self,
        hub: RunHub,
        request: WatchRequest,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        still_allowed: StillAllowed,
    ) -> None:
        """Answer one watch of a run that exists. Raises ProblemError while nothing was sent yet."""
        if self._closing or len(self._watchers) >= self._max_watchers:
            raise ProblemError(Code.OVERLOADED, "too many watchers here", retry_after_s=2.0)
        encoder = FactFrames(self._keys, hub.run, request.types)
        asked = Asked(opened_cursor(encoder, request.cursor), request.start, request.sticky)
        async with AsyncExitStack() as stack:
            plan = await self._plan(hub, asked, encoder, request, stack)
            if plan is None:
                await _answer_nothing_more(send)
                return
            watcher = Watcher(
                hub, plan, start=self._hubs.start, limits=self._limits, meters=self._meters, jitter=self._jitter()
            )
            await self._run(watcher, still_allowed, scope, receive, send)

    async def _run(
        self, watcher: Watcher, still_allowed: StillAllowed, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._watchers[watcher] = still_allowed
        self._meters.watches += 1
        self._meters.watchers = len(self._watchers)
        try:
            connection = await open_connection(
                scope, receive, send, _HEADERS, wake=watcher.connection_moved, stall_s=self._limits.stall_s
            )
            await watcher.run(connection)
        finally:
            del self._watchers[watcher]
            if not self._watchers:
                self._nobody.set()
            self._meters.watchers = len(self._watchers)

    # --- how it continues ---------------------------------------------------------------------------------

    async def _plan(
        self, hub: RunHub, asked: Asked, encoder: FactFrames, request: WatchRequest, stack: AsyncExitStack
    ) -> Plan | None:
        """None: the reader has everything there will ever be."""
        previews = await stack.enter_async_context(hub.with_previews()) if request.previews else None
        decision, history, first_page = await self._decide(hub, asked)
        if isinstance(decision, AlreadyEnded | AheadOfView) or await self._nothing_left(hub, asked, decision, encoder):
            return None
        snapshot = await self._snapshot(hub) if isinstance(decision, Snapshot | ResetRequired) else None
        if isinstance(decision, ResetRequired):
            self._meters.resets += 1
        return Plan(
            outcome=outcome_of(decision),
            after=decision.after if isinstance(decision, Resumed | RunTerminal) else hub.head,
            encoder=encoder, previews=previews, snapshot=snapshot,
            reason=decision.reason if isinstance(decision, ResetRequired) else None,
            history=history, first_page=first_page,
        )  # fmt: skip

    async def _snapshot(self, hub: RunHub) -> EncodedSnapshot:
        try:
            return await hub.snapshot()
        except Hole as hole:
            raise ProblemError(Code.CURSOR_EXPIRED, f"{hole}; there is no snapshot to start from") from hole

    async def _decide(self, hub: RunHub, asked: Asked) -> tuple[Decision, History | None, tuple[ViewCommit, ...]]:
        decision = decide(asked, hub.standing())
        if isinstance(decision, AheadOfView) and asked.cursor is not None:
            await hub.reached(asked.cursor.sequence, within_s=AHEAD_WAIT_S)
            decision = decide(asked, hub.standing(), settled=True)
        if not isinstance(decision, Resumed | RunTerminal) or hub.holds(decision.after.sequence):
            return decision, None, ()
        # Read before anything is said: what cannot be read must be a named outcome, not a stream that breaks off.
        history = History(self._hubs.view, hub.run, decision.after)
        try:
            async with self._hubs.history_slots:
                return decision, history, tuple(await history.next(self._limits.page_bytes))
        except Hole as hole:
            if not hole.is_declared:
                self._meters.holes += 1
                _log.error("%s", hole, extra={"event": LogEvent.VIEW_HOLE, "run_id": hub.run.run_id})
            return decide(asked, hub.standing(hole), settled=True), None, ()

    async def _nothing_left(self, hub: RunHub, asked: Asked, decision: Decision, encoder: FactFrames) -> bool:
        if asked.cursor is None or not isinstance(decision, RunTerminal) or not encoder.types.types:
            return False
        return not await _any_matches(self._hubs, hub, decision.after, encoder.types)


async def _holds(still_allowed: StillAllowed) -> bool:
    """An authorizer that cannot answer revokes nothing: the credentials held before."""
    try:
        return await still_allowed()
    except Exception:  # noqa: BLE001
        _log.exception("credentials could not be checked again", extra={"event": LogEvent.SERVICE_FAILED})
        return True


async def _any_matches(hubs: Hubs, hub: RunHub, after: Position, types: TypeFilter) -> bool:
    """Whether a filtered reader has anything to come. If not, telling it `end` again would loop for ever."""
    history = History(hubs.view, hub.run, after)
    while history.sequence < hub.head.sequence:
        commits: list[ViewCommit] = await history.next(hubs.limits.page_bytes)
        for commit in commits:
            if any(fact.sequence > after.sequence and types.matches(fact.type) for fact in commit.facts()):
                return True
        if not commits:
            return True
    return False


async def _answer_nothing_more(send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": [(b"cache-control", b"no-store")]})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
