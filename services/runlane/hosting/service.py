"""Run services in a process: life cycle, signals, health, what an operator may ask over the broker.

FastStream is the shell: it owns the signals, the order of starting and stopping, and the request/reply
subscribers. What must not get lost goes through the kernel, never through here.
"""

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import uvloop
from faststream import AckPolicy, FastStream
from faststream.nats import NatsBroker, NatsMessage
from faststream.security import SASLPlaintext
from pydantic import ValidationError
from starlette.types import ASGIApp

from runlane.hosting.connections import Connections, Credentials
from runlane.hosting.health import Health, HealthDesk
from runlane.hosting.http_server import HttpAddress, HttpPortTaken, http_server
from runlane.hosting.scrape_gate import ScrapeGate
from runlane.hosting.settings import CommonSettings, SettingsInvalid
from runlane.hosting.telemetry import Telemetry, configure_logging, observe_consumers, start_telemetry
from runlane.kernel.durable import DurableConsumer
from runlane.kernel.errors import Permanent, Retryable
from runlane.kernel.faults import trace_of
from runlane_contracts.access import inbox_prefix
from runlane_contracts.codec import encode
from runlane_contracts.lifecycle import Refused
from runlane_contracts.problems import Code, problem_document
from runlane_contracts.subjects import Subjects
from runlane_contracts.telemetry import SCOPE, LogEvent

log = logging.getLogger(__name__)

EXIT_FAILED, EXIT_USAGE, EXIT_UNREACHABLE = 1, 2, 3

Operation = Callable[[bytes], Awaitable[bytes]]
"""What an operator may ask: JSON in, JSON out. A `Refused` becomes a problem document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A service that has started. It exists inside the `serve(…)` block only."""

    name: str
    health: Callable[[], Awaitable[Health]]
    asgi: ASGIApp | None = None
    listen: HttpAddress | None = None
    """Where its own HTTP belongs, when it has a process of its own."""
    operations: Mapping[str, Operation] = field(default_factory=dict)
    consumers: Sequence[DurableConsumer] = ()
    """Whose lag and counts are measured."""
    drain: Callable[[], Awaitable[None]] | None = None
    """Called first when stopping: end what would otherwise go on for ever, such as open watches."""


Service = Callable[[Connections], AbstractAsyncContextManager[Running]]
"""Entering starts it and returns when it works; leaving drains and stops it."""


@dataclass(frozen=True, slots=True)
class Site:
    """An application and where it listens."""

    app: ASGIApp
    address: HttpAddress


@dataclass(frozen=True, slots=True)
class Process:
    """Everything that runs, once it does."""

    services: tuple[Running, ...]
    addresses: tuple[HttpAddress, ...]
    """In the order of the sites."""
    desk: HealthDesk


Sites = Callable[[Sequence[Running], HealthDesk], Sequence[Site]]


async def run(
    services: Sequence[Service],
    *,
    settings: CommonSettings,
    connections: Connections,
    sites: Sites | None = None,
    telemetry: Telemetry | None = None,
    on_ready: Callable[[Process], None] | None = None,
) -> None:
    """Run until SIGTERM or SIGINT, or until one of them fails; then drain and stop all, the last started first.

    `sites`: what listens where; by default each service's own HTTP, and health where the settings say.

    Raises:
        ConnectionLost: the broker closed a connection for good.
        whatever a service failed with.
    """
    process: Process | None = None

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        nonlocal process
        async with asyncio.timeout(None) as limit, _process(services, settings, connections, sites, telemetry) as all_:
            process = all_
            for one in process.services:
                app.add_broker(control_broker(one, connections.credentials(one.name), settings, telemetry))
            yield
            limit.reschedule(asyncio.get_running_loop().time() + settings.drain_deadline_s)
            log.info("draining", extra={"event": LogEvent.SERVICE_DRAINING})
            process.desk.draining = True
            await _drain(process.services, settings.drain_deadline_s)
        log.info("stopped", extra={"event": LogEvent.SERVICE_STOPPED})

    async def announce() -> None:  # a plain function would run in a thread
        if process is not None:
            log.info("started", extra={"event": LogEvent.SERVICE_STARTED, "services": _names(process.services)})
            if on_ready is not None:
                on_ready(process)

    app = FastStream(logger=None, lifespan=lifespan, after_startup=[announce])
    try:
        async with _watched(app, connections):
            await app.run(sleep_time=0.05)
    except BaseExceptionGroup as group:
        # Each service's task group wraps what ended it; who starts us wants the cause.
        cause = sole_cause(group)
        if cause is None:
            raise
        raise cause from None


