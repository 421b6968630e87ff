"""A real broker with the streams on it, and the redaction filter: facts go into LOG, VIEW and SIGNAL are looked at."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from runlane.hosting.connections import Connections
from runlane.hosting.service import Running
from runlane.hosting.settings import CommonSettings
from runlane.kernel.clock import utc_now
from runlane.kernel.connection import Connection, connect
from runlane.kernel.direct import DirectReader, StoredMessage
from runlane.kernel.provision import provision
from runlane.kernel.publisher import WindowedPublisher
from runlane.redaction_filter.app import serve
from runlane.redaction_filter.settings import RedactionFilterSettings
from runlane_contracts import headers as names
from runlane_contracts.codec import encode
from runlane_contracts.envelope import Commit
from runlane_contracts.streams import Layout
from support.eventually import eventually
from support.nats import SMALL, NatsServer, nats_server


@dataclass
class Lanes:
    """What a test does to the broker, with every right."""

    server: NatsServer
    layout: Layout
    connection: Connection
    direct: DirectReader
    publisher: WindowedPublisher

    async def append(self, commit: Commit, *, once: bool = False) -> int:
        """Write a commit as a producer does; returns its LOG sequence. `once`: again under the same id does nothing."""
        headers = {names.FIRST_SEQUENCE: str(commit.first_sequence), names.LAST_SEQUENCE: str(commit.last_sequence)}
        if once:
            headers[names.COMMIT_ID] = f"{commit.run_id}/{commit.first_sequence}"
        return await self.append_raw(self.layout.subjects.log(commit.tenant_id, commit.run_id), encode(commit), headers)

    async def append_raw(self, subject: str, body: bytes, headers: Mapping[str, str] | None = None) -> int:
        """Write anything."""
        return (await self.publisher.publish(subject, body, dict(headers or {}))).seq

    async def view(self, index: int = 0) -> list[StoredMessage]:
        """All of a VIEW stream."""
        return await self._all(self.layout.view_stream_at(index), self.layout.subjects.all_of("view"))

    async def signals(self) -> list[StoredMessage]:
        """All of SIGNAL."""
        return await self._all(self.layout.signal_stream, self.layout.subjects.all_of("signal"))

    async def dead(self) -> list[StoredMessage]:
        """All dead letters."""
        return await self._all(self.layout.dead_stream, self.layout.subjects.all_of("dead"))

    async def view_reaches(self, log_seq: int, index: int = 0, timeout_s: float = 20.0) -> list[StoredMessage]:
        """All of VIEW, once it has derived that LOG message."""

        async def reached() -> bool:
            messages = await self.view(index)
            return bool(messages) and int(messages[-1].headers[names.LOG_POSITION].partition(":")[2]) >= log_seq

        await eventually(reached, within_s=timeout_s)
        return await self.view(index)

    async def signals_reach(self, count: int, timeout_s: float = 20.0) -> list[StoredMessage]:
        """All of SIGNAL, once it has so many."""

        async def reached() -> bool:
            return (await self.direct.stream_state(self.layout.signal_stream)).messages >= count

        await eventually(reached, within_s=timeout_s)
        return await self.signals()

    def settings(self, **fields: float) -> RedactionFilterSettings:
        """Of a filter on this broker."""
        common = CommonSettings(
            nats_url=self.server.url, log_streams=self.layout.log_streams, stream_max_bytes=self.layout.max_bytes
        )
        return RedactionFilterSettings(common=common, **fields)

    @asynccontextmanager
    async def filter(self, instance: str = "a", **fields: float) -> AsyncIterator[Running]:
        """A filter in this process, on a connection of its own."""
        passwords = self.server.passwords
        async with (
            Connections(url=self.server.url, passwords=passwords, instance=instance) as connections,
            serve(self.settings(**fields), connections) as running,
        ):
            yield running

    async def _all(self, stream: str, subjects: str) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        async for page in self.direct.pages(stream, subjects):
            found += page.messages
        return found


@asynccontextmanager
async def lanes(layout: Layout = SMALL, *, sync_interval: str = "2m", users: bool = False) -> AsyncIterator[Lanes]:
    """A server, provisioned."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(nats_server(layout=layout, sync_interval=sync_interval, users=users))
        passwords = {"password": "pw-operator", "user": "operator"} if users else {}
        connection = await connect(url=server.url, name="test", **passwords)
        stack.push_async_callback(connection.close)
        await provision(connection, layout, now=utc_now)
        direct = await stack.enter_async_context(DirectReader(connection))
        publisher = await stack.enter_async_context(WindowedPublisher(connection))
        yield Lanes(server, layout, connection, direct, publisher)
