"""How the broker is: streams and their limits, durables and what they have not done, servers. Asked now and then."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct, field

from runlane.hosting.telemetry import observe
from runlane.kernel.clock import Now
from runlane.kernel.connection import Connection
from runlane.kernel.errors import KernelError, Permanent
from runlane.kernel.jetstream import api
from runlane.kernel.servers import ServerState, server_states
from runlane_contracts.streams import Layout
from runlane_contracts.telemetry import Attribute, Metric

log = logging.getLogger(__name__)

OpenConnection = Callable[[], Awaitable[Connection]]
"""Connects as a user who may what this service may not. Raises Retryable, Permanent."""

Readings = list[tuple[float, Mapping[str, str]]]
_PAGE = 256


class _Replica(Struct, frozen=True):
    current: bool = True
    offline: bool = False


class _Cluster(Struct, frozen=True):
    replicas: tuple[_Replica, ...] | None = None


class _State(Struct, frozen=True):
    messages: int = 0
    bytes: int = 0
    consumer_count: int = 0
    subjects: dict[str, int] | None = None


class _StreamConfig(Struct, frozen=True):
    name: str
    max_bytes: int = -1


class _Stream(Struct, frozen=True):
    config: _StreamConfig
    state: _State
    cluster: _Cluster = _Cluster()


class _StreamPage(Struct, frozen=True):
    total: int = 0
    streams: tuple[_Stream, ...] | None = None


class _AckFloor(Struct, frozen=True):
    last_active: datetime | None = None


class _Consumer(Struct, frozen=True):
    name: str
    stream_name: str
    created: datetime
    num_pending: int = 0
    num_ack_pending: int = 0
    num_redelivered: int = 0
    ack_floor: _AckFloor = field(default_factory=_AckFloor)


class _ConsumerPage(Struct, frozen=True):
    consumers: tuple[_Consumer, ...] | None = None


class _ApiCounts(Struct, frozen=True):
    errors: int = 0


class _Account(Struct, frozen=True):
    api: _ApiCounts = _ApiCounts()


class BrokerWatch:
    """What the broker said last. Everything is absent until it was asked, and again when it does not answer."""

    def __init__(self, connection: Connection, layout: Layout, *, now: Now, monitor: OpenConnection | None) -> None:
        self._connection, self._layout, self._now = connection, layout, now
        self._open_monitor = monitor
        self._monitor: Connection | None = None
        self._is_up = False
        self._api_errors = 0
        self._streams: tuple[_Stream, ...] = ()
        self._consumers: tuple[_Consumer, ...] = ()
        self._dead: Counter[str] = Counter()
        self._servers: list[ServerState] = []

    async def run(self, every_s: float) -> None:
        """Ask, for ever."""
        while True:
            await self.look()
            await asyncio.sleep(every_s)

    async def look(self) -> None:
        """Ask once."""
        try:
            self._api_errors = (await api(self._connection, "INFO", answer=_Account)).api.errors
            self._streams = await self._all_streams()
            self._consumers = await self._all_durables()
            self._dead = await self._dead_letters()
            self._is_up = True
        except KernelError as exc:
            log.debug("the broker does not say how it is: %s", exc)
            self._is_up, self._streams, self._consumers, self._dead = False, (), (), Counter()
        self._servers = await self._all_servers()

    def report(self) -> None:
        """Show it whenever metrics are collected."""
        streams, durables, servers = self._of_streams, self._of_durables, self._of_servers
        observe(Metric.BROKER_UP, lambda: [(float(self._is_up), {})])
        observe(Metric.BROKER_API_ERRORS, lambda: [(self._api_errors, {})] if self._is_up else [], rises=True)
        observe(Metric.STREAM_BYTES, lambda: streams(lambda one: one.state.bytes))
        observe(Metric.STREAM_LIMIT, lambda: streams(lambda one: one.config.max_bytes))
        observe(Metric.STREAM_MESSAGES, lambda: streams(lambda one: one.state.messages))
        observe(Metric.STREAM_CONSUMERS, lambda: streams(lambda one: one.state.consumer_count))
        observe(Metric.STREAM_REPLICAS_BEHIND, lambda: streams(_replicas_behind))
        observe(Metric.DURABLE_PENDING, lambda: durables(lambda one: one.num_pending))
        observe(Metric.DURABLE_UNACKNOWLEDGED, lambda: durables(lambda one: one.num_ack_pending))
        observe(Metric.DURABLE_REDELIVERED, lambda: durables(lambda one: one.num_redelivered))
        observe(Metric.DURABLE_IDLE, lambda: durables(self._idle_s))
        observe(Metric.DEAD_LETTERS_KEPT, self._of_dead)
        observe(Metric.BROKER_CONNECTIONS, lambda: servers(lambda one: one.connections))
        observe(Metric.BROKER_SLOW_CONSUMERS, lambda: servers(lambda one: one.slow_consumers), rises=True)
        observe(Metric.BROKER_SUBSCRIPTIONS, lambda: servers(lambda one: one.subscriptions))
        observe(Metric.BROKER_MEMORY, lambda: servers(lambda one: one.mem))
        observe(Metric.BROKER_CPU, lambda: servers(lambda one: one.cpu))
        observe(Metric.BROKER_STORAGE, lambda: servers(lambda one: one.jetstream.stats.storage))
        observe(Metric.BROKER_MESSAGES_IN, lambda: servers(lambda one: one.in_msgs), rises=True)
        observe(Metric.BROKER_MESSAGES_OUT, lambda: servers(lambda one: one.out_msgs), rises=True)

    # --- asking -----------------------------------------------------------------------------------------------

    async def _all_streams(self) -> tuple[_Stream, ...]:
        ours = {spec.name for spec in self._layout.streams()}
        found: list[_Stream] = []
        offset = 0
        while True:
            page = await api(self._connection, "STREAM.LIST", {"offset": offset}, answer=_StreamPage)
            streams = page.streams or ()
            found += [one for one in streams if one.config.name in ours]
            offset += len(streams)
            if not streams or offset >= page.total:
                return tuple(found)

    async def _all_durables(self) -> tuple[_Consumer, ...]:
        """The services' own, and the first ones of those of other services; not the many that tail one run."""
        found = [await self._durable(spec.stream, spec.durable) for spec in self._layout.consumers()]
        path = f"CONSUMER.LIST.{self._layout.signal_stream}"
        known = {one.name for one in found if one is not None}
        more = (await api(self._connection, path, {"offset": 0}, answer=_ConsumerPage)).consumers or ()
        others = [one for one in more if one.name not in known][:_PAGE]
        return tuple(one for one in [*found, *others] if one is not None)

    async def _durable(self, stream: str, durable: str) -> _Consumer | None:
        try:
            return await api(self._connection, f"CONSUMER.INFO.{stream}.{durable}", answer=_Consumer)
        except Permanent:  # not there, not now
            return None

    async def _dead_letters(self) -> Counter[str]:
        """How many are kept of each service."""
        subjects = self._layout.subjects.all_of("dead")
        path = f"STREAM.INFO.{self._layout.dead_stream}"
        stream = await api(self._connection, path, {"subjects_filter": subjects}, answer=_Stream)
        counts: Counter[str] = Counter({spec.service: 0 for spec in self._layout.consumers()})
        for subject, count in (stream.state.subjects or {}).items():
            counts[subject.split(".")[2]] += count
        return counts

    async def _all_servers(self) -> list[ServerState]:
        if self._open_monitor is None:
            return []
        try:
            if self._monitor is None:
                self._monitor = await self._open_monitor()
            return await server_states(self._monitor)
        except KernelError as exc:
            log.debug("the servers do not say how they are: %s", exc)
            return []

    # --- showing ----------------------------------------------------------------------------------------------

    def _of_streams(self, read: Callable[[_Stream], float]) -> Readings:
        return [(read(one), {Attribute.STREAM.value: one.config.name}) for one in self._streams]

    def _of_durables(self, read: Callable[[_Consumer], float]) -> Readings:
        return [
            (read(one), {Attribute.STREAM.value: one.stream_name, Attribute.DURABLE.value: one.name})
            for one in self._consumers
        ]

    def _of_servers(self, read: Callable[[ServerState], float]) -> Readings:
        return [(read(one), {Attribute.SERVER.value: one.server_name}) for one in self._servers]

    def _of_dead(self) -> Iterable[tuple[float, Mapping[str, str]]]:
        return [(count, {Attribute.SERVICE.value: service}) for service, count in self._dead.items()]

    def _idle_s(self, consumer: _Consumer) -> float:
        """How long nothing was acknowledged although there is something to do; 0: there is nothing."""
        if not consumer.num_pending and not consumer.num_ack_pending:
            return 0.0
        since = consumer.ack_floor.last_active or consumer.created
        return max(0.0, (self._now() - since).total_seconds())


def _replicas_behind(stream: _Stream) -> Any:
    return sum(1 for one in stream.cluster.replicas or () if one.offline or not one.current)