def sole_cause(group: BaseExceptionGroup[BaseException]) -> BaseException | None:
    """The one exception that a group wraps, however deep; None if it wraps several."""
    if len(group.exceptions) != 1:
        return None
    only = group.exceptions[0]
    return sole_cause(only) if isinstance(only, BaseExceptionGroup) else only


@asynccontextmanager
async def _watched(app: FastStream, connections: Connections) -> AsyncIterator[None]:
    """Ends the application when a connection is gone for good."""

    async def watch() -> None:
        await connections.lost.wait()
        app.exit()

    watcher = asyncio.get_running_loop().create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
    if connections.lost.is_set():
        raise ConnectionLost("a broker connection closed for good")


class ConnectionLost(RuntimeError):
    """The process can do no more without its broker connection; start it again."""


@asynccontextmanager
async def _process(
    services: Sequence[Service],
    settings: CommonSettings,
    connections: Connections,
    sites: Sites | None,
    telemetry: Telemetry | None,
) -> AsyncIterator[Process]:
    async with AsyncExitStack() as stack:
        running = [await stack.enter_async_context(service(connections)) for service in services]
        if telemetry is not None:
            observe_consumers({one.name: one.consumers for one in running})
        desk = HealthDesk(
            {one.name: one.health for one in running},
            str if telemetry is None else telemetry.exposition,
            scrapers=ScrapeGate(settings.scraper_token),
        )
        wanted = own_sites(running, desk, settings) if sites is None else sites(running, desk)
        addresses = [
            await stack.enter_async_context(
                http_server(
                    site.app,
                    host=site.address.host,
                    port=site.address.port,
                    drain_deadline_s=settings.drain_deadline_s / 2,
                )
            )
            for site in wanted
        ]
        yield Process(tuple(running), tuple(addresses), desk)


def own_sites(running: Sequence[Running], desk: HealthDesk, settings: CommonSettings) -> list[Site]:
    """Each service's HTTP where the service wants it; health where the settings ask for it, or there is no other."""
    sites = [Site(one.asgi, one.listen) for one in running if one.asgi is not None and one.listen is not None]
    if settings.health_port > 0 or (settings.health_port == 0 and not sites):
        sites.append(Site(desk.app(), HttpAddress(settings.health_host, settings.health_port)))
    return sites


async def _drain(services: Iterable[Running], deadline_s: float) -> None:
    drains = [one.drain() for one in services if one.drain is not None]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(deadline_s / 2):
            await asyncio.gather(*drains)


def _names(services: Iterable[Running]) -> str:
    return ",".join(one.name for one in services)


# --- what an operator may ask -------------------------------------------------------------------------------


def control_broker(
    running: Running, who: Credentials, settings: CommonSettings, telemetry: Telemetry | None = None
) -> NatsBroker:
    """A FastStream broker that answers `rl.svc.<name>.<verb>` for a service: its operations, and `ping`."""
    broker = NatsBroker(
        who.url.split(","),
        name=f"{running.name}/{settings.instance}/control",
        security=None if who.user is None else SASLPlaintext(username=who.user, password=who.password or ""),
        inbox_prefix=b"_INBOX" if who.user is None else inbox_prefix(who.user).encode(),
        max_reconnect_attempts=-1,
        reconnect_time_wait=1,
        ping_interval=5,
        max_outstanding_pings=2,
        connect_timeout=3,
        drain_timeout=3,
        flush_timeout=3,
        middlewares=_middlewares(telemetry),
        logger=None,
    )
    subjects = Subjects(settings.subject_root)
    for verb, operation in {"ping": _ping(running, settings), **running.operations}.items():
        _answer(broker, subjects.service(running.name, verb), running.name, operation)
    return broker


