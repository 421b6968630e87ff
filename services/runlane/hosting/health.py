"""`/healthz`, `/readyz`, `/metrics`: is it alive, may it get work, what did it measure."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runlane.hosting.exposition import MEDIA_TYPE, sample
from runlane.hosting.http import ProblemError, application, json_response
from runlane.hosting.scrape_gate import ScrapeGate
from runlane_contracts.metric_help import HELP
from runlane_contracts.problems import Code
from runlane_contracts.telemetry import Attribute, Metric

log = logging.getLogger(__name__)

CHECK_DEADLINE_S = 2.0
_FOR_OPERATORS = "for who operates this: asked on the machine itself, or with the token of RUNLANE_METRICS_TOKEN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Whether a service can do its work now, and what an operator would look at. No secrets, no payloads."""

    ready: bool
    detail: Mapping[str, Any] = field(default_factory=dict)


Check = Callable[[], Awaitable[Health]]


class HealthDesk:
    """The health of all services of a process. Not ready while it drains, whatever they say."""

    def __init__(
        self, checks: Mapping[str, Check], metrics: Callable[[], str] = str, *, scrapers: ScrapeGate | None = None
    ) -> None:
        self.draining = False
        self._checks = dict(checks)
        self._metrics = metrics
        self._scrapers = scrapers or ScrapeGate()

    async def all(self) -> dict[str, Health]:
        """By service. One that does not answer in time, or fails, is not ready."""
        names = list(self._checks)
        found = await asyncio.gather(*(self._one(name) for name in names))
        return dict(zip(names, found, strict=True))

    def routes(self) -> list[Route]:
        """For an application that clients reach."""
        return self._routes(among_clients=True)

    def app(self) -> Starlette:
        """An application of its own, where no client comes."""
        return application(self._routes(among_clients=False))

    def _routes(self, *, among_clients: bool) -> list[Route]:
        async def measured(request: Request) -> Response:
            if not self._scrapers.admits(request, among_clients=among_clients):
                raise ProblemError(Code.UNAUTHENTICATED, _FOR_OPERATORS, headers={"WWW-Authenticate": "Bearer"})
            return await self._measured()

        return [Route("/healthz", _alive), Route("/readyz", self._ready), Route("/metrics", measured)]

    async def _one(self, name: str) -> Health:
        try:
            async with asyncio.timeout(CHECK_DEADLINE_S):
                health = await self._checks[name]()
        except Exception as exc:  # noqa: BLE001  any failure is the answer
            return Health(ready=False, detail={"error": type(exc).__name__})
        return Health(ready=False, detail={**health.detail, "draining": True}) if self.draining else health

    async def _ready(self, _request: Request) -> Response:
        found = await self.all()
        ready = all(health.ready for health in found.values())
        services = {name: {"ready": health.ready, **health.detail} for name, health in found.items()}
        return json_response({"ready": ready, "services": services}, 200 if ready else 503)

    async def _measured(self) -> Response:
        lines = _ready_lines(await self.all())
        return Response(self._metrics() + "\n".join([*lines, ""]), media_type=MEDIA_TYPE)


async def _alive(_request: Request) -> Response:
    return json_response({"alive": True})


def _ready_lines(found: Mapping[str, Health]) -> Iterable[str]:
    yield f"# HELP {Metric.READY.value} {HELP[Metric.READY]}"
    yield f"# TYPE {Metric.READY.value} gauge"
    for name, health in found.items():
        yield sample(Metric.READY.value, {Attribute.SERVICE.value: name}, float(health.ready))
