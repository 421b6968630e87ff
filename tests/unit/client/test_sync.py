"""The blocking SDK keeps the promises of the async one: order, cancellation, leases, and no deadlock of its own."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from runlane.client import Applied, Declined, Fact, LeaseLost, MemoryCursorStore, RequestRefused
from runlane.client.blocking import Held, each, on_loop, wait_for
from runlane.client.sync import (
    Client,
    HttpTransport,
    RunActions,
    RunContext,
    RunReader,
    RunWriter,
    ToolInProgress,
    Worker,
)
from runlane.client.transports.ports import NewRun
from support.fake_edge import TOKEN, FakeEdge
from support.memory_lane import MemoryLane, MemoryRun
from support.runs import a_short_run, a_waiting_run


@pytest.fixture
def lane() -> MemoryLane:
    return on_loop(MemoryLane)


@pytest.fixture
def transport(lane: MemoryLane) -> Iterator[HttpTransport]:
    edge = Held(FakeEdge(lane).serve())
    with HttpTransport(edge.enter(), TOKEN) as transport:
        yield transport
    edge.exit(None)


def test_a_run_is_written_and_read_without_asyncio(lane: MemoryLane, transport: HttpTransport):
    with RunWriter.start(transport, agent="basket", input={"n": 1}, run_id="run_1") as run:
        with run.message() as answer:
            answer.preview("An ")
            answer.complete("An apple.")
        with run.tool("weigh", {"item": "apple"}) as call:
            call.complete({"grams": 182})
        assert run.lease_ok
        assert not run.lease_lost
        run.complete({"text": "An apple."})
    assert lane.runs["run_1"].life.status == "completed"
    store = MemoryCursorStore()
    with RunReader(transport, "run_1", from_="start", store=store) as reader:
        sequences = [item.sequence for item in reader if isinstance(item, Fact)]
    assert sequences == list(range(1, len(lane.runs["run_1"].facts) + 1))
    assert store.cursors["run_1"] == f"c{sequences[-1]}"


def test_an_item_counts_as_applied_when_the_next_is_asked_for(lane: MemoryLane, transport: HttpTransport):
    story = a_short_run()
    lane.runs["run_1"] = MemoryRun(story.run, list(story.facts))
    store, seen = MemoryCursorStore(), []
    while len(seen) < 4:
        with RunReader(transport, "run_1", from_="start", store=store) as reader:
            for item in reader:
                if isinstance(item, Fact):
                    seen.append((item.sequence, store.cursors.get("run_1")))
                    if len(seen) % 2 == 0:
                        break
    assert seen == [(1, None), (2, "c1"), (2, "c1"), (3, "c2")]


def test_what_the_server_refuses_is_raised_where_it_was_asked(transport: HttpTransport):
    assert isinstance(RunActions(transport, "run_9").cancel(), Declined)
    with RunReader(transport, "run_9") as reader, pytest.raises(RequestRefused, match="run_not_found"):
        next(iter(reader))


def test_a_client_of_many_runs(lane: MemoryLane, transport: HttpTransport):
    for story in (a_short_run(), a_waiting_run()):
        lane.runs[story.run.run_id] = MemoryRun(story.run, list(story.facts))
    with Client(transport) as client:
        for _ in client.follow("run_1"):
            pass
        assert client.state("run_1").status == "completed"
        assert isinstance(client.actions("run_2").resolve_approval("a1", "approved"), Applied)
        assert client.recover() == {}


def test_an_agent_is_a_plain_function_and_its_effects_too(lane: MemoryLane, transport: HttpTransport):
    threads: set[str] = set()

    def weigh(call: ToolInProgress) -> int:
        threads.add(threading.current_thread().name)
        call.preview("weighing")
        return len(call.of.arguments["item"])

    def agent(ctx: RunContext) -> dict[str, int]:
        threads.add(threading.current_thread().name)
        ctx.boundary()
        return {"grams": ctx.call("weigh", {"item": "apple"}, weigh)}

    worker = Worker(transport, agent=agent, concurrency=32, claim_wait_s=0.2)
    running = threading.Thread(target=worker.run)
    running.start()
    for number in range(32):
        new = NewRun(agent="a", run_id=f"run_{number}", idempotency_key=f"k{number}")
        wait_for(transport.of.start_run(new))
    _until(lambda: len(lane.runs) == 32 and all(run.life.is_terminal for run in lane.runs.values()))
    worker.stop()
    running.join(10)
    assert not running.is_alive()
    assert lane.payloads("run_31", "run.completed")[0]["output"] == {"grams": 5}
    assert all(name.startswith("runlane-call") for name in threads)


def test_an_agent_whose_lease_is_gone_is_told_at_its_next_step(lane: MemoryLane, transport: HttpTransport):
    told: list[type[BaseException]] = []
    began, go_on = threading.Event(), threading.Event()

    def agent(ctx: RunContext) -> None:
        began.set()
        go_on.wait(10)
        try:
            ctx.boundary()
        except LeaseLost as exc:
            told.append(type(exc))
            raise

    worker = Worker(transport, agent=agent, claim_wait_s=0.2, ttl_s=0.5)
    running = threading.Thread(target=worker.run)
    running.start()
    wait_for(transport.of.start_run(NewRun(agent="a", run_id="run_1", idempotency_key="k")))
    assert began.wait(10)
    run = lane.runs["run_1"]

    async def lose() -> None:
        from runlane_contracts import lifecycle  # noqa: PLC0415

        run.fenced_below = run.life.lease_epoch + 1
        await lane.write(run, lifecycle.lose_lease(run.life, "expired"))

    wait_for(lose())
    _until(lambda: worker.of.executed)  # the worker has given the run up; the thread does not know yet
    go_on.set()
    _until(lambda: told)
    worker.stop()
    running.join(10)
    assert told == [LeaseLost]


# -- the parts underneath ----------------------------------------------------------------------------------------


def test_the_loop_does_not_wait_for_itself():
    async def work() -> None:
        wait_for(asyncio.sleep(0))

    with pytest.raises(RuntimeError, match="its own loop"):
        wait_for(work())


def test_a_context_is_entered_and_left_in_one_task_and_sees_what_its_block_raised():
    tasks: list[object] = []

    class Context:
        async def __aenter__(self) -> str:
            tasks.append(asyncio.current_task())
            return "in"

        async def __aexit__(self, kind: object, exc: BaseException | None, trace: object) -> bool:
            tasks.append(asyncio.current_task())
            return isinstance(exc, KeyError)

    held = Held(Context())
    assert held.enter() == "in"
    assert held.exit(KeyError("k"))
    assert tasks[0] is tasks[1]
    again = Held(Context())
    again.enter()
    assert not again.exit(ValueError("v"))


def test_a_context_that_cannot_be_entered_says_why():
    class Broken:
        async def __aenter__(self) -> None:
            raise OSError("no")

        async def __aexit__(self, *_: object) -> None: ...

    with pytest.raises(OSError, match="no"):
        Held(Broken()).enter()


def test_items_come_one_at_a_time_and_leaving_closes_their_source():
    made, closed = [], []

    async def numbers():
        try:
            for number in range(5):
                made.append(number)
                yield number
        finally:
            closed.append(True)

    seen = []
    for number in each(numbers()):
        seen.append(number)
        assert made == list(range(number + 1))
        if number == 2:
            break
    assert seen == [0, 1, 2]
    _until(lambda: closed)
    assert list(each(numbers())) == [0, 1, 2, 3, 4]


def _until(condition) -> None:
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
