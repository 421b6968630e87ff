"""`GET /v1/runs/{run_id}/watch`: one watch over server-sent events, from the request to `end`."""

from collections.abc import Callable
from contextlib import AsyncExitStack

from runlane.edge_gateway.connection import Receive, Scope, Send, open_connection
from runlane.edge_gateway.crowd import Crowd, OnRefusal
from runlane.edge_gateway.hub import Hubs, RunHub
from runlane.edge_gateway.meters import Meters
from runlane.edge_gateway.planning import Planner
from runlane.edge_gateway.queries import WatchRequest
from runlane.edge_gateway.watcher import Watcher, WatchLimits
from runlane.hosting.authorizer import Principal

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store, no-transform"),
    (b"x-accel-buffering", b"no"),
]


class Watches:
    """Answers watches."""

    def __init__(
        self,
        hubs: Hubs,
        crowd: Crowd,
        planner: Planner,
        *,
        limits: WatchLimits,
        meters: Meters,
        jitter: Callable[[], float],
    ) -> None:
        self._hubs = hubs
        self._crowd = crowd
        self._planner = planner
        self._limits = limits
        self._meters = meters
        self._jitter = jitter

    async def serve(
        self,
        hub: RunHub,
        request: WatchRequest,
        principal: Principal,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        on_refusal: OnRefusal | None = None,
    ) -> None:
        """Answer one watch of a run that exists. Raises ProblemError while nothing was sent yet."""
        self._crowd.check(principal.tenant_id)
        async with AsyncExitStack() as stack:
            plan = await self._planner.plan(hub, request, stack)
            if plan is None:
                await _answer_nothing_more(send)
                return
            watcher = Watcher(
                hub, plan, start=self._hubs.start, limits=self._limits, meters=self._meters, jitter=self._jitter()
            )
            with self._crowd.joined(watcher, principal, on_refusal):
                connection = await open_connection(
                    scope, receive, send, _HEADERS,
                    wake=watcher.connection_moved, stall_s=self._limits.stall_s, lanes=self._limits.lanes,
                )  # fmt: skip
                await watcher.run(connection)


async def _answer_nothing_more(send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": [(b"cache-control", b"no-store")]})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
