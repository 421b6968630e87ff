"""What `runlane up` puts together: every service, on one loop and one port."""

import asyncio
import contextlib
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING

from pydantic import SecretStr

from runlane.audit_sink import app as audit_sink
from runlane.audit_sink.settings import AuditSinkSettings
from runlane.cli.failures import Failure
from runlane.cli.key_file import KeyFile
from runlane.cli.state_dir import ConnectionInfo, Secrets, StateDir, option_for, program
from runlane.command_gateway import app as command_gateway
from runlane.command_gateway.settings import CommandGatewaySettings
from runlane.edge_gateway import app as edge_gateway
from runlane.edge_gateway.settings import EdgeGatewaySettings
from runlane.hosting.connections import Connections
from runlane.hosting.health import HealthDesk
from runlane.hosting.http_server import HttpAddress
from runlane.hosting.nats_server import EmbeddedServer
from runlane.hosting.service import Process, Running, Service, Site, run
from runlane.hosting.settings import AccessSettings, CommonSettings
from runlane.hosting.telemetry import Telemetry, configure_logging, start_telemetry
from runlane.kernel.clock import utc_now
from runlane.kernel.connection import Connection
from runlane.kernel.durable import unpin
from runlane.kernel.errors import KernelError
from runlane.kernel.provision import provision
from runlane.metrics_aggregator import app as metrics_aggregator
from runlane.metrics_aggregator.settings import MetricsAggregatorSettings
from runlane.projector import app as projector
from runlane.projector.settings import ProjectorSettings
from runlane.redaction_filter import app as redaction_filter
from runlane.redaction_filter.settings import RedactionFilterSettings
from runlane.retention import app as retention
from runlane.retention.settings import RetentionSettings
from runlane.run_supervisor import app as run_supervisor
from runlane.run_supervisor.settings import RunSupervisorSettings
from runlane_contracts.access import OBSERVER, OPERATOR, SUBSCRIBER
from runlane_contracts.streams import Layout
from runlane_contracts.telemetry import LogEvent

if TYPE_CHECKING:
    from runlane.cli.up import Options

log = logging.getLogger(__name__)

INSTANCE = "up"
StartDemo = Callable[[str, str], None]


async def run_all(server: EmbeddedServer, secrets: Secrets, state: StateDir, options: "Options") -> None:
    """Serve until a signal comes. The broker runs already; it is stopped by the caller, last."""
    common = CommonSettings(
        nats_url=server.url, health_port=-1, instance=INSTANCE, subject_root=server.layout.root,
    )  # fmt: skip
    configure_logging(common, INSTANCE)
    # The database driver's thread must not hold the loop, which carries every append and frame, for the usual 5 ms.
    sys.setswitchinterval(0.0005)
    telemetry = start_telemetry(common, INSTANCE, version("runlane"))
    KeyFile(state.api_keys).begin_with(secrets.api_keys.items())
    # Besides these, the environment may name an issuer of tokens (`RUNLANE_JWT_…`).
    access = AccessSettings(api_keys_file=state.api_keys, cursor_keys=SecretStr(_signing_first(secrets)))
    async with _closing(telemetry), _connections(server, secrets) as connections:
        operator = await connections.of(OPERATOR)
        await provision(operator, server.layout, now=utc_now)
        await _unpin_the_dead(operator, server.layout)
        await _audit_keys(operator, server.layout, state)
        async with _demo(options) as start_demo:

            def on_ready(process: Process) -> None:
                url = process.addresses[0].url
                state.announce(_info(url, server, secrets))
                _tell(url, server, secrets, options)
                start_demo(url, secrets.api_keys["demo"])

            await run(
                _services(common, access, state, secrets),
                settings=common, connections=connections, on_ready=on_ready, telemetry=telemetry,
                sites=lambda running, desk: _sites(running, desk, options),
            )  # fmt: skip


@asynccontextmanager
async def _closing(telemetry: Telemetry) -> AsyncIterator[None]:
    """What a collector has not got yet is sent when everything else has stopped."""
    try:
        yield
    finally:
        await asyncio.to_thread(telemetry.close)


async def _audit_keys(operator: Connection, layout: Layout, state: StateDir) -> None:
    """Keys that were changed while nothing ran here."""
    file = KeyFile(state.api_keys)
    try:
        with file.locked():
            await file.journal.hand_over(operator, layout)
    except (Failure, KernelError) as exc:
        log.warning("changes of keys wait for the audit: %s", exc, extra={"event": LogEvent.REFUSALS_WAIT})


