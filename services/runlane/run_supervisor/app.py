"""Composition root of the run supervisor: the only place that builds concrete things."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from runlane.hosting.connections import Connections, connection_of
from runlane.hosting.health import Health
from runlane.hosting.measured_log import MeasuredLog
from runlane.hosting.service import Running
from runlane.hosting.spans import measured
from runlane.hosting.tasks import task_group
from runlane.kernel.clock import NewId, Now, new_id, utc_now
from runlane.kernel.connection import Connection
from runlane.kernel.consumer import BatchConsumer, EachConsumer
from runlane.kernel.dead_letter import DeadLetters
from runlane.kernel.direct import DirectReader
from runlane.kernel.errors import Retryable
from runlane.kernel.kv import Bucket
from runlane.kernel.lease import LeaseDesk
from runlane.kernel.ledger import Ledger
from runlane.kernel.nats_event_log import NatsEventLog
from runlane.kernel.publisher import WindowedPublisher
from runlane.kernel.run_log import RunLogs
from runlane.run_supervisor.dispatch import Dispatcher
from runlane.run_supervisor.follower import LogFollower
from runlane.run_supervisor.handler import CommandHandler, is_urgent
from runlane.run_supervisor.meters import Meters, report
from runlane.run_supervisor.moment_book import LOOK, MomentBook
from runlane.run_supervisor.settings import RunSupervisorSettings
from runlane.run_supervisor.sharing import Sharing
from runlane.run_supervisor.timetable import Fire, Timetable
from runlane.run_supervisor.watch import LEASE, LeaseWatch, RunWatch
from runlane_contracts.streams import Layout

log = logging.getLogger(__name__)

NAME = "run_supervisor"
MAX_FAILURES = 6
"""Unexpected failures of one command, over some five seconds: somebody waits for its outcome, and its run for it."""
MARKER_TTL_S = 60
"""A deleted lease or moment is shown to who follows for so long; dead ones must not pile up."""


@asynccontextmanager
async def serve(
    settings: RunSupervisorSettings,
    connections: Connections | None = None,
    *,
    now: Now = utc_now,
    new_id: NewId = new_id,
) -> AsyncIterator[Running]:
    """The supervisor, deciding. Everything that came due while none ran is being looked at."""
    layout = settings.common.layout
    async with connection_of(NAME, connections) as connection:
        supervisor = _Supervisor(settings, connection, layout, now=now, new_id=new_id)
        async with task_group() as tasks:
            await supervisor.start(tasks)
            await supervisor.caught_up()
            yield Running(name=NAME, health=supervisor.health, consumers=supervisor.consumers)
            await supervisor.stop()


class Message(Protocol):
    """What comes on a core subject."""

    @property
    def data(self) -> bytes: ...


class _Supervisor:
    """Everything of one supervisor, wired."""

    def __init__(
        self, settings: RunSupervisorSettings, connection: Connection, layout: Layout, *, now: Now, new_id: NewId
    ) -> None:
        self._settings, self._connection = settings, connection
        self._publisher = WindowedPublisher(connection)
        self._direct = DirectReader(connection)
        self._run_logs = RunLogs(
            MeasuredLog(NatsEventLog(connection, layout, publisher=self._publisher, direct=self._direct), layout, NAME),
            now=now,
            new_id=new_id,
            max_runs=settings.max_open_runs,
            max_facts=settings.max_kept_facts,
        )
        dispatcher = Dispatcher(self._publisher, layout.subjects)
        meters = Meters()
        looks: dict[str, Fire] = {}
        self._timetable = Timetable(looks, now=now, concurrency=settings.timer_concurrency)
        self._book = MomentBook(self._bucket(layout.timer_bucket), self._timetable)
        leases = self._bucket(layout.lease_bucket)
        self._leases = LeaseWatch(leases, LeaseDesk(leases, self._run_logs, now=now), self._timetable)
        runs = RunWatch(self._run_logs, self._book, dispatcher, meters=meters, now=now)
        looks |= {LOOK: runs.look, LEASE: self._leases.look}
        handler = CommandHandler(
            run_logs=self._run_logs,
            ledger=Ledger(self._bucket(layout.ledger_bucket)),
            dispatcher=dispatcher,
            wake=connection.nc.publish,
            subjects=layout.subjects,
            meters=meters,
            expiry_s=settings.command_expiry_s,
            now=now,
        )
        follower = LogFollower(self._book, self._leases.on_end, now=now)
        self._commands = self._command_consumers(layout, handler)
        self._logs = self._log_consumers(layout, follower)
        self._sharing = Sharing(new_id("sup"), self._commands, self._say_share)
        self._share_subject = layout.subjects.service(NAME, "share")
        self._mirrors = (asyncio.Event(), asyncio.Event())
        self._tasks: list[asyncio.Task[None]] = []
        self._consuming: list[asyncio.Task[None]] = []
        report(
            meters,
            NAME,
            leases=self._leases.__len__,
            moments=self._book.__len__,
            looks=lambda: (self._timetable.fired, self._timetable.failed),
        )

    def _command_consumers(self, layout: Layout, handler: CommandHandler) -> list[EachConsumer]:
        return [
            EachConsumer(
                self._connection,
                spec,
                layout,
                handler.handle,
                dead_letters=DeadLetters(self._publisher, layout, NAME),
                concurrency=self._settings.command_concurrency,
                urgent=is_urgent,
                max_failures=MAX_FAILURES,
                on_buried=handler.buried,
                share=lambda subject: layout.subjects.run_of(subject).tenant_id,
            )
            for spec in layout.consumers()
            if spec.service == NAME and spec.stream == layout.command_stream
        ]

    def _log_consumers(self, layout: Layout, follower: LogFollower) -> list[BatchConsumer]:
        return [
            BatchConsumer(
                self._connection, spec, layout, measured(follower.handle, spec, layout.subjects, in_traces=False)
            )
            for spec in layout.consumers()
            if spec.service == NAME and spec.stream != layout.command_stream
        ]

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Begin everything."""
        moments, leases = self._mirrors
        self._tasks = [
            tasks.create_task(self._book.mirror(moments)),
            tasks.create_task(self._leases.mirror(leases)),
            tasks.create_task(self._timetable.run()),
        ]
        self._consuming = [tasks.create_task(consumer.run()) for consumer in self.consumers]
        if len(self._commands) > 1:
            await self._connection.nc.subscribe(self._share_subject, cb=self._hear_share)
            self._tasks.append(tasks.create_task(self._sharing.run()))

    async def _hear_share(self, message: Message) -> None:
        await self._sharing.hear(message.data)

    async def _say_share(self, data: bytes) -> None:
        try:
            await self._connection.nc.publish(self._share_subject, data)
        except Exception as exc:  # noqa: BLE001  whatever it is, the next word comes soon
            log.debug("the share could not be said: %s", exc)

    @property
    def consumers(self) -> "tuple[EachConsumer | BatchConsumer, ...]":
        """Of commands, then of the log."""
        return (*self._commands, *self._logs)

    async def caught_up(self) -> None:
        """Until every moment and lease is known. Raises Retryable."""
        try:
            async with asyncio.timeout(self._settings.start_timeout_s):
                for known in self._mirrors:
                    await known.wait()
        except TimeoutError as exc:
            raise Retryable("the moments and leases cannot be read; are the buckets provisioned?") from exc

    async def stop(self) -> None:
        """Finish what is in hand, within its time; what is not acknowledged comes again."""
        for task in self._tasks:
            task.cancel()
        for consumer in self.consumers:
            consumer.stop()
        _, late = await asyncio.wait(self._consuming, timeout=self._settings.drain_s)
        for task in late:
            task.cancel()
        await self._run_logs.close()
        await self._publisher.close()
        await self._direct.close()

    async def health(self) -> Health:
        """Ready while the broker answers."""
        return Health(
            ready=self._connection.is_connected,
            detail={
                "commands": [_of(one) for one in self._commands],
                "log": [_of(one) for one in self._logs],
                "moments": len(self._book),
                "leases": len(self._leases),
                "looks": self._timetable.fired,
                "failed_looks": self._timetable.failed,
            },
        )

    def _bucket(self, name: str) -> Bucket:
        return Bucket(self._publisher, self._direct, name, marker_ttl_s=MARKER_TTL_S)


def _of(consumer: EachConsumer | BatchConsumer) -> dict[str, object]:
    stats = consumer.stats
    return {
        "active": stats.is_active,
        "lag": stats.lag,
        "in_hand": stats.in_hand,
        "retried": stats.retried,
        "buried": stats.buried,
        "trouble": stats.trouble,
    }
