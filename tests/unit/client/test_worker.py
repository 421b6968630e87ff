"""What a worker promises, and how people reach an agent."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from runlane.client import RequestRefused, RunActions, RunContext, RunWriter, Worker
from runlane.client.transports.ports import NewRun
from runlane_contracts import events
from support.eventually import eventually
from support.memory_lane import MemoryLane


@asynccontextmanager
async def working(lane: MemoryLane, agent, **options):
    worker = Worker(lane, agent=agent, claim_wait_s=0.5, **({"ttl_s": 5.0} | options))
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.stop()


async def new_run(lane: MemoryLane, run_id: str = "run_1", **more) -> str:
    await lane.start_run(NewRun(agent="a", run_id=run_id, idempotency_key=run_id, **more))
    return run_id


async def ended(lane: MemoryLane, run_id: str = "run_1") -> str:
    await eventually(lambda: lane.runs[run_id].life.is_terminal, within_s=5)
    return lane.runs[run_id].life.status


async def test_a_run_of_the_pool_is_executed_and_completed_with_what_the_agent_returned():
    lane = MemoryLane()

    async def agent(ctx: RunContext) -> dict[str, object]:
        async with ctx.message() as answer:
            answer.preview("hello ")
        return {"said": "hello", "to": ctx.input, "attempt": ctx.attempt}

    async with working(lane, agent):
        await new_run(lane, input={"name": "Ada"})
        assert await ended(lane) == "completed"
    assert lane.types("run_1")[:3] == ["run.created", "run.leased", "run.started"]
    assert lane.payloads("run_1", "run.completed")[0]["output"] == {
        "said": "hello",
        "to": {"name": "Ada"},
        "attempt": 1,
    }


async def test_an_exception_fails_the_run_and_not_the_worker():
    lane = MemoryLane()

    async def agent(ctx: RunContext) -> None:
        if ctx.run_id == "run_1":
            raise ValueError("the key is sk-ant-a1b2c3d4e5f6g7h8i9j0k1l2")

    async with working(lane, agent):
        await new_run(lane)
        assert await ended(lane) == "failed"
        await new_run(lane, "run_2")
        assert await ended(lane, "run_2") == "completed"
    error = lane.payloads("run_1", "run.failed")[0]["error"]
    assert error == {"code": "ValueError", "message": "the key is [masked:anthropic-key]", "retryable": False}


async def test_an_output_that_is_not_json_fails_the_run():
    lane = MemoryLane()

    async def agent(_ctx: RunContext) -> object:
        return object()

    async with working(lane, agent):
        await new_run(lane)
        assert await ended(lane) == "failed"
    assert lane.payloads("run_1", "run.failed")[0]["error"]["code"] == "output_unfit"


async def test_cancel_reaches_the_agent_at_its_next_boundary():
    lane = MemoryLane()

    async def agent(ctx: RunContext) -> None:
        while True:
            await ctx.boundary()
            await asyncio.sleep(0.01)

    async with working(lane, agent):
        await new_run(lane)
        await eventually(lambda: "run.started" in lane.types("run_1"))
        lane.cancel_deadline_at = "2099-01-01T00:00:00.000000Z"
        await RunActions(lane, "run_1").cancel("enough")
        assert await ended(lane) == "cancelled"
    assert lane.payloads("run_1", "run.cancelled")[0]["reason"] == "enough"


async def test_an_agent_that_is_deaf_is_ended_before_its_grace_is_over():
    lane = MemoryLane()
    stopped = asyncio.Event()

    async def agent(_ctx: RunContext) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    async with working(lane, agent):
        await new_run(lane)
        await eventually(lambda: "run.started" in lane.types("run_1"))
        await RunActions(lane, "run_1").cancel()  # its deadline is in the past
        assert await ended(lane) == "cancelled"
    assert stopped.is_set()


async def test_a_pause_holds_the_agent_at_its_boundary_until_it_is_resumed():
    lane = MemoryLane()
    passed: list[str] = []

    async def agent(ctx: RunContext) -> None:
        while "done" not in [m.content for m in await ctx.boundary()]:
            passed.append(ctx.state.status)
            await asyncio.sleep(0.01)

    async with working(lane, agent):
        await new_run(lane)
        actions = RunActions(lane, "run_1")
        await eventually(lambda: passed)
        await actions.pause()
        await eventually(lambda: lane.runs["run_1"].life.status == "paused")
        count = len(passed)
        await asyncio.sleep(0.1)
        assert len(passed) == count
        await actions.resume()
        await eventually(lambda: len(passed) > count)
        await actions.send("done")
        assert await ended(lane) == "completed"


async def test_a_pause_that_is_taken_back_before_the_boundary_does_not_strand_the_run():
    lane = MemoryLane()
    go = asyncio.Event()

    async def agent(ctx: RunContext) -> None:
        await go.wait()
        await ctx.boundary()

    async with working(lane, agent):
        await new_run(lane)
        await eventually(lambda: "run.started" in lane.types("run_1"))
        await lane.state("run_1", events.RunPauseRequested())
        await asyncio.sleep(0.05)
        go.set()
        await asyncio.sleep(0)
        await lane.state("run_1", events.RunResumed())
        assert await ended(lane) == "completed"


async def test_messages_are_heard_once_and_in_order_at_the_boundary():
    lane = MemoryLane()
    heard: list[object] = []

    async def agent(ctx: RunContext) -> None:
        while "stop" not in heard:
            heard.extend(message.content for message in await ctx.boundary())
            await asyncio.sleep(0.01)

    async with working(lane, agent):
        await new_run(lane)
        for text in ("one", "two", "stop"):
            await RunActions(lane, "run_1").send(text)
        assert await ended(lane) == "completed"
    assert heard == ["one", "two", "stop"]


@pytest.mark.parametrize("decision", ["approved", "rejected", "modified"])
async def test_p11_an_approval_is_asked_once_and_its_decision_reaches_the_agent(decision: str):
    lane = MemoryLane()

    async def agent(ctx: RunContext) -> dict[str, object]:
        answer = await ctx.approval("send the mail", data={"to": "x"}, tool_call_id="c1", editable=True)
        return {"decision": answer.decision, "data": answer.data, "status": ctx.state.status}

    async with working(lane, agent):
        await new_run(lane)
        await eventually(lambda: lane.runs["run_1"].life.status == "waiting")
        (approval_id,) = lane.runs["run_1"].life.approvals
        await RunActions(lane, "run_1").resolve_approval(
            approval_id, decision, data={"to": "y"} if decision == "modified" else None
        )
        assert await ended(lane) == "completed"
    types = lane.types("run_1")
    assert types[3:] == ["approval.requested", "run.waiting", "approval.resolved", "run.resumed", "run.completed"]
    output = lane.payloads("run_1", "run.completed")[0]["output"]
    assert output["decision"] == decision
    assert output["data"] == ({"to": "y"} if decision == "modified" else None)


async def test_two_approvals_at_once_are_waited_for_together():
    lane = MemoryLane()

    async def agent(ctx: RunContext) -> list[str]:
        one, two = await asyncio.gather(ctx.approval("one", approval_id="a1"), ctx.approval("two", approval_id="a2"))
        return [one.decision, two.decision]

    async with working(lane, agent):
        await new_run(lane)
        await eventually(lambda: len(lane.runs["run_1"].life.approvals) == 2)
        actions = RunActions(lane, "run_1")
        await actions.resolve_approval("a2", "rejected")
        await eventually(lambda: lane.payloads("run_1", "run.waiting")[-1]["on"] == [{"kind": "approval", "id": "a1"}])
        assert lane.runs["run_1"].life.status == "waiting"
        await actions.resolve_approval("a1", "approved")
        assert await ended(lane) == "completed"
    assert lane.payloads("run_1", "run.completed")[0]["output"] == ["approved", "rejected"]


async def test_p11_a_second_attempt_finds_the_question_open_and_asks_it_no_second_time():
    lane = MemoryLane()
    attempts: list[int] = []

    async def agent(ctx: RunContext) -> str:
        attempts.append(ctx.attempt)
        return (await ctx.approval("pay", tool_call_id="c1", data={"amount": 1})).decision

    async with working(lane, agent):
        await new_run(lane)
        await eventually(lambda: lane.runs["run_1"].life.status == "waiting")
        await lane.state("run_1", events.RunLeaseLost(lease_epoch=1))
        lane.work["default"].put_nowait("run_1")
        await eventually(lambda: attempts == [1, 2], within_s=5)
        (approval_id,) = lane.runs["run_1"].life.approvals
        await RunActions(lane, "run_1").resolve_approval(approval_id, "approved")
        assert await ended(lane) == "completed"
    assert lane.types("run_1").count("approval.requested") == 1


async def test_p11_a_decision_made_while_nobody_owned_the_run_is_found_by_the_next_attempt():
    lane = MemoryLane()

    async def agent(ctx: RunContext) -> str:
        return (await ctx.approval("pay", approval_id="a1")).decision

    run_id = await new_run(lane)
    lane.work["default"].get_nowait()
    async with RunWriter.attach(lane, run_id) as first:
        await first.append(
            events.RunStarted(),
            events.ApprovalRequested(approval_id="a1", description="pay", risk="high", version=1, action_digest="d"),
            events.RunWaiting(on=(events.WaitingFor(kind="approval", id="a1"),)),
        )
    await RunActions(lane, run_id).resolve_approval("a1", "approved")
    async with working(lane, agent):
        lane.work["default"].put_nowait(run_id)
        assert await ended(lane) == "completed"
    assert lane.types(run_id).count("approval.requested") == 1


async def test_cancel_while_waiting_for_a_decision_ends_the_run_and_closes_the_question():
    lane = MemoryLane()

    async def agent(ctx: RunContext) -> None:
        await ctx.approval("pay", approval_id="a1")

    async with working(lane, agent):
        await new_run(lane)
        await eventually(lambda: lane.runs["run_1"].life.status == "waiting")
        await RunActions(lane, "run_1").cancel()
        assert await ended(lane) == "cancelled"
    assert lane.payloads("run_1", "approval.resolved")[0]["decision"] == "revoked"


async def test_an_answer_to_a_question_reaches_the_agent():
    lane = MemoryLane()

    async def agent(ctx: RunContext) -> object:
        answer = await ctx.ask("How many?", schema={"type": "integer"}, input_id="i1")
        assert isinstance(answer, events.InputProvided)
        return answer.value

    async with working(lane, agent):
        await new_run(lane)
        await eventually(lambda: "i1" in lane.runs["run_1"].life.inputs)
        await RunActions(lane, "run_1").provide_input("i1", 7)
        assert await ended(lane) == "completed"
    assert lane.payloads("run_1", "run.completed")[0]["output"] == 7


async def test_a_tool_that_people_ask_to_retry_reaches_the_agent_as_requested():
    lane = MemoryLane()

    async def agent(ctx: RunContext) -> str:
        async with ctx.tool("fetch", {"url": "u"}, tool_call_id="c1") as call:
            await call.failed("timeout", retryable=True)
        while not (asked := ctx.retries()):
            await ctx.boundary()
            await asyncio.sleep(0.01)
        async with ctx.requested_tool(asked[0]) as again:
            again.complete("fetched")
        return asked[0].tool_call_id

    async with working(lane, agent):
        await new_run(lane)
        await eventually(lambda: "tool.failed" in lane.types("run_1"))
        await RunActions(lane, "run_1").retry_tool("c1")
        assert await ended(lane) == "completed"
    assert lane.types("run_1").count("tool.requested") == 2
    assert lane.types("run_1")[-3:] == ["tool.running", "tool.completed", "run.completed"]


async def test_p3_an_agent_whose_run_was_taken_is_cancelled_and_writes_nothing_more():
    lane = MemoryLane()
    stopped = asyncio.Event()

    async def agent(_ctx: RunContext) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    async with working(lane, agent):
        await new_run(lane)
        await eventually(lambda: "run.started" in lane.types("run_1"))
        await lane.take_over("run_1")
        await asyncio.wait_for(stopped.wait(), 2)
        await eventually(lambda: ("append", "run_1") in lane.calls)
        await asyncio.sleep(0.05)
    assert lane.runs["run_1"].life.status == "running"
    assert lane.types("run_1")[-1] == "run.leased"


async def test_a_run_that_is_ended_for_the_worker_stops_the_agent():
    lane = MemoryLane()
    stopped = asyncio.Event()

    async def agent(_ctx: RunContext) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    async with working(lane, agent) as worker:
        await new_run(lane)
        await eventually(lambda: "run.started" in lane.types("run_1"))
        await lane.state("run_1", events.RunFailed(error=events.Problem(code="deadline_exceeded")))
        await asyncio.wait_for(stopped.wait(), 2)
        await eventually(lambda: worker.executed == 1)


async def test_no_more_than_its_concurrency_runs_at_once():
    lane = MemoryLane()
    now, most = 0, 0

    async def agent(_ctx: RunContext) -> None:
        nonlocal now, most
        now, most = now + 1, max(most, now + 1)
        await asyncio.sleep(0.02)
        now -= 1

    async with working(lane, agent, concurrency=3) as worker:
        for number in range(12):
            await new_run(lane, f"run_{number}")
        await eventually(lambda: worker.executed == 12, within_s=5)
    assert most == 3


async def test_a_worker_that_stops_lets_its_runs_finish_and_gives_back_what_is_late():
    lane = MemoryLane()

    async def agent(ctx: RunContext) -> None:
        await asyncio.sleep(0.1 if ctx.run_id == "run_1" else 60)

    async with working(lane, agent, stop_within_s=0.4) as worker:
        await new_run(lane)
        await new_run(lane, "run_2")
        await eventually(lambda: all("run.started" in lane.types(r) for r in ("run_1", "run_2")))
        worker.stop()
    assert lane.runs["run_1"].life.status == "completed"
    assert lane.types("run_2")[-1] == "run.lease_lost"
    assert lane.payloads("run_2", "run.lease_lost")[0]["cause"] == "released"


async def test_a_pool_that_may_not_be_worked_for_ends_the_worker_after_its_runs():
    lane = MemoryLane()
    done = asyncio.Event()

    async def agent(_ctx: RunContext) -> None:
        await done.wait()

    worker = Worker(lane, agent=agent, claim_wait_s=0.5)
    async with asyncio.timeout(10):
        working = asyncio.ensure_future(worker.run())
        await new_run(lane)
        await eventually(lambda: "run.started" in lane.types("run_1"))
        lane.refuse_for_good["claim"] = "forbidden"
        await eventually(lambda: [verb for verb, _ in lane.calls][-1] == "claim" and worker._refused is not None)
        done.set()
        with pytest.raises(RequestRefused, match="forbidden"):
            await working
    assert lane.runs["run_1"].life.status == "completed"


async def test_a_run_that_comes_while_the_worker_stops_is_given_back():
    lane = MemoryLane()

    async def agent(_ctx: RunContext) -> None:
        return None

    async with working(lane, agent) as worker:
        await eventually(lambda: ("claim", "default") in lane.calls)
        worker.stop()
        await new_run(lane)
    assert lane.types("run_1") == ["run.created", "run.leased", "run.lease_lost"]


async def test_a_worker_waits_out_a_server_that_is_gone():
    lane = MemoryLane()

    async def agent(_ctx: RunContext) -> None:
        return None

    lane.unreachable = True
    async with working(lane, agent):
        await asyncio.sleep(0.3)
        lane.unreachable = False
        await new_run(lane)
        assert await ended(lane) == "completed"
