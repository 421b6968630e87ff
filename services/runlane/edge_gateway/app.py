"""Composition root of the edge gateway: the only place that builds concrete things.

watch ──▶ Watches ──▶ Hubs ──▶ view on JetStream
ws ─────▶ SocketEndpoint ─┘ (and the command gateway, for commands)
reads ──▶ Reads ───▶ RunStates ──▶ read store, then the tail of the view
the rest ──▶ command gateway: forwarded, or in the same process (`joined`)
"""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from runlane.edge_gateway import openapi
from runlane.edge_gateway.archived_view import ArchivedView
from runlane.edge_gateway.broker_view import BrokerView
from runlane.edge_gateway.console_files import ConsoleFiles
from runlane.edge_gateway.content import ContentReads
from runlane.edge_gateway.crowd import Crowd
from runlane.edge_gateway.event_reads import EventReads
from runlane.edge_gateway.forward import Forwarder
from runlane.edge_gateway.hub import Hubs
from runlane.edge_gateway.meters import Meters, report
from runlane.edge_gateway.planning import Planner
from runlane.edge_gateway.presence import Presence
from runlane.edge_gateway.queries import watch_request
from runlane.edge_gateway.reads import Reads
from runlane.edge_gateway.run_state import RunStates
from runlane.edge_gateway.settings import EdgeGatewaySettings
from runlane.edge_gateway.timelines import TimelineReads, Timelines
from runlane.edge_gateway.view import View
from runlane.edge_gateway.watch import Watches
from runlane.edge_gateway.websocket.endpoint import PATH as SOCKET_PATH, SocketEndpoint, upgrade_needed
from runlane.edge_gateway.websocket.methods import Services
from runlane.edge_gateway.websocket.sessions import Sessions
from runlane.edge_gateway.websocket.watching import RunWatches
from runlane.hosting.access import authorizer_of
from runlane.hosting.authorizer import Authorizer, Right, lost, require
from runlane.hosting.connections import Connections, connection_of
from runlane.hosting.health import Health, HealthDesk
from runlane.hosting.heap import small_heap
from runlane.hosting.http import (
    OnRefusal,
    Problems,
    allowed_methods,
    application,
    json_response,
    method_not_allowed,
)
from runlane.hosting.http_meter import HttpMeter
from runlane.hosting.http_server import HttpAddress
from runlane.hosting.refusals import RefusalLog
from runlane.hosting.scrape_gate import ScrapeGate
from runlane.hosting.service import Running
from runlane.hosting.telemetry import is_tracing
from runlane.kernel.clock import utc_now
from runlane.kernel.direct import DirectReader
from runlane.kernel.publisher import WindowedPublisher
from runlane.kernel.pulse import Pulse
from runlane.object_store.archives import Archives
from runlane.object_store.content import Contents
from runlane.object_store.store import Objects
from runlane.read_store import ReadStore
from runlane_contracts.problems import Code
from runlane_contracts.subjects import RunAddress

NAME = "edge_gateway"
_API = "/v1/"


@asynccontextmanager
async def serve(settings: EdgeGatewaySettings, connections: Connections | None = None) -> AsyncIterator[Running]:
    """The gateway, ready to serve. Raises Retryable when the broker cannot be reached."""
    layout, meters = settings.common.layout, Meters()
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        authorizer = await enter(authorizer_of(settings.access))
        connection = await enter(connection_of(NAME, connections))
        pulse = await enter(Pulse(connection))
        reader = await enter(DirectReader(connection, concurrency=settings.history_readers, pulse=pulse))
        store = await enter(_read_store(settings))
        refusals = await enter(RefusalLog(await enter(WindowedPublisher(connection)), layout.subjects, NAME))
        feed = BrokerView(connection, reader, layout)
        view = ArchivedView(feed, Archives(Objects.at(settings.object_store_url)))
        states = RunStates(view, store)
        hubs = await enter(_hubs(settings, view, feed, states, meters))
        stack.callback(connection.add_reconnect_listener(hubs.sweep_soon))
        crowd = _crowd(settings, authorizer, meters)
        await enter(crowd.ticking(hubs))
        sessions = Sessions(settings.socket_limits, now=utc_now, jitter=random.random, meters=meters)
        sockets = _sockets(settings, sessions, authorizer, view, hubs, crowd, meters, refusals.of_http)
        await enter(sessions.ticking())
        await enter(small_heap())
        elsewhere = None if settings.command_gateway_url is None else await enter(_forwarder(settings))
        report(meters, NAME)

        async def health() -> Health:
            detail = {
                "watchers": meters.watchers,
                "websockets": meters.sockets,
                "runs": meters.hubs,
                "ring_bytes": hubs.ring_bytes,
            }
            return Health(ready=pulse.beats, detail=detail)

        async def drain() -> None:
            await asyncio.gather(crowd.shut_down(), sockets.shut_down())

        yield Running(
            name=NAME,
            health=health,
            asgi=EdgeApp(
                *_doors(
                    _Parts(
                        settings=settings,
                        authorizer=authorizer,
                        view=view,
                        hubs=hubs,
                        states=states,
                        store=store,
                        crowd=crowd,
                        watches=_watches(settings, hubs, crowd, meters),
                        on_refusal=refusals.of_http,
                    )
                ),
                elsewhere=elsewhere,
                desk=HealthDesk({NAME: health}, scrapers=ScrapeGate(settings.common.scraper_token)),
                on_refusal=refusals.of_http,
                sockets=sockets,
            ),
            listen=HttpAddress(settings.http_host, settings.http_port),
            drain=drain,
        )


