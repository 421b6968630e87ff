"""`GET /v1/runs/{run_id}/events`: history as JSON pages, and a long poll for those whose proxies cut streams."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from runlane.edge_gateway.crowd import Crowd
from runlane.edge_gateway.event_page import EventPage
from runlane.edge_gateway.frames import FactFrames
from runlane.edge_gateway.history import History, Hole
from runlane.edge_gateway.hub import RunHub
from runlane.edge_gateway.last import before_last
from runlane.edge_gateway.presence import Presence
from runlane.edge_gateway.queries import (
    Params,
    integer,
    last_param,
    limit_param,
    opened_cursor,
    query_params,
    seconds,
    types_param,
)
from runlane.edge_gateway.run_state import RunStates
from runlane.edge_gateway.view import View
from runlane.hosting.authorizer import Authorizer, Principal, Right, require
from runlane.hosting.http import OnRefusal, ProblemError
from runlane.hosting.http_protocol import EXTENSION, TransportProtocol
from runlane_contracts.cursor import CursorKeys, Position
from runlane_contracts.problems import Code
from runlane_contracts.resume import EndReason
from runlane_contracts.subjects import RunAddress

MAX_PAGE_FACTS = 1000
PAGE_FACTS = 200
AHEAD_WAIT_S = 2.0
_MAX_SHARED = 64
_MAX_SHARED_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class _Asked:
    """The parameters, checked."""

    run: RunAddress
    encoder: FactFrames
    limit: int
    min_sequence: int
    cursor: str | None
    after: Position | None
    wait_s: float | None
    last: int


class EventReads:
    """Answers pages of facts."""

    def __init__(
        self,
        *,
        authorizer: Authorizer,
        presence: Presence,
        view: View,
        states: RunStates,
        crowd: Crowd,
        keys: CursorKeys,
        max_wait_s: float,
        on_refusal: OnRefusal | None = None,
    ) -> None:
        self._authorizer = authorizer
        self._presence = presence
        self._view = view
        self._states = states
        self._crowd = crowd
        self._keys = keys
        self._max_wait_s = max_wait_s
        self._on_refusal = on_refusal
        self._shared: dict[tuple[object, ...], bytes] = {}

    def routes(self) -> list[Route]:
        """Where it answers."""
        return [Route("/v1/runs/{run_id}/events", self.events)]

    async def events(self, request: Request) -> Response:
        """One page; with `wait_s`, once there is something after the cursor."""
        principal = await require(request, self._authorizer, Right.VIEW)
        run = RunAddress(principal.tenant_id, request.path_params["run_id"])
        async with self._presence.judging(run):
            asked = self._asked(run, query_params(request.scope["query_string"]))
        if asked.wait_s is None:
            body = await self._page_now(asked)
        else:
            body = await self._page_soon(asked, asked.wait_s, principal, request.scope)
        return Response(body, media_type="application/json", headers={"Cache-Control": "no-store"})

    def _asked(self, run: RunAddress, params: Params) -> _Asked:
        encoder = FactFrames(self._keys, run, types_param(params))
        last = last_param(params, unless=("cursor", "types"))
        cursor = params.get("cursor") or None
        return _Asked(
            run=run,
            encoder=encoder,
            limit=limit_param(params, default=PAGE_FACTS, maximum=MAX_PAGE_FACTS),
            min_sequence=integer(params, "min_sequence", default=0),
            cursor=cursor,
            after=opened_cursor(encoder, cursor),
            wait_s=seconds(params, "wait_s", maximum=self._max_wait_s),
            last=last,
        )

    # --- what there is ------------------------------------------------------------------------------------

    async def _page_now(self, asked: _Asked) -> bytes:
        head = await self._presence.head(asked.run, min_sequence=asked.min_sequence)
        after = await self._after(asked, head)
        if after.sequence > head.sequence:
            async with self._presence.hub(asked.run) as hub:
                head = await _caught_up(hub, after)
        page = EventPage(asked.encoder, after, asked.limit)
        await self._read(page, asked.run, head)
        return page.body(head)

    async def _after(self, asked: _Asked, head: Position) -> Position:
        """After what the page begins."""
        if asked.last:
            return await before_last(self._states, self._view, asked.run, head, asked.last)
        return asked.after or Position(head.epoch, 0, 0)

    async def _read(self, page: EventPage, run: RunAddress, head: Position) -> None:
        try:
            await page.fill(History(self._view, run, page.position), head)
        except Hole as hole:
            raise expired(run, str(hole)) from hole

    # --- what will be there soon --------------------------------------------------------------------------

    async def _page_soon(self, asked: _Asked, wait_s: float, principal: Principal, scope: Scope) -> bytes:
        deadline = asyncio.get_running_loop().time() + wait_s
        async with self._presence.hub(asked.run, min_sequence=asked.min_sequence) as hub:
            after = await self._after(asked, hub.head)
            if after.sequence > hub.head.sequence:
                await _caught_up(hub, after)
            page = EventPage(asked.encoder, after, asked.limit)
            await self._fill(page, hub)
            if page.wants_more() and not hub.terminal:
                with (
                    _Poll(hub, scope) as poll,
                    self._crowd.joined(poll, principal, lambda code: self._refused(scope, code)),
                ):
                    while await poll.more_than(page.position, deadline):
                        await self._fill(page, hub)
                        if not page.wants_more():
                            break
                    poll.raise_if_refused()
            return self._body(page, hub, asked, after)

    def _refused(self, scope: Scope, code: Code) -> None:
        if self._on_refusal is not None:
            self._on_refusal(scope, code)

    async def _fill(self, page: EventPage, hub: RunHub) -> None:
        """From what the hub holds; only who is far behind reads the view."""
        if hub.holds(page.position.sequence):
            page.take(hub.commits_after(page.position.sequence))
        else:
            await self._read(page, hub.run, hub.head)

    def _body(self, page: EventPage, hub: RunHub, asked: _Asked, after: Position) -> bytes:
        """Those who wait at the same place are given the same bytes."""
        if page.position == after and asked.cursor is not None:
            return page.body(hub.head, ended=hub.terminal, cursor=asked.cursor)
        ended = hub.terminal and page.position.sequence >= hub.head.sequence
        key = (asked.run, asked.encoder.key, after, asked.limit, hub.head, ended)
        known = self._shared.get(key)
        if known is None:
            known = page.body(hub.head, ended=ended)
            if len(self._shared) >= _MAX_SHARED:
                self._shared.clear()
            if len(known) <= _MAX_SHARED_BYTES:
                self._shared[key] = known
        return known


class _Poll:
    """One who waits at a hub: for a fact, for its time to be over, for being sent away, or until it is gone."""

    def __init__(self, hub: RunHub, scope: Scope) -> None:
        self._hub = hub
        self._stopped: EndReason | None = None
        self._beyond = 0
        self._told: asyncio.Future[None] | None = None
        protocol = (scope.get("extensions") or {}).get(EXTENSION)
        self._protocol = protocol if isinstance(protocol, TransportProtocol) else None

    def __enter__(self) -> Self:
        self._hub.listeners.add(self)
        self._listen(self._connection_moved)
        return self

    def __exit__(self, *error: object) -> None:
        self._hub.listeners.discard(self)
        self._listen(None)

    def _listen(self, listener: Callable[[], None] | None) -> None:
        if self._protocol is not None:
            self._protocol.listener = listener

    async def more_than(self, position: Position, deadline: float) -> bool:
        """Whether there are facts after a position, before it has to answer."""
        self._beyond = position.sequence
        if self._stopped is None and self._hub.head.sequence > self._beyond:
            return True
        if self._over():
            return False
        self._told = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout_at(deadline):
                await self._told
        except TimeoutError:
            return False
        finally:
            self._told = None
        return not self._over() and self._hub.head.sequence > self._beyond

    def _over(self) -> bool:
        hub = self._hub
        return self._stopped is not None or hub.broken or (hub.terminal and hub.head.sequence <= self._beyond)

    def raise_if_refused(self) -> None:
        """Who lost its right while it waited is told no fact. Raises ProblemError."""
        if self._stopped is EndReason.UNAUTHORIZED:
            raise ProblemError(Code.UNAUTHENTICATED, headers={"WWW-Authenticate": "Bearer"})

    def wake(self) -> None:
        """See `hub.Listener`."""
        if self._hub.head.sequence > self._beyond:
            self._tell()

    def lose(self) -> None:
        """See `hub.Listener`."""
        self._tell()

    def tick(self, now: float) -> None:
        """See `crowd.Follower`: its time is bounded anyway."""

    def stop(self, reason: EndReason, *, retry_after_ms: int | None = None) -> None:  # noqa: ARG002
        """See `crowd.Follower`: it is answered with what there is."""
        self._stopped = self._stopped or reason
        self._tell()

    def _connection_moved(self) -> None:
        if self._protocol is not None and self._protocol.cycle.disconnected:
            self.stop(EndReason.LIFETIME)

    def _tell(self) -> None:
        if self._told is not None and not self._told.done():
            self._told.set_result(None)


async def _caught_up(hub: RunHub, after: Position) -> Position:
    """The head once the view has caught up with a cursor. One that stays ahead cannot be continued."""
    if await hub.reached(after.sequence, within_s=AHEAD_WAIT_S):
        return hub.head
    raise expired(hub.run, "the cursor is ahead of the view")


def expired(run: RunAddress, detail: str) -> ProblemError:
    """The cursor cannot be continued; where to begin again."""
    return ProblemError(Code.CURSOR_EXPIRED, detail, snapshot=f"/v1/runs/{run.run_id}/snapshot")
