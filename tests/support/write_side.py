"""The write side in one process: a real broker with its users, the command gateway, the run supervisor.

async with write_side() as side:
    run_id = await side.start_run()
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import msgspec
from starlette.types import ASGIApp

from runlane.command_gateway.app import serve as serve_gateway
from runlane.command_gateway.settings import CommandGatewaySettings
from runlane.hosting.connections import Connections
from runlane.hosting.settings import AccessSettings, CommonSettings
from runlane.kernel.clock import Now, utc_now
from runlane.kernel.connection import Connection
from runlane.kernel.durable import DurableConsumer
from runlane.kernel.errors import KernelError
from runlane.kernel.nats_event_log import NatsEventLog
from runlane.kernel.provision import provision
from runlane.run_supervisor.app import NAME, serve as serve_supervisor
from runlane.run_supervisor.settings import RunSupervisorSettings
from runlane_contracts.envelope import Fact
from runlane_contracts.streams import MIB, Layout
from runlane_contracts.subjects import RunAddress
from support.nats import NatsServer, nats_cluster, nats_server

TOKENS = {"demo": "demo-token-0123456789", "other": "other-token-0123456789"}
PEOPLE = {"bob": "bob-token-0123456789", "eve": "eve-token-0123456789"}
"""More people of the tenant `demo`."""


class Client:
    """HTTP as one tenant."""

    def __init__(self, app: ASGIApp, tenant_id: str, token: str) -> None:
        self.tenant_id = tenant_id
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(app),
            base_url="http://gateway",
            headers={"Authorization": f"Bearer {token}"},
            timeout=30,
        )

    async def start_run(self, **body: Any) -> str:
        body = {"agent": "a", "input": {"text": "hello"}, "dispatch": "external"} | body
        # Right after it was started, or something was killed, nobody may decide for a while.
        headers = {"Prefer": "wait=25", "Idempotency-Key": uuid.uuid4().hex}
        reply = await self.http.post("/v1/runs", json=body, headers=headers)
        for _ in range(50):  # while a leader is elected, the same request may have to be sent again
            if reply.status_code != 503:
                break
            await asyncio.sleep(0.5)
            reply = await self.http.post("/v1/runs", json=body, headers=headers)
        assert reply.status_code == 201, reply.text
        return str(reply.json()["run_id"])

    async def lease(self, run_id: str, worker_id: str = "w1", ttl_s: float = 30.0) -> int:
        reply = await self.http.post(f"/v1/runs/{run_id}/lease", json={"worker_id": worker_id, "ttl_s": ttl_s})
        assert reply.status_code == 201, reply.text
        return int(reply.json()["lease_epoch"])

    async def append(self, run_id: str, lease_epoch: int, *events: Any, **extra: Any) -> list[dict[str, Any]]:
        reply = await self.post_events(run_id, lease_epoch, *events, **extra)
        assert reply.status_code == 200, reply.text
        return list(reply.json()["events"])

    async def post_events(self, run_id: str, lease_epoch: int, *events: Any, **extra: Any) -> httpx.Response:
        body = {"lease_epoch": lease_epoch, "events": list(events)} | extra
        return await self.http.post(f"/v1/runs/{run_id}/events", json=body)

    async def command(
        self,
        run_id: str,
        type_: str,
        payload: dict[str, Any] | None = None,
        *,
        key: str | None = None,
        wait_s: int | None = 5,
    ) -> httpx.Response:
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        if wait_s is not None:
            headers["Prefer"] = f"wait={wait_s}"
        body = {"type": type_, "payload": payload or {}}
        return await self.http.post(f"/v1/runs/{run_id}/commands", json=body, headers=headers)


class WriteSide:
    """What runs, and what it wrote."""

    def __init__(self, server: NatsServer, layout: Layout, connections: Connections, common: CommonSettings) -> None:
        self.server, self.layout, self.connections, self.common = server, layout, connections, common
        self.app: ASGIApp | None = None
        self.commands: list[DurableConsumer] = []
        """Of the supervisor: its consumers of commands."""
        self._supervisor: AsyncExitStack | None = None
        self._link: Connection | None = None
        self._log: NatsEventLog | None = None

    def client(self, tenant_id: str = "demo", subject: str | None = None) -> Client:
        """Of a tenant; `subject`: somebody of `PEOPLE`."""
        assert self.app is not None
        return Client(self.app, tenant_id, TOKENS[tenant_id] if subject is None else PEOPLE[subject])

    async def log(self) -> NatsEventLog:
        if self._log is None:
            self._log = NatsEventLog(await self.connections.of("command_gateway"), self.layout)
        return self._log

    async def facts(self, run_id: str, tenant_id: str = "demo") -> list[Fact]:
        log = await self.log()
        return [fact async for stored in log.read(RunAddress(tenant_id, run_id)) for fact in stored.commit.facts]

    async def types(self, run_id: str, tenant_id: str = "demo") -> list[str]:
        return [fact.type for fact in await self.facts(run_id, tenant_id)]

    async def payloads(self, run_id: str, type_: str, tenant_id: str = "demo") -> list[dict[str, Any]]:
        facts = await self.facts(run_id, tenant_id)
        return [msgspec.json.decode(fact.payload) for fact in facts if fact.type == type_]

    async def start_supervisor(self, *, now: Now = utc_now, **settings: Any) -> None:
        """One of its own connection, so that it can be taken away."""
        connections = _connections(self.connections.credentials(NAME).url, self.server.passwords)
        stack = AsyncExitStack()
        await stack.enter_async_context(connections)
        running = await stack.enter_async_context(
            serve_supervisor(RunSupervisorSettings(common=self.common, **settings), connections, now=now)
        )
        self.commands = [one for one in running.consumers if one.spec.stream == self.layout.command_stream]
        self._supervisor, self._link = stack, await connections.of(NAME)

    async def kill_supervisor(self) -> None:
        """It says no more, to nobody, from here on; then it is taken away."""
        assert self._link is not None
        await self._link.close()
        await self.stop_supervisor()

    async def stop_supervisor(self) -> None:
        if self._supervisor is not None:
            await self._supervisor.aclose()
            self._supervisor = None


@asynccontextmanager
async def write_side(
    *, supervisor: bool = True, sync_interval: str = "2m", partitions: int = 1, **gateway: Any
) -> AsyncIterator[WriteSide]:
    """A broker, a gateway, and a supervisor unless told otherwise."""
    layout = Layout(max_bytes=512 * MIB, supervisor_partitions=partitions)
    async with nats_server(users=True, layout=layout, sync_interval=sync_interval) as server:
        connections = _connections(server.url, server.passwords)
        async with connections, _services(server, connections, layout, supervisor=supervisor, **gateway) as side:
            yield side


@asynccontextmanager
async def clustered_side(**gateway: Any) -> AsyncIterator[tuple[WriteSide, list[NatsServer]]]:
    """The same on three nodes, everything replicated; the broker knows no users there."""
    layout = Layout(max_bytes=64 * MIB, replicas=3)
    async with nats_cluster(layout=layout) as servers:
        connections = _connections(",".join(one.url for one in servers), None)
        async with connections, _services(servers[0], connections, layout, **gateway) as side:
            yield side, servers


@asynccontextmanager
async def _services(
    server: NatsServer, connections: Connections, layout: Layout, *, supervisor: bool = True, **gateway: Any
) -> AsyncIterator[WriteSide]:
    common = CommonSettings(
        nats_url=server.url,
        supervisor_partitions=layout.supervisor_partitions,
        stream_max_bytes=layout.max_bytes,
        stream_replicas=layout.replicas,  # type: ignore[arg-type]
    )
    access = AccessSettings(
        api_keys=",".join(
            [f"{who}:{key}" for who, key in TOKENS.items()] + [f"demo/{who}:{key}" for who, key in PEOPLE.items()]
        ),
        cursor_keys="k1:" + "ab" * 32,
    )
    await _provisioned(await connections.of("operator"), layout)
    side = WriteSide(server, layout, connections, common)
    if supervisor:
        await side.start_supervisor()
    try:
        settings = CommandGatewaySettings(common=common, access=access, **gateway)
        async with serve_gateway(settings, connections) as running:
            side.app = running.asgi
            yield side
    finally:
        await side.stop_supervisor()


async def _provisioned(operator: Connection, layout: Layout) -> None:
    async with asyncio.timeout(60):  # a cluster elects its leaders first
        while True:
            try:
                await provision(operator, layout, now=utc_now)
            except KernelError:
                await asyncio.sleep(0.5)
            else:
                return


def _connections(url: str, passwords: Mapping[str, str] | None) -> Connections:
    return Connections(url=url, passwords=passwords, instance="test")


def fact(type_: str, **payload: Any) -> dict[str, Any]:
    """An event as a producer sends it."""
    return {"type": type_, "payload": payload}


async def eventually(check: Any, *, within_s: float = 10.0) -> Any:
    """The first truthy value of `await check()`."""
    value = None
    try:
        async with asyncio.timeout(within_s):
            while not (value := await check()):
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {within_s} s; last value {value!r}") from None
    return value


# --- a run that asked a person ------------------------------------------------------------------------------

ASK = {"approval_id": "a1", "tool_call_id": "c1", "description": "send the mail", "risk": "high",
       "data": {"to": "x"}, "editable": True, "version": 1, "action_digest": "sha256:abc"}  # fmt: skip


async def a_waiting_run(me: Client, **ask: Any) -> tuple[str, int]:
    run_id = await me.start_run()
    epoch = await me.lease(run_id)
    await me.append(
        run_id, epoch, fact("run.started"),
        fact("tool.requested", tool_call_id="c1", name="send_mail", arguments={"to": "x"}, action_digest="sha256:abc",
             side_effect="unsafe"),
        {"type": "approval.requested", "payload": ASK | ask},
        fact("run.waiting", on=[{"kind": "approval", "id": "a1"}]),
    )  # fmt: skip
    return run_id, epoch


async def resolve(me: Client, run_id: str, decision: str = "approved", **more: Any) -> httpx.Response:
    key = more.pop("key", None)
    payload = {"approval_id": "a1", "decision": decision} | more
    return await me.command(run_id, "approval.resolve", payload, key=key)


def problem(reply: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = reply.json()
    assert body["code"] == code
    return body
