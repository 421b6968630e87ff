"""Composition root of the command gateway: the only place that builds concrete things."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.routing import Route

from runlane.command_gateway.acceptance import Acceptance, Outcomes
from runlane.command_gateway.commands import CommandRoutes
from runlane.command_gateway.producers import ProducerRoutes
from runlane.command_gateway.quota import TokenBuckets
from runlane.command_gateway.settings import CommandGatewaySettings
from runlane.hosting.authorizer import ApiKeyAuthorizer, Authorizer
from runlane.hosting.connections import Connections, connection_of
from runlane.hosting.health import Health
from runlane.hosting.http import application
from runlane.hosting.http_server import HttpAddress
from runlane.hosting.service import Running
from runlane.kernel.clock import new_id, utc_now
from runlane.kernel.connection import Connection
from runlane.kernel.direct import DirectReader
from runlane.kernel.kv import Bucket
from runlane.kernel.lease import LeaseDesk
from runlane.kernel.ledger import Ledger
from runlane.kernel.nats_event_log import NatsEventLog
from runlane.kernel.publisher import WindowedPublisher
from runlane.kernel.run_log import RunLogs
from runlane.kernel.work import WorkQueue

NAME = "command_gateway"


@asynccontextmanager
async def serve(settings: CommandGatewaySettings, connections: Connections | None = None) -> AsyncIterator[Running]:
    """The gateway, ready to serve."""
    async with connection_of(NAME, connections) as connection:
        gateway = _Gateway(settings, connection, ApiKeyAuthorizer.of_settings(settings.access))
        await gateway.start()
        try:
            yield Running(
                name=NAME,
                health=gateway.health,
                asgi=application(gateway.routes()),
                listen=HttpAddress(settings.http_host, settings.http_port),
            )
        finally:
            await gateway.stop()


class _Gateway:
    """Everything of one gateway, wired."""

    def __init__(self, settings: CommandGatewaySettings, connection: Connection, authorizer: Authorizer) -> None:
        layout = settings.common.layout
        self._connection, self._subjects = connection, layout.subjects
        self._publisher = WindowedPublisher(connection)
        self._direct = DirectReader(connection)
        self._outcomes = Outcomes()
        log = NatsEventLog(connection, layout, publisher=self._publisher, direct=self._direct)
        run_logs = RunLogs(
            log, now=utc_now, new_id=new_id, max_runs=settings.max_open_runs, max_facts=settings.max_kept_facts
        )
        leases = LeaseDesk(self._bucket(layout.lease_bucket), run_logs, now=utc_now)
        acceptance = Acceptance(
            Ledger(self._bucket(layout.ledger_bucket)), self._publisher, self._subjects, self._outcomes,
            now=utc_now, poll_s=settings.outcome_poll_s,
        )  # fmt: skip
        self._commands = CommandRoutes(
            settings=settings, authorizer=authorizer, acceptance=acceptance, run_logs=run_logs,
            cursor_keys=settings.access.signing_keys(), now=utc_now,
        )  # fmt: skip
        self._producers = ProducerRoutes(
            settings=settings, authorizer=authorizer, run_logs=run_logs, leases=leases,
            work=WorkQueue(connection, layout), publish_previews=connection.nc.publish, subjects=self._subjects,
            preview_quota=TokenBuckets(
                per_s=settings.previews_per_s, burst=settings.previews_burst, clock=asyncio.get_running_loop().time
            ),
        )  # fmt: skip

    def routes(self) -> list[Route]:
        return [*self._commands.routes(), *self._producers.routes()]

    async def start(self) -> None:
        # Interest is registered before the first command leaves, so no outcome is announced unheard.
        await self._connection.nc.subscribe(self._subjects.all_of("outcome"), cb=self._announced)
        await self._connection.nc.flush(5)

    async def stop(self) -> None:
        await self._publisher.close()
        await self._direct.close()

    async def health(self) -> Health:
        return Health(ready=self._connection.is_connected, detail={"publishes_in_flight": self._publisher.in_flight})

    async def _announced(self, message: object) -> None:
        tenant_id, command_id = self._subjects.run_of(message.subject)  # type: ignore[attr-defined]
        self._outcomes.wake(tenant_id, command_id)

    def _bucket(self, name: str) -> Bucket:
        return Bucket(self._publisher, self._direct, name)