def _middlewares(telemetry: Telemetry | None) -> tuple[Any, ...]:
    if telemetry is None or not telemetry.is_exported:
        return ()
    from faststream.nats.opentelemetry import NatsTelemetryMiddleware  # noqa: PLC0415  only with a collector

    return (NatsTelemetryMiddleware(tracer_provider=telemetry.tracer_provider),)


def _answer(broker: NatsBroker, subject: str, queue: str, operation: Operation) -> None:
    # Core NATS: one instance of the queue group answers. MANUAL, since the default would judge for us.
    @broker.subscriber(subject, queue=queue, ack_policy=AckPolicy.MANUAL)
    async def answer(message: NatsMessage) -> bytes:
        try:
            return await operation(message.body)
        except Refused as exc:
            return encode(problem_document(exc.code, exc.detail))
        except Retryable as exc:
            return encode(problem_document(Code.OVERLOADED, str(exc), retry_after_s=exc.retry_after_s))
        except Exception as exc:  # noqa: BLE001  the operator gets an answer whatever it is
            log.error("%s: %s", subject, trace_of(exc), extra={"event": LogEvent.SERVICE_FAILED})  # noqa: TRY400
            return encode(problem_document(Code.INTERNAL))


def _ping(running: Running, settings: CommonSettings) -> Operation:
    async def ping(_body: bytes) -> bytes:
        health = await running.health()
        return encode({
            "name": running.name,
            "version": version(SCOPE),
            "instance": settings.instance,
            "ready": health.ready,
            "detail": dict(health.detail),
        })  # fmt: skip

    return ping


# --- a process of its own -----------------------------------------------------------------------------------


def main(name: str, service: Service) -> None:
    """`python -m runlane.<name>`: settings, logs, telemetry, then `run` on uvloop.

    Exits with 0 after a signal, 1 when it failed, 2 when the settings are wrong, 3 when the broker is out of reach.
    """
    try:
        settings = CommonSettings()
    except ValidationError as exc:
        sys.exit(_usage(exc))
    configure_logging(settings, name)
    # Until the loop has its own handlers, a signal ends the process at once: nothing has begun.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    sys.exit(uvloop.run(_main(name, service, settings)))


async def _main(name: str, service: Service, settings: CommonSettings) -> int:
    telemetry = start_telemetry(settings, name, version(SCOPE))
    try:
        async with Connections.of_settings(settings, name) as connections:
            await run([service], settings=settings, connections=connections, telemetry=telemetry)
    except ValidationError as exc:
        return _usage(exc)
    except SettingsInvalid as exc:
        log.error("%s", exc, extra={"event": LogEvent.SERVICE_FAILED})  # noqa: TRY400  the text says it all
        return EXIT_USAGE
    except (Retryable, Permanent, ConnectionLost, HttpPortTaken) as exc:
        log.error("%s", exc, extra={"event": LogEvent.SERVICE_FAILED})  # noqa: TRY400  the text says it all
        return EXIT_UNREACHABLE if isinstance(exc, (Retryable, ConnectionLost)) else EXIT_FAILED
    except Exception as exc:  # noqa: BLE001  the process ends with it
        log.error("failed: %s", trace_of(exc), extra={"event": LogEvent.SERVICE_FAILED})  # noqa: TRY400
        return EXIT_FAILED
    finally:
        await asyncio.to_thread(telemetry.close)
    return 0


def _usage(exc: ValidationError) -> int:
    for error in exc.errors(include_url=False, include_input=False):
        where = ".".join(str(part) for part in error["loc"])
        print(f"setting {where}: {error['msg']}", file=sys.stderr)  # noqa: T201  before there is a log
    return EXIT_USAGE
