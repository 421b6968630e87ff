"""Composition root of the command gateway: the only place that builds concrete things."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.routing import Route

from runlane.command_gateway.admission import Admission, watch_fullness, watch_waiting
from runlane.command_gateway.claims import ClaimsDesk
from runlane.command_gateway.commands import CommandsDesk
from runlane.command_gateway.content import ContentDesk
from runlane.command_gateway.door import Door
from runlane.command_gateway.events import EventsDesk
from runlane.command_gateway.intake import Intake
from runlane.command_gateway.leases import LeasesDesk
from runlane.command_gateway.meters import report
from runlane.command_gateway.outcomes import Outcomes
from runlane.command_gateway.previews import PreviewsDesk
from runlane.command_gateway.quota import Quota
from runlane.command_gateway.runs import RunsDesk
from runlane.command_gateway.settings import CommandGatewaySettings
from runlane.command_gateway.strays import Strays
from runlane.hosting.access import authorizer_of
from runlane.hosting.authorizer import Authorizer
from runlane.hosting.connections import Connections, connection_of
from runlane.hosting.health import Health
from runlane.hosting.http import application
from runlane.hosting.http_server import HttpAddress
from runlane.hosting.measured_log import MeasuredLog
from runlane.hosting.refusals import RefusalLog
from runlane.hosting.service import Running
from runlane.hosting.tasks import task_group
from runlane.kernel.clock import new_id, utc_now
from runlane.kernel.connection import Connection
from runlane.kernel.direct import DirectReader
from runlane.kernel.kv import Bucket
from runlane.kernel.lease import LeaseDesk
from runlane.kernel.ledger import Ledger
from runlane.kernel.nats_event_log import NatsEventLog
from runlane.kernel.preview_bus import PreviewBus
from runlane.kernel.publisher import WindowedPublisher
from runlane.kernel.run_log import RunLogs
from runlane.kernel.seats import Seats
from runlane.kernel.tenants import TenantBook
from runlane.kernel.work import WorkBoard
from runlane.object_store.content import Contents
from runlane.object_store.store import Objects
from runlane_contracts.cursor import CursorKeys
from runlane_contracts.streams import Layout

NAME = "command_gateway"
REPLICA_LAG_S = 0.1
"""After so long a replica has what its leader acknowledged."""
MARKER_TTL_S = 60
"""A deleted lease or moment is shown to who follows for so long; dead ones must not pile up."""


@asynccontextmanager
async def serve(settings: CommandGatewaySettings, connections: Connections | None = None) -> AsyncIterator[Running]:
    """The gateway, ready to serve."""
    layout = settings.common.layout
    async with authorizer_of(settings.access) as authorizer, connection_of(NAME, connections) as connection:
        gateway = _Gateway(settings, connection, layout, authorizer, settings.access.signing_keys())
        async with task_group() as tasks:
            await gateway.start(tasks)
            async with gateway.refusals:
                yield Running(
                    name=NAME,
                    health=gateway.health,
                    asgi=application(gateway.routes(), on_refusal=gateway.refusals.of_http, service=NAME),
                    listen=HttpAddress(settings.http_host, settings.http_port),
                )
            await gateway.stop()


class _Gateway:
    """Everything of one gateway, wired."""

    def __init__(
        self,
        settings: CommandGatewaySettings,
        connection: Connection,
        layout: Layout,
        authorizer: Authorizer,
        cursors: CursorKeys,
    ) -> None:
        self._settings, self._connection, self._layout = settings, connection, layout
        self._cursors = cursors
        self._publisher = WindowedPublisher(connection)
        self._direct = DirectReader(connection)
        self._run_logs = RunLogs(
            MeasuredLog(NatsEventLog(connection, layout, publisher=self._publisher, direct=self._direct), layout, NAME),
            now=utc_now,
            new_id=new_id,
            max_runs=settings.max_open_runs,
            max_facts=settings.max_kept_facts,
        )
        look_again_s = REPLICA_LAG_S if layout.replicas > 1 else 0.0
        self._door = Door(authorizer, self._run_logs, look_again_s=look_again_s)
        self._limits = TenantBook(self._bucket(layout.tenant_bucket))
        self._seats = Seats(self._direct, layout.lease_bucket, self._limits, now=utc_now)
        leases = self._bucket(layout.lease_bucket)
        self._leases = LeaseDesk(leases, self._run_logs, now=utc_now, seats=self._seats)
        ledger = Ledger(self._bucket(layout.ledger_bucket))
        self._outcomes = Outcomes(ledger.find, look_every_s=settings.outcome_poll_s)
        self._intake = Intake(
            ledger=ledger,
            publisher=self._publisher,
            outcomes=self._outcomes,
            subjects=layout.subjects,
            now=utc_now,
            new_id=new_id,
            sample_ratio=settings.common.telemetry_sample_ratio,
            stream=layout.command_stream,
        )
        self._strays = Strays(
            self._direct,
            layout.ledger_bucket,
            self._intake.give_up,
            now=utc_now,
            older_than_s=settings.stray_after_s,
        )
        starts = Quota(rate_per_s=settings.starts_per_s, burst=settings.starts_burst)
        self._admission = Admission(
            quota=starts,
            max_starting=settings.max_starting,
            now=utc_now,
            max_starting_of_tenant=settings.max_starting_of_tenant,
            max_waiting_of_tenant=settings.max_waiting_of_tenant,
        )
        self._previews = PreviewBus(connection.nc.publish, layout.subjects)
        self.refusals = RefusalLog(self._publisher, layout.subjects, NAME)
        self._watches: list[asyncio.Task[None]] = []
        report(NAME, self._intake, self._admission, self._previews)

    def routes(self) -> list[Route]:
        """Everything that is this service's; whoever forwards to it needs these paths and methods."""
        return [*self._routes_of_clients(), *self._routes_of_producers()]

    def _routes_of_clients(self) -> list[Route]:
        settings = self._settings
        runs = RunsDesk(
            self._door,
            intake=self._intake,
            admission=self._admission,
            limits=self._limits,
            cursors=self._cursors,
            max_body_bytes=settings.max_command_bytes,
            wait_s=settings.start_wait_s,
            max_wait_s=settings.max_wait_s,
        )
        commands = CommandsDesk(
            self._door,
            intake=self._intake,
            strays=self._strays,
            cursors=self._cursors,
            max_body_bytes=settings.max_command_bytes,
            max_wait_s=settings.max_wait_s,
        )
        return [
            Route("/v1/runs", runs.post, methods=["POST"]),
            Route("/v1/runs/{run_id}/re-execute", runs.re_execute, methods=["POST"]),
            Route("/v1/runs/{run_id}/commands", commands.post, methods=["POST"]),
            Route("/v1/commands", commands.find, methods=["GET"]),
            Route("/v1/commands/{command_id}", commands.get, methods=["GET"]),
        ]

    def _routes_of_producers(self) -> list[Route]:
        settings = self._settings
        leases = LeasesDesk(self._door, leases=self._leases, now=utc_now)
        events = EventsDesk(self._door, max_body_bytes=settings.max_events_bytes)
        previews = PreviewsDesk(
            self._door,
            leases=self._leases,
            bus=self._previews,
            quota=Quota(rate_per_s=settings.preview_bytes_per_s, burst=settings.preview_burst_bytes),
            now=utc_now,
            max_body_bytes=settings.max_previews_bytes,
        )
        content = ContentDesk(
            self._door,
            contents=Contents(Objects.at(settings.object_store_url)),
            quota=Quota(rate_per_s=settings.content_bytes_per_s, burst=settings.content_burst_bytes),
            now=utc_now,
            max_bytes=settings.max_content_bytes,
        )
        board = WorkBoard(self._connection, self._direct, self._layout)
        claims = ClaimsDesk(
            self._door,
            board=board,
            leases=self._leases,
            run_logs=self._run_logs,
            limits=self._limits,
            seats=self._seats,
            claims_at_once=settings.claims_at_once,
        )
        return [
            Route("/v1/runs/{run_id}/lease", leases.post, methods=["POST"]),
            Route("/v1/runs/{run_id}/lease", leases.put, methods=["PUT"]),
            Route("/v1/runs/{run_id}/lease", leases.delete, methods=["DELETE"]),
            Route("/v1/runs/{run_id}/events", events.post, methods=["POST"]),
            Route("/v1/runs/{run_id}/previews", previews.post, methods=["POST"]),
            Route("/v1/content", content.post, methods=["POST"]),
            Route("/v1/pools/{pool}/claim", claims.post, methods=["POST"]),
        ]

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Listen for outcomes before the first command leaves, so that none is announced unheard."""
        await self._connection.nc.subscribe(self._layout.subjects.all_of("outcome"), cb=self._announced)
        await self._connection.nc.flush(5)
        fullness = watch_fullness(
            self._admission,
            self._direct,
            _bounds(self._layout),
            full_at=self._settings.full_at,
            every_s=self._settings.fullness_every_s,
        )
        waiting = watch_waiting(self._admission, self._waiting_of)
        strays = self._strays.watch(self._settings.stray_every_s)
        self._watches = [tasks.create_task(one) for one in (fullness, waiting, strays)]

    async def _waiting_of(self, tenant_id: str) -> int:
        return await self._direct.count(self._layout.work_stream, self._layout.subjects.work(tenant_id, "*"))

    async def stop(self) -> None:
        """Send what waits."""
        for watch in self._watches:
            watch.cancel()
        await self._previews.flush()
        await self._run_logs.close()
        await self._publisher.close()
        await self._direct.close()

    async def health(self) -> Health:
        """Ready while the broker answers."""
        return Health(
            ready=self._connection.is_connected,
            detail={
                "publishes_in_flight": self._publisher.in_flight,
                "waiting_for_outcomes": self._outcomes.count,
                "starting": self._admission.starting_count,
                "admits_runs": not self._admission.streams_full,
                "commands_given_up": self._strays.given_up,
                "previews_dropped": self._previews.counts.dropped,
                "refusals_dropped": self.refusals.dropped,
            },
        )

    async def _announced(self, message: object) -> None:
        self._outcomes.wake(message.data)  # type: ignore[attr-defined]

    def _bucket(self, name: str) -> Bucket:
        return Bucket(self._publisher, self._direct, name, marker_ttl_s=MARKER_TTL_S)


def _bounds(layout: Layout) -> Sequence[tuple[str, int]]:
    """The streams that a new run fills, and how many bytes each may hold."""
    filled = {
        layout.command_stream,
        layout.work_stream,
        *(layout.log_stream_at(index) for index in range(layout.log_streams)),
    }
    return [(spec.name, spec.max_bytes) for spec in layout.streams() if spec.name in filled]
