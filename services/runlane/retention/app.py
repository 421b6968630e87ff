"""Composition root of retention: the only place that builds concrete things."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import TypeVar

import msgspec
from msgspec import Struct

from runlane.hosting.connections import Connections, connection_of
from runlane.hosting.health import Health
from runlane.hosting.service import Running
from runlane.hosting.tasks import task_group
from runlane.kernel.clock import new_id, utc_now
from runlane.kernel.commit_reader import CommitReader
from runlane.kernel.connection import Connection
from runlane.kernel.direct import DirectReader
from runlane.kernel.errors import Gap, Permanent
from runlane.kernel.nats_event_log import NatsEventLog
from runlane.kernel.publisher import WindowedPublisher
from runlane.kernel.purge import read_by_all
from runlane.kernel.run_log import RunLogs
from runlane.object_store.archives import ArchiveBroken, Archives
from runlane.object_store.content import Contents
from runlane.object_store.store import Objects
from runlane.read_store import ReadStore
from runlane.retention.compactor import Compactor, Stores
from runlane.retention.policy import age_of
from runlane.retention.record import StreamCommands, StreamRecord
from runlane.retention.service import Retention, every
from runlane.retention.settings import RetentionSettings
from runlane_contracts.codec import encode
from runlane_contracts.ids import is_id, is_tenant
from runlane_contracts.lifecycle import Refused
from runlane_contracts.problems import Code
from runlane_contracts.streams import Layout
from runlane_contracts.subjects import RunAddress

NAME = "retention"
MAX_OPEN_RUNS = 16
MAX_REASON = 500
SETTLE_S = 5.0

T = TypeVar("T")


class CompactRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """What `compact` is asked. With `run_id`: that run of that tenant, whatever its age."""

    older_than: str | None = None
    dry_run: bool = False
    tenant_id: str | None = None
    run_id: str | None = None


class EraseRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """What `erase` is asked. Without `items`: the whole run."""

    tenant_id: str
    run_id: str
    reason: str
    items: tuple[str, ...] = ()


@asynccontextmanager
async def serve(settings: RetentionSettings, connections: Connections | None = None) -> AsyncIterator[Running]:
    """Ready to be asked, and compacting by itself if the settings say so."""
    layout = settings.common.layout
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        connection = await enter(connection_of(NAME, connections))
        direct = await enter(DirectReader(connection))
        publisher = await enter(WindowedPublisher(connection))
        store = await enter(ReadStore.open(settings.read_store_url))
        objects = Objects.at(settings.object_store_url)
        stores = _stores(connection, direct, publisher, layout, objects)
        retention = Retention(
            Compactor(stores, wait_s=settings.wait_s, overwrite=settings.overwrite), store, objects,
            policy=settings.policy, now=utc_now, max_runs=settings.max_runs,
            settle=lambda: _settle(connection, direct, layout),
        )  # fmt: skip
        async with task_group() as tasks:
            by_itself = tasks.create_task(every(retention, settings.every_s)) if settings.every_s else None
            try:
                yield Running(
                    name=NAME,
                    health=lambda: _health(connection, retention),
                    operations={
                        "compact": lambda body: _compact(retention, body),
                        "erase": lambda body: _erase(retention, body),
                    },
                )
            finally:
                if by_itself is not None:
                    by_itself.cancel()
                await stores.run_logs.close()


def _stores(
    connection: Connection, direct: DirectReader, publisher: WindowedPublisher, layout: Layout, objects: Objects
) -> Stores:
    event_log = NatsEventLog(connection, layout, publisher=publisher, direct=direct)
    view = CommitReader(connection, direct, layout, family="view")
    return Stores(
        run_logs=RunLogs(event_log, now=utc_now, new_id=new_id, max_runs=MAX_OPEN_RUNS),
        log=StreamRecord(connection, direct, event_log.reader),
        view=StreamRecord(connection, direct, view),
        commands=StreamCommands(connection, direct, layout),
        archives=Archives(objects),
        contents=Contents(objects),
    )


async def _settle(connection: Connection, direct: DirectReader, layout: Layout) -> None:
    """Let what is on its way be folded, for a moment: a run that just ended is to be found."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SETTLE_S
    for stream in (layout.view_stream_at(index) for index in range(layout.log_streams)):
        state = await direct.stream_state(stream)
        while loop.time() < deadline:
            reached, _ = await read_by_all(connection, stream)
            if reached >= state.last_seq:
                break
            await asyncio.sleep(0.05)


async def _health(connection: Connection, retention: Retention) -> Health:
    stats = retention.stats
    detail = {"compacted": stats.compacted, "erased": stats.erased, "failed": stats.failed, "passes": stats.passes}
    return Health(
        ready=connection.is_connected, detail={**detail, **({"trouble": stats.trouble} if stats.trouble else {})}
    )


async def _compact(retention: Retention, body: bytes) -> bytes:
    request = _decode(body or b"{}", CompactRequest)
    if request.run_id is not None:
        return encode(await _named(retention.compact_run(_address(request.tenant_id, request.run_id))))
    return encode(await retention.compact(older_than=_age(request.older_than), dry_run=request.dry_run))


async def _erase(retention: Retention, body: bytes) -> bytes:
    request = _decode(body, EraseRequest)
    if not request.reason.strip() or len(request.reason) > MAX_REASON:
        raise Refused(Code.INVALID_REQUEST, f"reason: 1 to {MAX_REASON} characters that say why")
    run = _address(request.tenant_id, request.run_id)
    return encode(await _named(retention.erase(run, request.items, request.reason)))


async def _named(work: Awaitable[T]) -> T:
    """A record that is not whole is said by name, not as a fault of ours."""
    try:
        return await work
    except (Gap, ArchiveBroken) as exc:
        raise Refused(Code.INVALID_STATE, f"nothing was taken out: {exc}") from exc
    except Permanent as exc:
        raise Refused(Code.INTERNAL, str(exc)) from exc


def _address(tenant_id: str | None, run_id: str) -> RunAddress:
    if tenant_id is None or not is_tenant(tenant_id) or not is_id(run_id):
        raise Refused(Code.RUN_NOT_FOUND, "no such run")
    return RunAddress(tenant_id, run_id)


def _age(text: str | None) -> timedelta | None:
    try:
        return None if text is None else age_of(text)
    except ValueError as exc:
        raise Refused(Code.INVALID_REQUEST, str(exc)) from exc


def _decode(body: bytes, type_: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=type_)
    except msgspec.MsgspecError as exc:
        raise Refused(Code.INVALID_REQUEST, str(exc)) from exc
