"""Composition root: one consumer per source, one sealer for all of them."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from msgspec import Struct

from runlane.audit_sink.broker_log import BrokerLog
from runlane.audit_sink.chain import export_statement
from runlane.audit_sink.handler import SourceHandler, is_gapless, reader_of
from runlane.audit_sink.output import Output
from runlane.audit_sink.sealer import Sealer
from runlane.audit_sink.settings import AuditSinkSettings
from runlane.audit_sink.signing import Signer
from runlane.hosting.connections import Connections, connection_of
from runlane.hosting.health import Health
from runlane.hosting.service import Running
from runlane.hosting.telemetry import observe
from runlane.kernel.atomic import publish_atomic
from runlane.kernel.clock import utc_now
from runlane.kernel.connection import Connection
from runlane.kernel.consumer import BatchConsumer
from runlane.kernel.direct import DirectReader
from runlane.kernel.errors import KernelError
from runlane.kernel.publisher import WindowedPublisher
from runlane_contracts.codec import encode
from runlane_contracts.lifecycle import Refused
from runlane_contracts.problems import Code
from runlane_contracts.telemetry import Attribute, Metric

_log = logging.getLogger("runlane.audit_sink")

NAME = "audit_sink"


class SignRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """What `sign` is asked: the SHA-256 of an export's manifest, in hex."""

    sha256: str


@asynccontextmanager
async def serve(settings: AuditSinkSettings, connections: Connections | None = None) -> AsyncIterator[Running]:
    """Seals while the block lasts. Raises Retryable when the broker cannot be reached at the start."""
    async with connection_of(NAME, connections) as connection, DirectReader(connection) as direct:
        sink = _Sink(settings, connection, direct)
        async with asyncio.TaskGroup() as tasks:
            for consumer in sink.consumers:
                tasks.create_task(consumer.run())
            working = [tasks.create_task(sink.sign_what_waits())]
            working += [tasks.create_task(one.follow()) for one in sink.broker_logs]
            try:
                yield Running(
                    name=NAME,
                    health=sink.health,
                    operations={"checkpoint": sink.checkpoint, "sign": sink.sign, "key": sink.key},
                    consumers=sink.consumers,
                )
            finally:
                for task in working:
                    task.cancel()
                for consumer in sink.consumers:
                    consumer.stop()


class _Sink:
    """Everything of one sink, wired."""

    def __init__(self, settings: AuditSinkSettings, connection: Connection, direct: DirectReader) -> None:
        layout = settings.common.layout
        self._connection = connection
        self._checkpoint_s = settings.checkpoint_s
        self._signer = Signer(settings.seed)
        self._sealer = Sealer(
            Output(connection, direct, layout.audit_stream, layout.subjects.all_of("audit")),
            lambda batch, last_seq: publish_atomic(connection, batch, last_seq=last_seq),
            subjects=layout.subjects,
            key=self._signer,
            now=utc_now,
            clock=asyncio.get_running_loop().time,
            checkpoint_records=settings.checkpoint_records,
        )
        publisher = WindowedPublisher(connection)
        self.broker_logs = [BrokerLog(path, publisher, layout.subjects) for path in settings.broker_logs]
        self.consumers: list[BatchConsumer] = []
        for spec in layout.consumers():
            if spec.service != NAME:
                continue
            read, gapless = reader_of(layout, spec.stream), is_gapless(layout, spec.stream)
            handler = SourceHandler(self._sealer, direct, spec.stream, read, is_gapless=gapless)
            self.consumers.append(
                BatchConsumer(
                    connection, spec, layout, handler.handle, max_batch=settings.batch_messages,
                    max_batch_bytes=settings.batch_bytes, on_active=handler.resume,
                )
            )  # fmt: skip
        self._report()

    async def sign_what_waits(self) -> None:
        """Sign chains in time, for ever. Only while this sink seals: a standby's idea of the output is old."""
        while True:
            await asyncio.sleep(min(1.0, self._checkpoint_s / 4))
            if not any(one.stats.is_active for one in self.consumers):
                continue
            try:
                await self._sealer.checkpoint(self._checkpoint_s)
            except KernelError as exc:
                _log.info("checkpoint: %s", exc)

    async def checkpoint(self, _body: bytes) -> bytes:
        """Sign every chain now."""
        return encode({"chains": await self._sealer.checkpoint(0.0), "key_id": self._signer.key_id})

    async def sign(self, body: bytes) -> bytes:
        """Sign an export's manifest."""
        try:
            request = msgspec.json.decode(body, type=SignRequest)
        except msgspec.MsgspecError as exc:
            raise Refused(Code.INVALID_REQUEST, str(exc)) from exc
        signature = self._signer.sign(export_statement(request.sha256)).hex()
        return encode({"key_id": self._signer.key_id, "signature": signature})

    async def key(self, _body: bytes) -> bytes:
        """The public key."""
        return encode({"key_id": self._signer.key_id, "public_key": self._signer.public_key.hex()})

    async def health(self) -> Health:
        """Ready also when standing by, and when the stream is full: then it waits, and `trouble` says so."""
        stats = self._sealer.stats
        sources = {
            one.spec.stream: {"active": one.stats.is_active, "lag": one.stats.lag, "reached": one.stats.last_stream_seq}
            for one in self.consumers
        }
        detail = {
            "records": stats.records, "checkpoints": stats.checkpoints, "conflicts": stats.conflicts,
            "lost": stats.lost, "sources": sources,
        }  # fmt: skip
        trouble = stats.trouble or next((one.trouble for one in self.broker_logs if one.trouble), "")
        if trouble:
            detail["trouble"] = trouble
        return Health(ready=self._connection.is_connected, detail=detail)

    def _report(self) -> None:
        stats = self._sealer.stats
        observe(Metric.AUDIT_RECORDS, lambda: [(stats.records, {Attribute.SERVICE: NAME})], rises=True)
        observe(Metric.AUDIT_CHECKPOINTS, lambda: [(stats.checkpoints, {Attribute.SERVICE: NAME})], rises=True)
