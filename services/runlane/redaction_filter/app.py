"""Composition root: one filter per LOG stream, one way for previews, all on one connection."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from runlane.hosting.connections import Connections, connection_of
from runlane.hosting.health import Health
from runlane.hosting.service import Running
from runlane.hosting.spans import measured
from runlane.hosting.tasks import task_group
from runlane.hosting.telemetry import observe
from runlane.kernel.clock import utc_now
from runlane.kernel.connection import Connection
from runlane.kernel.consumer import BatchConsumer
from runlane.kernel.dead_letter import DeadLetters
from runlane.kernel.direct import DirectReader
from runlane.kernel.errors import KernelError
from runlane.kernel.kv import Bucket
from runlane.kernel.lease import Lease
from runlane.kernel.preview_bus import PreviewInbox
from runlane.kernel.publisher import WindowedPublisher
from runlane.masking.masker import Masker
from runlane.masking.rules import RULES_VERSION
from runlane.masking.scanner import Scanner
from runlane.redaction_filter.filter import Broker, LogFilter
from runlane.redaction_filter.first_previews import FirstPreviews
from runlane.redaction_filter.previews import LeaseEpochs, PreviewFilter, PreviewMasker
from runlane.redaction_filter.settings import RedactionFilterSettings
from runlane.redaction_filter.signal_output import SignalOutput
from runlane_contracts.subjects import RunAddress
from runlane_contracts.telemetry import Attribute, Metric

NAME = "redaction_filter"

_PENDING_PREVIEWS = 65_536
_LEASE = msgspec.json.Decoder(Lease)


@asynccontextmanager
async def serve(settings: RedactionFilterSettings, connections: Connections | None = None) -> AsyncIterator[Running]:
    """Filters while the block lasts. Entering waits a moment to become the active one, else it stands by.

    Raises:
        Retryable: the broker cannot be reached at the start.
        LogReplaced: (in a group) what is derived belongs to another log; nothing is written.
    """
    async with connection_of(NAME, connections) as connection, DirectReader(connection) as direct:
        service = _Service(settings, connection, direct)
        await service.listen()
        try:
            async with task_group() as tasks:
                filtering = [tasks.create_task(one.consumer.run()) for one in service.lanes]
                previewing = tasks.create_task(service.previews.run())
                await service.wait_for_work(settings.start_wait_s)
                try:
                    yield Running(name=NAME, health=service.health, consumers=[lane.consumer for lane in service.lanes])
                finally:
                    service.stop()
                    previewing.cancel()
                    await asyncio.wait(filtering)
        finally:
            await service.close()


@dataclass(frozen=True, slots=True)
class _Lane:
    """One LOG stream: what feeds it, and what is done with it."""

    consumer: BatchConsumer
    filter: LogFilter


class _Service:
    """Everything of one redaction filter, wired."""

    def __init__(self, settings: RedactionFilterSettings, connection: Connection, direct: DirectReader) -> None:
        layout = settings.common.layout
        scanner = Scanner()
        self._connection = connection
        self._direct = direct
        self._layout = layout
        self._publisher = WindowedPublisher(connection)
        self._leases = LeaseEpochs()
        self._signals = SignalOutput(connection, layout)
        self._first_previews = FirstPreviews(utc_now)
        self._bucket = Bucket(self._publisher, direct, layout.lease_bucket)
        self._inbox = PreviewInbox(max_bytes=settings.preview_inbox_bytes)
        self._subscription: Any = None
        self.lanes: list[_Lane] = []
        broker = Broker(connection, direct, layout, DeadLetters(self._publisher, layout, NAME), utc_now)
        for index, spec in enumerate(spec for spec in layout.consumers() if spec.service == NAME):
            one = LogFilter(
                broker, index, masker=Masker(scanner), signals=self._signals, leases=self._leases,
                may_write=self._is_active if index else _always, on_begun=self._first_previews.begun,
            )  # fmt: skip
            consumer = BatchConsumer(
                connection, spec, layout, measured(one.handle, spec, layout.subjects),
                max_batch=settings.batch_messages,
                max_batch_bytes=settings.batch_bytes, on_active=one.on_active,
            )  # fmt: skip
            self.lanes.append(_Lane(consumer, one))
        self.previews = PreviewFilter(
            self._inbox,
            PreviewMasker(
                scanner, self._leases, max_previews=settings.preview_states,
                max_state_bytes=settings.preview_state_bytes,
            ),
            self._leases, layout.subjects, send=connection.nc.publish, find_epoch=self._lease_epoch,
            is_active=self._is_active, on_shown=self._first_previews.shown,
        )  # fmt: skip
        self._report()

    async def listen(self) -> None:
        """Hear raw previews. The client's own queue is bounded too; the inbox drops the oldest long before."""
        self._subscription = await self._connection.nc.subscribe(
            self._layout.subjects.all_of("preview.raw"), cb=self._heard, pending_msgs_limit=_PENDING_PREVIEWS
        )

    async def wait_for_work(self, most_s: float) -> None:
        """Until this is the active filter, or for so long. With an empty log nobody is active yet."""
        with contextlib.suppress(TimeoutError, KernelError):
            if not (await self._direct.stream_state(self._layout.log_stream_at(0))).messages:
                return
            async with asyncio.timeout(most_s):
                await self.lanes[0].filter.opened.wait()
                while not self._is_active():  # noqa: ASYNC110 - from here it is a matter of one request
                    await asyncio.sleep(0.005)

    def stop(self) -> None:
        """Take nothing more."""
        for lane in self.lanes:
            lane.consumer.stop()

    async def close(self) -> None:
        """Finish what is being stored and give back what was made."""
        for lane in self.lanes:
            await lane.filter.close()
        await self._signals.close()
        await self._publisher.close()
        if self._subscription is not None and self._connection.is_connected:
            await self._subscription.unsubscribe()

    async def health(self) -> Health:
        """Ready also when standing by: another one is active then."""
        lanes = {
            lane.consumer.spec.stream: {
                "active": lane.consumer.stats.is_active,
                "log_seq": lane.filter.stats.reached_log_seq,
                "lag": lane.consumer.stats.lag,
                "conflicts": lane.filter.stats.conflicts,
                "quarantined": lane.filter.stats.quarantined,
                **({"trouble": lane.consumer.stats.trouble} if lane.consumer.stats.trouble else {}),
            }
            for lane in self.lanes
        }
        detail = {"rules": RULES_VERSION, "logs": lanes, "previews": self.previews.counts()}
        return Health(ready=self._connection.is_connected, detail=detail)

    def _is_active(self) -> bool:
        return self.lanes[0].consumer.stats.is_active

    async def _heard(self, message: Any) -> None:
        self._inbox.put(message.subject, message.data)

    async def _lease_epoch(self, run: RunAddress) -> int | None:
        entry = await self._bucket.get(f"{run.tenant_id}.{run.run_id}")
        if entry is None:
            return None
        try:
            return _LEASE.decode(entry.value).lease_epoch
        except msgspec.MsgspecError:
            return None

    def _report(self) -> None:
        lanes, previews = self.lanes, self.previews
        observe(Metric.COMMITS, lambda: _sum(lane.filter.stats.commits for lane in lanes), rises=True)
        observe(Metric.FACTS, lambda: _sum(lane.filter.stats.facts for lane in lanes), rises=True)
        observe(Metric.QUARANTINED, lambda: _sum(lane.filter.stats.quarantined for lane in lanes), rises=True)
        observe(Metric.PREVIEWS, lambda: _outcomes({"shown": previews.counts()["shown"]}), rises=True)
        observe(Metric.PREVIEWS_DROPPED, lambda: _outcomes(previews.losses()), rises=True)


def _always() -> bool:
    return True


def _sum(counts: Iterable[int]) -> list[tuple[float, dict[str, str]]]:
    return [(sum(counts), {Attribute.SERVICE: NAME})]


def _outcomes(counts: dict[str, int]) -> list[tuple[float, dict[str, str]]]:
    return [(count, {Attribute.SERVICE: NAME, Attribute.OUTCOME: name}) for name, count in counts.items()]