def _read_store(settings: EdgeGatewaySettings) -> ReadStore:
    return ReadStore.open(
        settings.read_store_url, timeout_s=settings.read_store_timeout_s, readers=settings.read_store_readers
    )


def _hubs(settings: EdgeGatewaySettings, view: View, feed: BrokerView, states: RunStates, meters: Meters) -> Hubs:
    return Hubs(
        view=view, feed=feed, states=states, limits=settings.hub_limits, meters=meters, jitter=random.random
    )  # fmt: skip


def _crowd(settings: EdgeGatewaySettings, authorizer: Authorizer, meters: Meters) -> Crowd:
    return Crowd(
        settings.crowd_limits,
        lost=lambda principal: lost(authorizer, principal, Right.VIEW),
        meters=meters,
        jitter=random.random,
    )


def _watches(settings: EdgeGatewaySettings, hubs: Hubs, crowd: Crowd, meters: Meters) -> Watches:
    planner = Planner(hubs, settings.access.signing_keys(), meters)
    return Watches(hubs, crowd, planner, limits=settings.watch_limits, meters=meters, jitter=random.random)


def _sockets(
    settings: EdgeGatewaySettings,
    sessions: Sessions,
    authorizer: Authorizer,
    view: View,
    hubs: Hubs,
    crowd: Crowd,
    meters: Meters,
    on_refusal: OnRefusal,
) -> SocketEndpoint:
    keys = settings.access.signing_keys()
    watches = RunWatches(
        hubs,
        presence=Presence(view, hubs, wait_s=settings.visible_wait_s),
        planner=Planner(hubs, keys, meters),
        crowd=crowd,
        keys=keys,
        limits=settings.watch_limits,
        meters=meters,
    )
    services = Services(authorizer=authorizer, watches=watches, meters=meters, on_refusal=on_refusal)
    return SocketEndpoint(sessions, services, origins=settings.origins, on_refusal=on_refusal)


