"""Composition root: one consumer of the signals, one watch on the broker, one way out for spans."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from pydantic import SecretStr

from runlane.hosting.connections import Connections, connection_of
from runlane.hosting.health import Health
from runlane.hosting.service import Running
from runlane.hosting.tasks import task_group
from runlane.kernel.clock import utc_now
from runlane.kernel.connection import Connection
from runlane.kernel.consumer import BatchConsumer
from runlane.kernel.direct import DirectReader
from runlane.kernel.errors import KernelError
from runlane.kernel.kv import Bucket
from runlane.kernel.publisher import WindowedPublisher
from runlane.metrics_aggregator.aggregator import Aggregator
from runlane.metrics_aggregator.broker import BrokerWatch, OpenConnection
from runlane.metrics_aggregator.checkpoint import CheckpointStore
from runlane.metrics_aggregator.content import Contents
from runlane.metrics_aggregator.export import SpanOutbox, otlp_sender
from runlane.metrics_aggregator.labels import Limits
from runlane.metrics_aggregator.meters import Histograms, report
from runlane.metrics_aggregator.settings import MetricsAggregatorSettings
from runlane_contracts.access import BROKER_MONITOR, CONTENT_READER
from runlane_contracts.telemetry import SCOPE

NAME = "metrics_aggregator"

log = logging.getLogger(__name__)


@asynccontextmanager
async def serve(settings: MetricsAggregatorSettings, connections: Connections | None = None) -> AsyncIterator[Running]:
    """Counts while the block lasts. Raises Retryable when the broker cannot be reached at the start."""
    async with (
        connection_of(NAME, connections) as connection,
        DirectReader(connection) as direct,
        _others(BROKER_MONITOR, settings.broker_password, settings, connections) as monitor,
        _contents(settings, connections) as contents,
    ):
        service = _Service(settings, connection, direct, monitor, contents)
        try:
            async with task_group() as tasks:
                counting = tasks.create_task(service.consumer.run())
                others = [tasks.create_task(one) for one in service.background()]
                try:
                    yield Running(name=NAME, health=service.health, consumers=[service.consumer])
                finally:
                    service.consumer.stop()
                    await asyncio.wait([counting])
                    await service.aggregator.checkpoint(at_the_end=True)
                    for task in others:
                        task.cancel()
        finally:
            await service.close()


@asynccontextmanager
async def _others(
    user: str, password: SecretStr | None, settings: MetricsAggregatorSettings, connections: Connections | None
) -> AsyncIterator[OpenConnection | None]:
    """How to connect as another user, who may what this service may not; None where there is no such user."""
    if password is not None:
        common = settings.common
        passwords = {user: password.get_secret_value()}
        async with Connections(url=common.nats_url, passwords=passwords, instance=common.instance) as own:
            yield lambda: own.of(user)
    elif connections is not None and connections.has(user):
        yield lambda: connections.of(user)
    else:
        yield None


@asynccontextmanager
async def _contents(
    settings: MetricsAggregatorSettings, connections: Connections | None
) -> AsyncIterator[Contents | None]:
    """What reads content for spans. None, and no connection that could: no tenant wants it, or nobody may."""
    if not settings.content_of or settings.common.telemetry_endpoint is None:
        yield None
        return
    async with _others(CONTENT_READER, settings.content_password, settings, connections) as reader:
        connection = None if reader is None else await _tried(reader)
        if connection is None:
            log.warning("spans show no content: %s is not let in by the broker", CONTENT_READER)
            yield None
            return
        async with DirectReader(connection) as direct:
            chars = settings.content_max_chars
            yield Contents(direct, settings.common.layout, settings.content_of, max_chars=chars)


async def _tried(reader: OpenConnection) -> Connection | None:
    """Counting does not fail for want of content."""
    try:
        return await reader()
    except KernelError as exc:
        log.info("%s: %s", CONTENT_READER, exc)
        return None


class _Service:
    """Everything of one aggregator, wired."""

    def __init__(
        self,
        settings: MetricsAggregatorSettings,
        connection: Connection,
        direct: DirectReader,
        monitor: OpenConnection | None,
        contents: Contents | None,
    ) -> None:
        layout = settings.common.layout
        (spec,) = (one for one in layout.consumers() if one.service == NAME)
        self._settings, self._connection, self._contents = settings, connection, contents
        self._publisher = WindowedPublisher(connection)
        send = otlp_sender(settings.common, NAME, version(SCOPE))
        self._outbox = None if send is None else SpanOutbox(
            send, now=utc_now, max_waiting=settings.max_waiting_spans, max_age_s=settings.max_span_age_s,
            contents=contents,
        )  # fmt: skip
        self._broker = BrokerWatch(connection, layout, now=utc_now, monitor=monitor)
        self.aggregator = Aggregator(
            store=CheckpointStore(Bucket(self._publisher, direct, layout.rollup_bucket)),
            direct=direct, stream=spec.stream, durations=Histograms(), limits=_limits(settings),
            max_open_runs=settings.max_open_runs, now=utc_now, outbox=self._outbox,
            is_active=lambda: self.consumer.stats.is_active,
            content_of=frozenset() if contents is None else settings.content_of,
        )  # fmt: skip
        self.consumer = BatchConsumer(
            connection, spec, layout, self.aggregator.handle, max_batch=settings.batch_messages,
            on_active=self.aggregator.on_active,
        )  # fmt: skip
        report(self.aggregator, self._outbox, now=utc_now)
        self._broker.report()

    def background(self) -> list[Coroutine[Any, Any, None]]:
        """What goes on beside the counting."""
        work = [self._keep_checkpoints(), self._broker.run(self._settings.broker_interval_s)]
        return work if self._outbox is None else [*work, self._outbox.run()]

    async def _keep_checkpoints(self) -> None:
        while True:
            await asyncio.sleep(self._settings.checkpoint_s)
            await self.aggregator.checkpoint()

    async def close(self) -> None:
        """Give back what was made."""
        await self._publisher.close()

    async def health(self) -> Health:
        """Ready also when standing by: another one counts then."""
        progress, stats = self.aggregator.progress, self.consumer.stats
        detail: dict[str, Any] = {
            "active": stats.is_active, "signal_seq": progress.signal_seq, "checkpoint_seq": max(0, progress.saved_seq),
            "lag": stats.lag, "open_runs": len(self.aggregator.book),
        }  # fmt: skip
        if self._outbox is not None:
            detail["spans"] = dict(self._outbox.counts)
        if self._contents is not None:
            detail["content"] = dict(self._contents.counts)
        trouble = progress.trouble or stats.trouble
        return Health(ready=self._connection.is_connected, detail={**detail, "trouble": trouble} if trouble else detail)


def _limits(settings: MetricsAggregatorSettings) -> Limits:
    return Limits(
        tenants=settings.max_tenants, agents=settings.max_agents, agents_per_tenant=settings.max_agents_per_tenant,
        tools=settings.max_tools, pools=settings.max_pools,
    )  # fmt: skip
