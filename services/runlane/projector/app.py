"""Composition root: builds the store, the views, the projector and one consumer per VIEW stream."""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from msgspec import Struct

from runlane.hosting.connections import Connections, connection_of
from runlane.hosting.health import Health
from runlane.hosting.service import Running
from runlane.hosting.spans import measured
from runlane.hosting.tasks import task_group
from runlane.hosting.telemetry import observe
from runlane.kernel.connection import Connection
from runlane.kernel.consumer import BatchConsumer, backoff_s
from runlane.kernel.direct import DirectReader
from runlane.kernel.errors import Conflict, KernelError, Retryable
from runlane.kernel.jetstream import api
from runlane.object_store.archives import Archives
from runlane.object_store.store import Objects
from runlane.projector.bases import ArchivedBases
from runlane.projector.folder import Bases
from runlane.projector.handler import StreamHandler
from runlane.projector.projector import Projector
from runlane.projector.settings import ProjectorSettings
from runlane.projector.view import DirectView, View
from runlane.read_store import ReadStore
from runlane_contracts.codec import encode
from runlane_contracts.lifecycle import Refused
from runlane_contracts.problems import Code
from runlane_contracts.streams import ConsumerSpec, Layout
from runlane_contracts.telemetry import Attribute, Metric

_log = logging.getLogger("runlane.projector")

NAME = "projector"


class RebuildRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """What `rebuild` is asked. `force`: switch whatever differs. `back`: to what was live before."""

    force: bool = False
    back: bool = False


@asynccontextmanager
async def serve(settings: ProjectorSettings, connections: Connections | None = None) -> AsyncIterator[Running]:
    """Folds while the block lasts. Raises Retryable when the store or the broker cannot be reached at the start."""
    async with (
        connection_of(NAME, connections) as connection,
        DirectReader(connection) as reader,
        ReadStore.open(settings.read_store_url, timeout_s=settings.read_store_timeout_s) as store,
    ):
        await store.create()
        layout = settings.common.layout
        views = [DirectView(connection, reader, layout, index) for index in range(layout.log_streams)]
        archives = Archives(Objects.at(settings.object_store_url))
        projector = _projector(settings, store, views, ArchivedBases(archives))
        consumers = _consumers(settings, connection, layout, projector)
        _report(projector)
        async with task_group() as tasks:
            for consumer in consumers:
                tasks.create_task(consumer.run())
            others = [tasks.create_task(_refill(projector, connection, consumer.spec)) for consumer in consumers]
            others.append(tasks.create_task(_sweep(projector, settings.sweep_every_s)))
            try:
                yield Running(
                    name=NAME,
                    health=lambda: _health(projector, consumers),
                    operations={"rebuild": lambda body: _rebuild(projector, body)},
                    consumers=consumers,
                )
            finally:
                for task in others:
                    task.cancel()
                for consumer in consumers:
                    consumer.stop()


def _projector(settings: ProjectorSettings, store: ReadStore, views: Sequence[View], bases: Bases) -> Projector:
    return Projector(
        store=store,
        views={view.stream: view for view in views},
        cache_bytes=settings.cache_bytes,
        cache_runs=settings.cache_runs,
        bases=bases,
        page_pause_s=settings.rebuild_pause_s,
        keep_replaced_s=settings.keep_replaced_s,
    )


def _consumers(
    settings: ProjectorSettings, connection: Connection, layout: Layout, projector: Projector
) -> list[BatchConsumer]:
    consumers = []
    for spec in layout.consumers():
        if spec.service != NAME:
            continue
        handler = StreamHandler(projector, spec.stream, layout.subjects)
        consumers.append(
            BatchConsumer(
                connection,
                spec,
                layout,
                measured(handler.handle, spec, layout.subjects),
                max_batch=settings.batch_messages,
                max_batch_bytes=settings.batch_bytes,
                on_active=handler.resume,
                pace_s=settings.pace_s,
            )
        )
    return consumers


def _report(projector: Projector) -> None:
    observe(Metric.FACTS, lambda: [(projector.facts, {Attribute.SERVICE: NAME})], rises=True)
    observe(Metric.QUARANTINED, lambda: [(projector.quarantined, {Attribute.SERVICE: NAME})], rises=True)


async def _health(projector: Projector, consumers: Sequence[BatchConsumer]) -> Health:
    try:
        detail = await projector.detail()
    except KernelError as exc:
        return Health(ready=False, detail={"error": str(exc)})
    trouble = {one.spec.durable: one.stats.trouble for one in consumers if one.stats.trouble}
    trouble |= _for_a_person(detail)
    return Health(ready=True, detail={**detail, "trouble": trouble} if trouble else detail)


def _for_a_person(detail: Mapping[str, Any]) -> dict[str, str]:
    """What goes on by itself and should be looked at all the same."""
    found: dict[str, str] = {}
    if detail["quarantined_runs"]:
        found["views"] = (
            f"{detail['quarantined_runs']} runs stand still at a fact that cannot be folded (the log names them); "
            "mend the fold, then: runlane rebuild"
        )
    rebuilt = detail.get("last_rebuild")
    if rebuilt is not None and rebuilt["reason"]:
        found["rebuild"] = f"generation {rebuilt['generation']}: {rebuilt['reason']}"
    return found


async def _rebuild(projector: Projector, body: bytes) -> bytes:
    try:
        request = msgspec.json.decode(body or b"{}", type=RebuildRequest)
    except msgspec.MsgspecError as exc:
        raise Refused(Code.INVALID_REQUEST, str(exc)) from exc
    try:
        return encode(await projector.rebuild(force=request.force, back=request.back))
    except Conflict as exc:
        if request.back:
            raise Refused(Code.INVALID_STATE, str(exc)) from exc
        raise Retryable(str(exc), retry_after_s=5.0) from exc


class _AckFloor(Struct, frozen=True):
    stream_seq: int = 0


class _Info(Struct, frozen=True):
    ack_floor: _AckFloor


async def _refill(projector: Projector, connection: Connection, spec: ConsumerSpec) -> None:
    """Once at the start: a database that was lost, or that another reducer filled, is filled again without waiting."""
    for attempt in itertools.count(1):
        try:
            info = await api(connection, f"CONSUMER.INFO.{spec.stream}.{spec.durable}", answer=_Info)
            await projector.refill(spec.stream, info.ack_floor.stream_seq)
        except KernelError as exc:
            _log.info("%s: not filled yet: %s", spec.stream, exc)
            await asyncio.sleep(backoff_s(attempt))
        else:
            return


async def _sweep(projector: Projector, every_s: float) -> None:
    while True:
        try:
            await projector.sweep()
        except KernelError as exc:
            _log.warning("sweeping: %s", exc)
        await asyncio.sleep(every_s)