def _forwarder(settings: EdgeGatewaySettings) -> Forwarder:
    return Forwarder.to(
        settings.command_gateway_url or "",
        max_body_bytes=settings.max_body_bytes,
        max_connections=settings.command_connections,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    settings: EdgeGatewaySettings
    authorizer: Authorizer
    view: View
    hubs: Hubs
    states: RunStates
    store: ReadStore
    crowd: Crowd
    watches: Watches
    on_refusal: OnRefusal


def _doors(parts: _Parts) -> tuple[ASGIApp, list[Route]]:
    settings, authorizer, view = parts.settings, parts.authorizer, parts.view
    keys = settings.access.signing_keys()
    presence = Presence(view, parts.hubs, wait_s=settings.visible_wait_s, fresh_wait_s=settings.fresh_wait_s)
    reads = Reads(
        authorizer=authorizer,
        presence=presence,
        view=view,
        states=parts.states,
        lists=parts.store,
        lists_wait_s=settings.lists_wait_s,
        keys=keys,
    )
    pages = EventReads(
        authorizer=authorizer,
        presence=presence,
        view=view,
        states=parts.states,
        crowd=parts.crowd,
        keys=keys,
        max_wait_s=settings.max_poll_s,
        on_refusal=parts.on_refusal,
    )
    rows = TimelineReads(authorizer=authorizer, presence=presence, timelines=Timelines(view), keys=keys)
    content = ContentReads(authorizer=authorizer, contents=Contents(Objects.at(settings.object_store_url)))
    routes = [
        *reads.routes(), *content.routes(), *pages.routes(), *rows.routes(), *ConsoleFiles().routes(),
        Route(SOCKET_PATH, upgrade_needed),
    ]  # fmt: skip
    return WatchEndpoint(authorizer, presence, parts.watches, parts.on_refusal), routes


class WatchEndpoint:
    """`GET /v1/runs/{run_id}/watch` as plain ASGI: an open watch holds no request, no response, no middleware."""

    def __init__(
        self, authorizer: Authorizer, presence: Presence, watches: Watches, on_refusal: OnRefusal | None = None
    ) -> None:
        self._on_refusal = on_refusal
        self._authorizer = authorizer
        self._presence = presence
        self._watches = watches

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One watch, or what is wrong with it."""
        connection = HTTPConnection(scope)
        principal = await require(connection, self._authorizer, Right.VIEW)
        run = RunAddress(principal.tenant_id, scope["path"].removeprefix("/v1/runs/").removesuffix("/watch"))
        del connection
        async with self._presence.judging(run):
            request = watch_request(scope["query_string"], scope["headers"])

        async with self._presence.hub(run, min_sequence=request.min_sequence) as hub:
            await self._watches.serve(
                hub, request, principal, scope, receive, send, on_refusal=lambda code: self._refused(scope, code)
            )

    def _refused(self, scope: Scope, code: Code) -> None:
        if self._on_refusal is not None:
            self._on_refusal(scope, code)


class EdgeApp:
    """Everything on one port: watches first and directly, then the gateway's own routes, then `elsewhere`."""

    def __init__(
        self,
        watch: ASGIApp,
        routes: Sequence[BaseRoute],
        *,
        elsewhere: ASGIApp | None,
        desk: HealthDesk,
        on_refusal: OnRefusal | None = None,
        sockets: SocketEndpoint | None = None,
    ) -> None:
        self._watch = watch
        self._sockets = sockets
        self._on_refusal = on_refusal
        self._routes = list(routes)
        self._api_routes = [route for route in routes if isinstance(route, Route) and route.path.startswith(_API)]
        self._own = application(
            [*routes, *desk.routes(), Route("/openapi.json", _openapi)], on_refusal=on_refusal, service=NAME
        )
        self._watching: ASGIApp = Problems(watch, on_refusal)
        if is_tracing():  # else an open watch holds nothing but itself
            self._watching = HttpMeter(self._watching, NAME, route="/v1/runs/{run_id}/watch")
        self._elsewhere = elsewhere

    def joined(self, elsewhere: ASGIApp, desk: HealthDesk) -> "EdgeApp":
        """The same, with the command gateway's application and the health of all in the same process."""
        return EdgeApp(
            self._watch, self._routes, elsewhere=elsewhere, desk=desk, on_refusal=self._on_refusal,
            sockets=self._sockets,
        )  # fmt: skip

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "websocket" and self._sockets is not None:
            await self._sockets.serve(scope, receive, send, commands=self._elsewhere)
        elif scope["type"] != "http":
            await self._own(scope, receive, send)
        elif _is_watch(scope["path"]):
            if scope["method"] == "GET":
                await self._watching(scope, receive, send)
            else:
                await method_not_allowed(frozenset({"GET"}))(scope, receive, send)
        else:
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Two applications share paths: what one of them does not know, the other may."""
        if not scope["path"].startswith(_API):
            await self._own(scope, receive, send)
            return
        here = allowed_methods(self._api_routes, scope)
        there = frozenset[str]() if self._elsewhere is None else _methods_of(self._elsewhere, scope)
        if self._elsewhere is not None and scope["method"] in there - here:
            await self._elsewhere(scope, receive, send)
        elif scope["method"] in here or not here | there:
            await self._own(scope, receive, send)
        else:
            await method_not_allowed(here | there)(scope, receive, send)


def _methods_of(app: ASGIApp, scope: Scope) -> frozenset[str]:
    if isinstance(app, Forwarder):
        return app.methods(scope["path"])
    return allowed_methods(app.routes, scope) if isinstance(app, Starlette) else frozenset()


def joined(edge: ASGIApp | None, elsewhere: ASGIApp | None, desk: HealthDesk) -> ASGIApp:
    """One application of an edge gateway's and a command gateway's, as found in their `Running.asgi`."""
    if not isinstance(edge, EdgeApp) or elsewhere is None:
        raise TypeError("needs the applications of both gateways")
    return edge.joined(elsewhere, desk)


def _is_watch(path: str) -> bool:
    return path.startswith("/v1/runs/") and path.endswith("/watch") and path.count("/") == 4


async def _openapi(_request: Request) -> Response:
    return json_response(openapi.document())
