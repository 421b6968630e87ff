"""A platform worker straight on a real broker, with no more rights than a worker has."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from runlane.client import (
    BackoffPolicy,
    Fact,
    LeaseLost,
    NatsTransport,
    RequestRefused,
    ResetRequired,
    Resumed,
    RunContext,
    RunReader,
    RunState,
    RunWriter,
    Worker,
)  # fmt: skip
from runlane.client.transports import nats as nats_transport
from runlane.kernel.clock import new_id, utc_now
from runlane.kernel.connection import Connection, connect
from runlane.kernel.errors import Retryable
from runlane.kernel.nats_event_log import NatsEventLog
from runlane.kernel.provision import provision
from runlane.kernel.run_log import RunLogs
from runlane.kernel.work import WorkItem
from runlane_contracts import events, lifecycle, reducer
from runlane_contracts.access import inbox_prefix
from runlane_contracts.codec import decode_json
from runlane_contracts.envelope import Actor
from runlane_contracts.subjects import RunAddress
from support.eventually import eventually
from support.nats import SMALL, NatsServer, nats_server

SYSTEM = Actor(kind="system", id="runlane")
FAST = BackoffPolicy(initial_s=0.02, max_s=0.5, budget_s=20.0)


@asynccontextmanager
async def as_user(server: NatsServer, user: str) -> AsyncIterator[Connection]:
    connection = await connect(
        url=server.url, user=user, password=f"pw-{user}", name=user, inbox_prefix=inbox_prefix(user)
    )
    try:
        yield connection
    finally:
        await connection.close()


@pytest.fixture
async def server() -> AsyncIterator[NatsServer]:
    async with nats_server(users=True) as server:
        async with as_user(server, "operator") as operator:
            await provision(operator, SMALL, now=utc_now)
        yield server


@pytest.fixture
async def worker(server: NatsServer) -> AsyncIterator[NatsTransport]:
    async with NatsTransport.connect(
        server.url, "demo", user="worker", password="pw-worker", layout=SMALL
    ) as transport:
        yield transport


@pytest.fixture
async def supervisor(server: NatsServer) -> AsyncIterator["Supervisor"]:
    async with as_user(server, "run_supervisor") as connection:
        log = NatsEventLog(connection, SMALL)
        yield Supervisor(connection, RunLogs(log, now=utc_now, new_id=new_id))
        await log.close()


class Supervisor:
    """States what the supervisor states, as its user."""

    def __init__(self, connection: Connection, run_logs: RunLogs) -> None:
        self.connection = connection
        self.run_logs = run_logs

    async def state(self, run_id: str, *payloads: events.Payload) -> None:
        await self.run_logs.of(RunAddress("demo", run_id)).transact(
            lambda _run: [lifecycle.draft(one) for one in payloads], lease_epoch=0, actor=SYSTEM
        )

    async def dispatch(self, run_id: str) -> None:
        await self.state(run_id, events.RunCreated(agent="a", input={"n": 1}))
        item = WorkItem(tenant_id="demo", run_id=run_id, agent="a")
        await self.connection.nc.publish(SMALL.subjects.work("demo", "default"), msgspec.json.encode(item))

    async def life(self, run_id: str) -> lifecycle.RunLifecycle:
        return await self.run_logs.of(RunAddress("demo", run_id)).load()


async def facts_of(transport: NatsTransport, run_id: str) -> list[Fact]:
    return [item async for item in RunReader(transport, run_id, from_="start") if isinstance(item, Fact)]


async def test_a_run_is_written_and_read_on_the_broker(worker: NatsTransport):
    writer = await RunWriter.start(worker, agent="basket", input={"n": 1}, run_id="run_1", retry=FAST)
    async with writer as run:
        async with run.message() as answer:
            answer.preview("An apple")
        async with run.tool("list_items", {}) as call:
            call.complete(["apple"])
        await run.complete({"text": "done"})
    facts = await facts_of(worker, "run_1")
    assert [fact.sequence for fact in facts] == list(range(1, len(facts) + 1))
    assert facts[-1].type == "run.completed"
    assert all(fact.recorded_at for fact in facts)


async def test_p5_every_cursor_of_the_log_continues_with_exactly_the_rest(worker: NatsTransport):
    async with await RunWriter.start(worker, agent="a", run_id="run_1", retry=FAST) as run:
        await run.append(*(events.TurnStarted(turn_id=f"t{n}") for n in range(5)))
        await run.complete()
    reader = RunReader(worker, "run_1", from_="start")
    cursors = [reader.pending_cursor or "" async for item in reader if isinstance(item, Fact)]
    for index, cursor in enumerate(cursors):
        rest = [item async for item in RunReader(worker, "run_1", cursor=cursor) if isinstance(item, Fact)]
        assert [fact.sequence for fact in rest] == list(range(index + 2, len(cursors) + 1))


async def test_a_cursor_of_a_log_that_was_made_anew_is_reset_by_name(worker: NatsTransport):
    async with await RunWriter.start(worker, agent="a", run_id="run_1", retry=FAST) as run:
        await run.append(events.TurnStarted(turn_id="t1"))
        reader = RunReader(worker, "run_1")
        await reader.connect()
        cursor = worker_cursor(reader, "another/epoch")
        await reader.aclose()
        assert isinstance(await RunReader(worker, "run_1", cursor=cursor).connect(), ResetRequired)
        with pytest.raises(RequestRefused, match="cursor_foreign"):
            await anext(RunReader(worker, "run_1", cursor="c1.x.y"))
        await run.complete()


def worker_cursor(reader: RunReader, epoch: str) -> str:
    assert reader.hello is not None
    position = nats_transport._position(reader.hello.baseline.cursor)
    return nats_transport._cursor(msgspec.structs.replace(position, epoch=epoch))


async def test_snapshot_and_tail_give_the_state_of_a_full_replay(worker: NatsTransport):
    live, later = RunState("run_1"), RunState("run_1")
    async with await RunWriter.start(worker, agent="a", run_id="run_1", retry=FAST) as run:
        await run.append(events.MessageCompleted(message_id="m1", role="user", content="hi"))
        reader = RunReader(worker, "run_1")
        for _ in range(3):
            live.apply(await anext(reader))
        await run.append(events.MessageCompleted(message_id="m2", role="assistant", content="ho"))
        await run.complete()
        async for item in reader:
            live.apply(item)
    async for item in RunReader(worker, "run_1", from_="start"):
        later.apply(item)
    assert live.checksum() == later.checksum() == reducer.checksum(later.data)
    assert live.is_terminal


async def test_a_decision_reaches_the_worker_unmasked_and_at_once(worker: NatsTransport, supervisor: Supervisor):
    async def agent(ctx: RunContext) -> object:
        answer = await ctx.approval("pay", approval_id="a1", editable=True)
        secret = await ctx.ask("password?", input_id="i1")
        assert isinstance(secret, events.InputProvided)
        return {"decision": answer.decision, "got": len(secret.secret_value)}

    pool = Worker(worker, agent=agent, claim_wait_s=1.0)
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        tasks.create_task(pool.run())
        await supervisor.dispatch("run_1")
        await eventually(lambda: waiting(supervisor, "approvals"))
        began = asyncio.get_running_loop().time()
        resolved = events.ApprovalResolved(approval_id="a1", decision="approved", decided_by="u1", version=1)
        await supervisor.state("run_1", resolved)
        await eventually(lambda: waiting(supervisor, "inputs"))
        assert asyncio.get_running_loop().time() - began < 1.0, "it was woken, and did not wait for the sweep"
        await supervisor.state("run_1", events.InputProvided(input_id="i1", by="u1", secret_value="hunter2"))
        await eventually(lambda: is_over(supervisor))
        pool.stop()
    facts = await facts_of(worker, "run_1")
    assert decode_json(facts[-1].payload)["output"] == {"decision": "approved", "got": 7}


async def waiting(supervisor: Supervisor, kind: str) -> bool:
    life = await supervisor.life("run_1")
    return life.status == "waiting" and bool(getattr(life, kind))


async def is_over(supervisor: Supervisor, run_id: str = "run_1") -> bool:
    return (await supervisor.life(run_id)).is_terminal


async def test_p3_a_writer_that_was_taken_over_is_refused_by_the_log_itself(
    worker: NatsTransport, supervisor: Supervisor
):
    """To see it fail: let `lifecycle.admit` not compare the epochs."""
    async with await RunWriter.start(worker, agent="a", run_id="run_1", retry=FAST) as run:
        await supervisor.state("run_1", *losing(run.lease_epoch), events.RunLeased(lease_epoch=2, worker_id="another"))
        with pytest.raises(LeaseLost):
            await run.append(events.TurnStarted(turn_id="zombie"))
        assert not run.lease_ok
    assert "turn.started" not in [fact.type for fact in await until_now(worker, "run_1")]


def losing(epoch: int) -> list[events.Payload]:
    return [events.RunLeaseLost(lease_epoch=epoch)]


async def until_now(transport: NatsTransport, run_id: str) -> list[Fact]:
    facts: list[Fact] = []
    async with RunReader(transport, run_id, from_="start") as reader:
        async for item in reader:
            if isinstance(item, Fact):
                facts.append(item)
            if reader.is_live:
                return facts
    return facts


async def test_p1_a_broker_that_is_killed_and_comes_back_loses_and_repeats_nothing(
    server: NatsServer, worker: NatsTransport
):
    acknowledged: list[str] = []
    async with asyncio.timeout(50), await RunWriter.start(worker, agent="a", run_id="run_1", retry=FAST) as run:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(kill_twice(server))
            for number in range(300):
                written = await run.append(events.TurnStarted(turn_id=f"t{number}"))
                acknowledged.append(written[0].event_id)
        await run.complete()
    facts = await facts_of(worker, "run_1")
    assert [fact.event_id for fact in facts if fact.type == "turn.started"] == acknowledged
    assert [fact.sequence for fact in facts] == list(range(1, len(facts) + 1))


async def kill_twice(server: NatsServer) -> None:
    for _ in range(2):
        await asyncio.sleep(0.15)
        await server.restart()


async def test_a_worker_survives_a_restart_of_the_broker_in_the_middle_of_a_run(
    server: NatsServer, worker: NatsTransport, supervisor: Supervisor
):
    go = asyncio.Event()

    async def agent(ctx: RunContext) -> str:
        await ctx.append(events.TurnStarted(turn_id="before"))
        await go.wait()
        await ctx.append(events.TurnStarted(turn_id="after"))
        return (await ctx.approval("pay", approval_id="a1")).decision

    pool = Worker(worker, agent=agent, claim_wait_s=1.0, ttl_s=20)
    async with asyncio.timeout(50), asyncio.TaskGroup() as tasks:
        tasks.create_task(pool.run())
        await supervisor.dispatch("run_1")
        await eventually(lambda: has_turn(supervisor, "run_1"))
        await server.restart()
        go.set()
        await eventually(lambda: waiting_after_restart(supervisor), within_s=30, every_s=0.2)
        await supervisor.state(
            "run_1", events.ApprovalResolved(approval_id="a1", decision="approved", decided_by="u1", version=1)
        )
        await eventually(lambda: is_over(supervisor), within_s=20, every_s=0.1)
        pool.stop()
    assert [fact.type for fact in await facts_of(worker, "run_1")].count("run.leased") == 1


async def has_turn(supervisor: Supervisor, run_id: str) -> bool:
    return (await supervisor.life(run_id)).sequence >= 4


async def waiting_after_restart(supervisor: Supervisor) -> bool:
    try:
        return (await supervisor.life("run_1")).status == "waiting"
    except Retryable:
        return False


async def test_claiming_takes_a_run_once_and_says_when_there_is_none(worker: NatsTransport, supervisor: Supervisor):
    assert await worker.claim("default", worker_id="w1", ttl_s=5, wait_s=0.1) is None
    await supervisor.dispatch("run_1")
    claim = await worker.claim("default", worker_id="w1", ttl_s=5, wait_s=2)
    assert claim is not None
    assert (claim.run_id, claim.lease_epoch, claim.agent, claim.input) == ("run_1", 1, "a", {"n": 1})
    with pytest.raises(RequestRefused, match="lease_held"):
        await worker.take_lease("run_1", worker_id="w2", ttl_s=5)
    assert await worker.claim("default", worker_id="w2", ttl_s=5, wait_s=0.2) is None


async def test_runs_for_a_pool_are_not_started_over_nats(worker: NatsTransport):
    with pytest.raises(RequestRefused, match="forbidden"):
        await RunWriter.start(worker, agent="a", dispatch="pool")


async def test_an_unknown_run_is_named(worker: NatsTransport):
    with pytest.raises(RequestRefused, match="run_not_found"):
        await anext(RunReader(worker, "run_nowhere"))
    with pytest.raises(RequestRefused, match="run_not_found"):
        await worker.take_lease("run_nowhere", worker_id="w", ttl_s=5)


async def test_a_resumed_reader_says_so(worker: NatsTransport):
    async with await RunWriter.start(worker, agent="a", run_id="run_1", retry=FAST) as run:
        reader = RunReader(worker, "run_1", from_="start")
        await anext(reader)
        await anext(reader)
        await reader.mark_applied()
        assert await RunReader(worker, "run_1", cursor=reader.cursor).connect() == Resumed(1)
        await reader.aclose()
        await run.complete()