async def _unpin_the_dead(operator: Connection, layout: Layout) -> None:
    """Nobody else works on this folder: whoever is pinned to a durable was killed, and need not be waited for."""
    pinned = [spec for spec in layout.consumers() if spec.pinned]
    await asyncio.gather(*(unpin(operator, spec) for spec in pinned))


def _services(common: CommonSettings, access: AccessSettings, state: StateDir, secrets: Secrets) -> list[Service]:
    store, objects = state.read_store_url, state.object_store_url
    command = CommandGatewaySettings(object_store_url=objects, common=common, access=access)
    edge = EdgeGatewaySettings(
        common=common, access=access, read_store_url=store, object_store_url=objects, command_gateway_url=None,
    )  # fmt: skip
    fold = ProjectorSettings(common=common, read_store_url=store, object_store_url=objects)
    mask = RedactionFilterSettings(common=common)
    decide = RunSupervisorSettings(common=common)
    keep = RetentionSettings(common=common, read_store_url=store, object_store_url=objects)
    count = MetricsAggregatorSettings(common=common)
    seal = AuditSinkSettings(
        common=common, signing_key=SecretStr(secrets.audit_signing_key), broker_logs=(state.broker_log,)
    )
    return [
        lambda connections: redaction_filter.serve(mask, connections),
        lambda connections: projector.serve(fold, connections),
        lambda connections: run_supervisor.serve(decide, connections),
        lambda connections: audit_sink.serve(seal, connections),
        lambda connections: metrics_aggregator.serve(count, connections),
        lambda connections: command_gateway.serve(command, connections),
        lambda connections: edge_gateway.serve(edge, connections),
        lambda connections: retention.serve(keep, connections),
    ]


def _sites(running: Sequence[Running], desk: HealthDesk, options: "Options") -> list[Site]:
    by_name = {one.name: one for one in running}
    door = edge_gateway.joined(by_name[edge_gateway.NAME].asgi, by_name[command_gateway.NAME].asgi, desk)
    return [Site(door, HttpAddress(options.host, options.port))]


def _connections(server: EmbeddedServer, secrets: Secrets) -> Connections:
    return Connections(url=server.url, passwords=secrets.broker_passwords, instance=INSTANCE)


def _signing_first(secrets: Secrets) -> str:
    ids = [secrets.cursor_key_id, *(key for key in secrets.cursor_keys if key != secrets.cursor_key_id)]
    return ",".join(f"{key}:{secrets.cursor_keys[key]}" for key in ids)


# --- what it says -------------------------------------------------------------------------------------------


def _info(url: str, server: EmbeddedServer, secrets: Secrets) -> ConnectionInfo:
    return ConnectionInfo(
        url=url, nats_url=server.url_of(OBSERVER), operator_nats_url=server.url_of(OPERATOR),
        worker_nats_url=server.url_of("worker"), subscriber_nats_url=server.url_of(SUBSCRIBER),
        tokens=secrets.api_keys, pid=os.getpid(),
    )  # fmt: skip


def _tell(url: str, server: EmbeddedServer, secrets: Secrets, options: "Options") -> None:
    if options.as_json:
        ready = {"ready": True, "url": url, "nats_url": server.url_of(OBSERVER), "tokens": secrets.api_keys}
        print(json.dumps(ready), flush=True)
        return
    where = option_for(options.state_dir)
    print(
        f"\nRunlane is up. Open\n\n    {url}/#token={secrets.api_keys['demo']}\n\n"
        f"or, in another terminal:  {program()} runs{where}   ·   {program()} watch latest{where}\n"
        f"Its state is in {options.state_dir}; Ctrl-C stops it, and starting it again continues.\n",
        file=sys.stderr, flush=True,
    )  # fmt: skip


@asynccontextmanager
async def _demo(options: "Options") -> AsyncIterator[StartDemo]:
    """Starts the demo agent as a process of its own, and ends it with us."""
    child: asyncio.Task[None] | None = None

    def start(url: str, token: str) -> None:
        nonlocal child
        if options.demo:
            child = asyncio.get_running_loop().create_task(_run_demo(url, token))

    try:
        yield start
    finally:
        if child is not None:
            child.cancel()
            await asyncio.gather(child, return_exceptions=True)


async def _run_demo(url: str, token: str) -> None:
    environment = {**os.environ, "RUNLANE_URL": url, "RUNLANE_TOKEN": token}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "runlane.cli", "demo", "--json", env=environment, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 5)
