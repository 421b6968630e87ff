"""HTTP requests: counted and timed by route, and a server span each where there is a collector.

A stream is measured until it begins: how long a reader stays says nothing of the service. Only a request that asks that
something happen begins a trace; the others, which workers send all the time, join one if they bring it.
"""

import time
from collections import Counter
from collections.abc import Sequence

from opentelemetry import propagate
from opentelemetry.trace import SpanKind, Status, StatusCode, use_span
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runlane.hosting.histograms import histogram
from runlane.hosting.spans import continuing
from runlane.hosting.telemetry import is_tracing, observe, tracer
from runlane_contracts.headers import TRACEPARENT
from runlane_contracts.telemetry import OVERFLOW, Attribute, Metric
from runlane_contracts.tracing import parse_traceparent

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
_ASKS = ("/v1/runs", "/commands", "/re-execute")
_QUIET = frozenset({"/healthz", "/readyz", "/metrics"})


class HttpMeter:
    """Around an application whose routes it knows; what matches none of them shares one label."""

    def __init__(
        self, app: ASGIApp, service: str, routes: Sequence[BaseRoute] = (), *, route: str | None = None
    ) -> None:
        self._app, self._service, self._fixed = app, service, route
        self._paths = {one.endpoint: one.path for one in routes if isinstance(one, Route)}
        self._counts: Counter[tuple[str, str, int]] = Counter()
        self._is_traced = is_tracing()
        self._durations = histogram(Metric.HTTP_DURATION, BOUNDS_S)
        observe(Metric.HTTP_REQUESTS, self._readings, rises=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http" or scope["path"] in _QUIET:
            await self._app(scope, receive, send)
            return
        brought = _traceparent(scope)
        if self._is_traced and (_begins_a_trace(scope) or parse_traceparent(brought)):
            await self._traced(scope, receive, send)
        elif brought is None:
            await self._measured(scope, receive, send)
        else:
            with continuing(brought):
                await self._measured(scope, receive, send)

    async def _measured(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._count(scope, message["status"], time.perf_counter() - began)
            await send(message)

        await self._app(scope, receive, sending)

    async def _traced(self, scope: Scope, receive: Receive, send: Send) -> None:
        parent = propagate.extract({TRACEPARENT: _traceparent(scope) or ""})
        method = _method(scope)
        span = tracer().start_span(method, context=parent, kind=SpanKind.SERVER)
        began = time.perf_counter()

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                status, route = message["status"], self._route(scope)
                self._count(scope, status, time.perf_counter() - began)
                span.update_name(f"{method} {route}")
                span.set_attributes({
                    Attribute.HTTP_METHOD: method,
                    Attribute.HTTP_ROUTE: route,
                    Attribute.HTTP_STATUS: status,
                    **_run_of(scope),
                })  # fmt: skip
                if status >= 500:
                    span.set_status(Status(StatusCode.ERROR))
                span.end()
            await send(message)

        try:
            with use_span(span, record_exception=False):
                await self._app(scope, receive, sending)
        finally:
            if span.is_recording():  # no response was begun
                span.end()

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        method, route = _method(scope), self._route(scope)
        self._counts[method, route, status] += 1
        labels = {Attribute.SERVICE.value: self._service, Attribute.ROUTE.value: route, Attribute.METHOD.value: method}
        self._durations.record(seconds, labels)

    def _route(self, scope: Scope) -> str:
        return self._fixed or self._paths.get(scope.get("endpoint", _nothing), OVERFLOW)

    def _readings(self) -> list[tuple[float, dict[str, str]]]:
        return [
            (count, {
                Attribute.SERVICE.value: self._service, Attribute.METHOD.value: method, Attribute.ROUTE.value: route,
                Attribute.STATUS.value: str(status),
            })
            for (method, route, status), count in self._counts.items()
        ]  # fmt: skip


def _nothing() -> None:
    """What no route leads to."""


def _method(scope: Scope) -> str:
    method: str = scope["method"]
    return method if method in METHODS else OVERFLOW


def _traceparent(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"traceparent":
            text: str = value.decode("latin-1")
            return text
    return None


def _begins_a_trace(scope: Scope) -> bool:
    return bool(scope["method"] == "POST" and scope["path"].endswith(_ASKS))


def _run_of(scope: Scope) -> dict[str, str]:
    run_id = scope.get("path_params", {}).get("run_id")
    return {Attribute.RUN_ID: run_id} if isinstance(run_id, str) else {}
