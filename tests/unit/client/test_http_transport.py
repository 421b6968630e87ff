"""The whole SDK over real HTTP, against a small fake of the edge."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from runlane.client import (
    Applied,
    BackoffPolicy,
    ContractViolation,
    Fact,
    HttpTransport,
    LeaseLost,
    Preview,
    RequestRefused,
    RunActions,
    RunContext,
    RunReader,
    RunState,
    RunWriter,
    Unreachable,
    Worker,
)  # fmt: skip
from runlane.client.transports import http as http_module
from runlane.client.transports.ports import NewRun, WatchRequest
from runlane_contracts import events, reducer
from support.eventually import eventually
from support.fake_edge import TOKEN, FakeEdge
from support.memory_lane import MemoryLane


@pytest.fixture
async def lane() -> MemoryLane:
    return MemoryLane()


@pytest.fixture
async def edge(lane: MemoryLane) -> FakeEdge:
    return FakeEdge(lane)


@pytest.fixture
async def transport(edge: FakeEdge) -> AsyncIterator[HttpTransport]:
    async with edge.serve() as url, HttpTransport(url, TOKEN) as transport:
        yield transport


async def test_a_run_written_over_http_is_read_over_http(lane: MemoryLane, transport: HttpTransport):
    state, previews = RunState("run_1"), []

    async def look() -> None:
        async with RunReader(transport, "run_1") as reader:
            async for item in reader:
                state.apply(item)
                if isinstance(item, Preview):
                    previews.append(item.data)

    writer = await RunWriter.start(transport, agent="basket", input={"n": 1}, run_id="run_1")
    async with writer as run, asyncio.TaskGroup() as tasks:
        tasks.create_task(look())
        async with run.message() as answer:
            await eventually(lambda: state.sequence >= 4)
            answer.preview("An ")
            answer.preview("apple ")
            await eventually(lambda: previews)
            answer.complete("One apple.")
        async with run.tool("list_items", {"basket": 7}) as call:
            call.complete(["apple"])
        await run.complete({"text": "One apple."}, usage={"total_tokens": 3})
    assert "".join(previews) == "An apple "
    assert state.is_terminal
    assert state.checksum() == reducer.checksum(lane.snapshot("run_1", lane.runs["run_1"].life.sequence).state)


async def test_tenant_and_rights_come_from_the_token_of_each_request(edge: FakeEdge, lane: MemoryLane):
    tokens = iter(["wrong", TOKEN])
    async with edge.serve() as url, HttpTransport(url, lambda: next(tokens)) as transport:
        with pytest.raises(RequestRefused) as caught:
            await transport.get_json("/v1/runs")
        assert caught.value.code == "unauthenticated"
        assert await transport.get_json("/v1/runs") == {"runs": []}


async def test_a_token_may_be_fetched(edge: FakeEdge):
    async def token() -> str:
        return TOKEN

    async with edge.serve() as url, HttpTransport(url, token) as transport:
        assert await transport.get_json("/v1/runs") == {"runs": []}


async def test_refusals_keep_their_code_and_what_the_server_said(lane: MemoryLane, transport: HttpTransport):
    writer = await RunWriter.start(transport, agent="a", run_id="run_1")
    async with writer as run:
        with pytest.raises(RequestRefused) as caught:
            await run.append(events.TurnStarted(turn_id="t"), expected_sequence=1)
        assert (caught.value.code, caught.value.problem.current_sequence) == ("sequence_conflict", 3)
        with pytest.raises(RequestRefused) as held:
            await transport.take_lease("run_1", worker_id="other", ttl_s=5)
        assert (held.value.code, held.value.problem.status) == ("lease_held", 409)
        await lane.take_over("run_1")
        with pytest.raises(LeaseLost):
            await run.append(events.TurnStarted(turn_id="t"))


async def test_a_server_that_is_not_there_is_unreachable_and_nothing_left():
    async with HttpTransport("http://127.0.0.1:9", TOKEN) as transport:
        with pytest.raises(Unreachable) as caught:
            await transport.get_json("/v1/runs")
        assert not caught.value.sent
        reader = RunReader(transport, "run_1", backoff=BackoffPolicy(initial_s=0.01, max_s=0.01, budget_s=0.05))
        with pytest.raises(Unreachable):
            await anext(reader)


async def test_commands_are_sent_once_and_found_again(lane: MemoryLane, transport: HttpTransport):
    await transport.start_run(NewRun(agent="a", run_id="run_1", idempotency_key="k"))
    actions = RunActions(transport, "run_1")
    lane.lose_answers.append("submit")
    assert isinstance(await actions.settled(await actions.send("hello")), Applied)
    assert lane.types("run_1").count("message.completed") == 1
    assert await transport.find_command("unknown") is None


async def test_a_worker_over_http_executes_a_run(lane: MemoryLane, transport: HttpTransport):
    async def agent(ctx: RunContext) -> object:
        return (await ctx.approval("pay", approval_id="a1")).decision

    worker = Worker(transport, agent=agent, claim_wait_s=0.5)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run())
        assert await transport.claim("empty", worker_id="w", ttl_s=5, wait_s=0.05) is None
        await transport.start_run(NewRun(agent="a", run_id="run_1", idempotency_key="k"))
        await eventually(lambda: "run_1" in lane.runs and lane.runs["run_1"].life.status == "waiting")
        assert isinstance(await RunActions(transport, "run_1").resolve_approval("a1", "approved"), Applied)
        await eventually(lambda: lane.runs["run_1"].life.status == "completed")
        worker.stop()


async def test_a_finished_run_answers_204_to_who_has_seen_its_end(lane: MemoryLane, transport: HttpTransport):
    async with await RunWriter.start(transport, agent="a", run_id="run_1") as run:
        await run.complete()
    items = [item async for item in RunReader(transport, "run_1", from_="start")]
    assert [item.sequence for item in items if isinstance(item, Fact)] == [1, 2, 3, 4]
    assert [item async for item in RunReader(transport, "run_1", cursor="c4")] == []


async def test_the_cursor_travels_as_last_event_id_and_the_filter_in_the_query(
    edge: FakeEdge, lane: MemoryLane, transport: HttpTransport
):
    async with await RunWriter.start(transport, agent="a", run_id="run_1") as run:
        await run.complete()
    request = WatchRequest(run_id="run_1", cursor="c1", from_="start", previews=False, types=("run.completed",))
    async with transport.watch(request) as frames:
        assert frames is not None
        got = [frame async for frame in frames]
    assert edge.seen_headers[-1]["last-event-id"] == "c1"
    assert lane.watches[-1] == WatchRequest(run_id="run_1", cursor="c1", previews=False, types=("run.completed",))
    assert [frame.cursor for frame in got if isinstance(frame.item, Fact)] == ["c4"]


async def test_a_connection_that_falls_silent_is_lost(
    lane: MemoryLane, transport: HttpTransport, monkeypatch: pytest.MonkeyPatch
):
    lane.heartbeat_s = 0.1
    monkeypatch.setattr(http_module, "HEARTBEATS_MISSED", 0.01)
    await transport.start_run(NewRun(agent="a", run_id="run_1", idempotency_key="k"))
    async with asyncio.timeout(5), transport.watch(WatchRequest(run_id="run_1")) as frames:
        assert frames is not None
        with pytest.raises(Unreachable, match="silent"):
            _ = [frame async for frame in frames]


async def test_an_answer_that_is_not_of_the_protocol_is_named():
    def nonsense(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=b"<html>")

    client = httpx.AsyncClient(transport=httpx.MockTransport(nonsense))
    async with client:
        with pytest.raises(ContractViolation):
            await HttpTransport("http://x", client=client).find_command("k")
        with pytest.raises(ContractViolation):
            await HttpTransport("http://x", client=client).get_json("/v1/runs")


async def test_a_proxy_that_answers_without_a_problem_is_still_a_refusal():
    def bad_gateway(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(502, content=b"<html>", headers={"retry-after": "3"})

    async with httpx.AsyncClient(transport=httpx.MockTransport(bad_gateway)) as client:
        with pytest.raises(RequestRefused) as caught:
            await HttpTransport("http://x", client=client).get_json("/v1/runs")
    assert (caught.value.retryable, caught.value.retry_after_s) == (True, 3.0)


async def test_frames_of_an_unknown_kind_are_skipped():
    def stream(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=b'event: weather\ndata: {}\n\nevent: synced\ndata: {"sequence": 1}\n\n')

    client = httpx.AsyncClient(transport=httpx.MockTransport(stream))
    watching = HttpTransport("http://x", client=client).watch(WatchRequest(run_id="r"))
    async with client, watching as frames:
        assert frames is not None
        assert len([frame async for frame in frames]) == 1
