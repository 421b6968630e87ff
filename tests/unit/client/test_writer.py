"""What a writer promises: durable once, in order; closed when the lease cannot be confirmed."""

import asyncio
import time

import msgspec
import pytest

from runlane.client import BackoffPolicy, LeaseLost, RequestRefused, RunCancelled, RunWriter, Unreachable
from runlane_contracts import events
from runlane_contracts.checkpoint import CHECKPOINT_TYPE
from runlane_contracts.lifecycle import draft, lose_lease
from support.eventually import eventually
from support.memory_lane import MemoryLane

FAST = BackoffPolicy(initial_s=0.005, max_s=0.02, budget_s=2.0)


async def started(lane: MemoryLane, **options) -> RunWriter:
    return await RunWriter.start(lane, agent="basket", input={"text": "hello"}, retry=FAST, **options)


async def test_a_run_is_started_leased_written_and_ended():
    lane = MemoryLane()
    async with await started(lane) as run:
        written = await run.append(events.TurnStarted(turn_id="t1"), ("turn.completed", {"turn_id": "t1"}))
        await run.complete({"text": "done"})
    assert [one.sequence for one in written] == [4, 5]
    assert lane.types(run.run_id) == [
        "run.created", "run.leased", "run.started", "turn.started", "turn.completed", "run.completed",
    ]  # fmt: skip
    assert not [verb for verb, _ in lane.calls if verb == "release_lease"], "a finished run has no lease to give back"


async def test_a_lease_whose_answer_was_lost_is_waited_for_until_it_runs_out():
    lane = MemoryLane()
    writer = await started(lane)
    lane.lose_answers.append("take_lease")

    async def run_out() -> None:
        await eventually(lambda: lane.runs[writer.run_id].life.owner is not None)
        await asyncio.sleep(0.1)
        run = lane.run(writer.run_id)
        await lane.write(run, lose_lease(run.life, "expired"))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run_out())
        async with writer as run:
            assert run.lease_epoch == 2
            await run.complete()


async def test_a_lease_that_another_holds_is_refused_at_once():
    lane = MemoryLane()
    writer = await started(lane)
    await lane.take_over(writer.run_id)
    with pytest.raises(RequestRefused, match="lease_held"):
        await writer.__aenter__()


async def test_leaving_without_an_end_gives_the_run_back():
    lane = MemoryLane()
    async with await started(lane) as run:
        pass
    assert lane.types(run.run_id)[-1] == "run.lease_lost"
    assert lane.payloads(run.run_id, "run.lease_lost")[0]["cause"] == "released"
    async with RunWriter.attach(lane, run.run_id) as again:
        assert again.lease_epoch == 2
        await again.complete()


async def test_an_exception_in_the_body_reaches_the_caller_as_it_is():
    lane = MemoryLane()
    with pytest.raises(ZeroDivisionError):
        async with await started(lane):
            raise ZeroDivisionError


async def test_a_lost_answer_writes_once():
    lane = MemoryLane()
    async with await started(lane) as run:
        lane.lose_answers.extend(["append", "append", "append"])
        written = await run.append(events.TurnStarted(turn_id="t1"))
        await run.complete()
    assert lane.types(run.run_id).count("turn.started") == 1
    assert written[0].sequence == 4


async def test_a_lost_answer_of_the_start_starts_once():
    lane = MemoryLane()
    lane.lose_answers.extend(["start_run", "start_run"])
    async with await started(lane) as run:
        await run.complete()
    assert len(lane.runs) == 1


async def test_an_overloaded_server_is_asked_again_within_the_budget():
    lane = MemoryLane()
    async with await started(lane) as run:
        lane.refuse_next.extend(["append"] * 3)
        await run.append(events.TurnStarted(turn_id="t1"))
        lane.unreachable = True
        run._retry = BackoffPolicy(initial_s=0.01, max_s=0.02, budget_s=0.1)
        with pytest.raises(Unreachable):
            await run.append(events.TurnStarted(turn_id="t2"))
        lane.unreachable = False
        await run.complete()
    assert lane.types(run.run_id).count("turn.started") == 1


async def test_what_queues_while_a_commit_is_in_flight_is_the_next_commit():
    lane = MemoryLane()
    async with await started(lane) as run:
        lane.slow_append_s = 0.02
        before = len(lane.calls)
        async with asyncio.TaskGroup() as tasks:
            appends = [tasks.create_task(run.append(events.TurnStarted(turn_id=f"t{n}"))) for n in range(50)]
        assert sum(verb == "append" for verb, _ in lane.calls[before:]) <= 2
        assert [one.result()[0].sequence for one in appends] == list(range(4, 54))
        await run.complete()


async def test_in_a_group_only_the_faulty_append_is_refused():
    lane = MemoryLane()
    async with await started(lane) as run:
        lane.slow_append_s = 0.02
        first = draft(events.TurnStarted(turn_id="t0"), event_id="evt_known")
        await run.append(first)
        async with asyncio.TaskGroup() as tasks:
            jobs = [tasks.create_task(run.append(events.TurnStarted(turn_id=f"t{n}"))) for n in range(3)]
            mixed = tasks.create_task(_refused(run.append(first, events.TurnStarted(turn_id="bad"))))
            more = tasks.create_task(run.append(events.TurnStarted(turn_id="t9")))
        assert mixed.result() == "idempotency_conflict"
        assert all(job.result() for job in (*jobs, more))
        await run.complete()


async def _refused(call) -> str:
    with pytest.raises(RequestRefused) as caught:
        await call
    return caught.value.code


async def test_what_does_not_fit_the_contract_never_leaves():
    lane = MemoryLane()
    async with await started(lane) as run:
        before = len(lane.calls)
        with pytest.raises(RequestRefused) as caught:
            await run.append(events.TurnStarted(turn_id="t1"), ("tool.completed", {}))
        assert (caught.value.code, caught.value.problem.index) == ("invalid_request", 1)
        assert len(lane.calls) == before
        await run.complete()


async def test_an_expected_sequence_that_moved_on_is_a_named_conflict():
    lane = MemoryLane()
    async with await started(lane) as run:
        with pytest.raises(RequestRefused) as caught:
            await run.append(events.TurnStarted(turn_id="t1"), expected_sequence=2)
        assert caught.value.code == "sequence_conflict"
        assert caught.value.problem.current_sequence == 3
        await run.complete()


async def test_p3_a_writer_that_was_taken_over_is_told_and_writes_nothing_more():
    lane = MemoryLane()
    async with await started(lane) as run:
        await lane.take_over(run.run_id)
        with pytest.raises(LeaseLost):
            await run.append(events.TurnStarted(turn_id="zombie"))
        assert run.lease_lost.is_set()
        assert not run.lease_ok
        before = len(lane.calls)
        with pytest.raises(LeaseLost):
            await run.append(events.TurnStarted(turn_id="zombie"))
        with pytest.raises(LeaseLost):
            run.publish_preview("message", "m1", "zombie", preview_id="p1")
        assert len(lane.calls) == before, "nothing leaves the process"
    assert "turn.started" not in lane.types(run.run_id)


async def test_a_heartbeat_that_is_fenced_closes_the_writer_without_an_append():
    lane = MemoryLane()
    async with await started(lane, ttl_s=0.3) as run:
        await lane.take_over(run.run_id)
        async with asyncio.timeout(1):
            await run.lease_lost.wait()


async def test_a_lease_that_cannot_be_confirmed_in_time_fails_closed():
    lane = MemoryLane()
    async with await started(lane, ttl_s=0.4) as run:
        lane.unreachable = True
        began = time.monotonic()
        async with asyncio.timeout(2):
            await run.lease_lost.wait()
        assert time.monotonic() - began <= 0.4
        lane.unreachable = False
        with pytest.raises(LeaseLost):
            await run.append(events.TurnStarted(turn_id="t1"))


async def test_a_process_that_stood_still_finds_its_lease_gone_before_it_does_anything():
    lane = MemoryLane()
    async with await started(lane, ttl_s=0.2) as run:
        before = len(lane.calls)
        time.sleep(0.3)
        assert not run.lease_ok
        with pytest.raises(LeaseLost):
            await run.append(events.TurnStarted(turn_id="t1"))
        assert len(lane.calls) == before


async def test_a_lease_is_kept_for_as_long_as_the_server_confirms_it():
    lane = MemoryLane()
    async with await started(lane, ttl_s=0.3) as run:
        lane.refuse_next.extend(["confirm_lease"] * 2)
        await asyncio.sleep(0.8)
        assert run.lease_ok
        await run.complete()


async def test_appends_that_wait_are_refused_when_the_lease_is_lost():
    lane = MemoryLane()
    async with await started(lane, ttl_s=0.3) as run:
        lane.unreachable = True
        with pytest.raises(LeaseLost):
            await run.append(events.TurnStarted(turn_id="t1"))


async def test_a_full_queue_makes_the_caller_wait():
    lane = MemoryLane()
    async with await started(lane) as run:
        run._queue._max_facts = 3
        lane.slow_append_s = 0.01
        async with asyncio.TaskGroup() as tasks:
            for n in range(20):
                tasks.create_task(run.append(events.TurnStarted(turn_id=f"t{n}")))
            await asyncio.sleep(0)
            assert len(run._queue._waiting) <= 3
        await run.complete()
    assert lane.types(run.run_id).count("turn.started") == 20


async def test_a_cancelled_caller_leaves_the_others_alone():
    lane = MemoryLane()
    async with await started(lane) as run:
        lane.slow_append_s = 0.05
        first = asyncio.ensure_future(run.append(events.TurnStarted(turn_id="t1")))
        await asyncio.sleep(0.01)
        second = asyncio.ensure_future(run.append(events.TurnStarted(turn_id="t2")))
        third = asyncio.ensure_future(run.append(events.TurnStarted(turn_id="t3")))
        await asyncio.sleep(0)
        second.cancel()
        await first
        await third
        await run.complete()
    assert [one["turn_id"] for one in lane.payloads(run.run_id, "turn.started")] == ["t1", "t3"]


async def test_a_message_streams_and_then_commits_under_its_preview_id():
    lane = MemoryLane()
    async with await started(lane) as run:
        async with run.message() as answer:
            for word in ["An ", "apple ", "and "]:
                answer.preview(word)
            await eventually(lambda: lane.runs[run.run_id].previews)
            answer.complete("One apple.")
        await run.complete()
    (done,) = lane.payloads(run.run_id, "message.completed")
    shown = lane.runs[run.run_id].previews
    assert done["content"] == "One apple."
    assert {preview.preview_id for preview in shown} == {done["preview_id"]}
    assert "".join(preview.data for preview in shown) == "An apple and "
    assert shown[-1].preview_seq == 3


async def test_a_message_without_a_final_content_is_what_was_streamed():
    lane = MemoryLane()
    async with await started(lane) as run:
        async with run.message() as answer:
            answer.preview("One ")
            answer.preview("pear.")
        async with run.reasoning() as thought:
            thought.preview("hm")
        await run.complete()
    assert lane.payloads(run.run_id, "message.completed")[0]["content"] == "One pear."
    assert lane.payloads(run.run_id, "reasoning.completed")[0]["content"] == "hm"


async def _say_half(run: RunWriter) -> None:
    async with run.message() as answer:
        answer.preview("half a ")
        raise ZeroDivisionError("by zero")


async def test_a_message_that_breaks_is_failed_and_its_preview_abandoned():
    lane = MemoryLane()
    async with await started(lane) as run:
        with pytest.raises(ZeroDivisionError):
            await _say_half(run)
        await run._outbox.flush()
        await run.fail("boom")
    assert lane.payloads(run.run_id, "message.failed")[0]["error"]["code"] == "ZeroDivisionError"
    assert lane.runs[run.run_id].previews[-1].fate == "abandoned"


async def test_a_tool_call_is_requested_running_and_completed():
    lane = MemoryLane()
    async with await started(lane) as run:
        async with run.tool("list_items", {"basket": 7}) as call:
            call.complete({"items": ["apple"]})
        await run.complete()
    assert lane.types(run.run_id)[3:6] == ["tool.requested", "tool.running", "tool.completed"]
    (asked,) = lane.payloads(run.run_id, "tool.requested")
    assert asked["action_digest"].startswith("sha256:")


@pytest.mark.parametrize(
    ("side_effect", "error", "expected"),
    [
        ("none", TimeoutError("slow"), "tool.failed"),
        ("unsafe", TimeoutError("slow"), "tool.outcome_unknown"),
        ("unsafe", ValueError("no"), "tool.failed"),
        ("none", RunCancelled("enough"), "tool.cancelled"),
    ],
)
async def test_a_tool_that_raises_says_what_is_known(side_effect, error, expected):
    lane = MemoryLane()
    async with await started(lane) as run:
        with pytest.raises(type(error)):
            async with run.tool("send_mail", {}, side_effect=side_effect):
                raise error
        assert lane.types(run.run_id)[-1] == expected
        await run.cancelled()


async def test_previews_are_merged_within_a_window():
    lane = MemoryLane()
    async with await started(lane) as run:
        for n in range(500):
            run.publish_preview("message", "m1", f"{n} ", preview_id="p1")
        await eventually(lambda: lane.runs[run.run_id].previews)
        (only,) = lane.runs[run.run_id].previews
        assert only.coalesced is not None
        assert (only.coalesced.first_seq, only.preview_seq, only.coalesced.source_count) == (1, 500, 500)
        await run.complete()


async def test_p7_previews_that_cannot_leave_are_dropped_and_counted():
    lane = MemoryLane()
    async with await started(lane) as run:
        lane.unreachable = True
        run.publish_preview("message", "m1", "lost ", preview_id="p1")
        await eventually(lambda: run.dropped_previews == 1)
        lane.unreachable = False
        for _ in range(100):
            run.publish_preview("tool", "c1", "x" * 10_000 + " ", preview_id="p2", operation="replace")
        assert run.dropped_previews > 1
        assert run._outbox._bytes <= 256 * 1024
        await run.complete()


async def test_secrets_are_masked_before_they_leave():
    lane = MemoryLane()
    key = "sk-ant-" + "a1b2c3d4" * 4
    writer = await RunWriter.start(lane, agent="a", input={}, retry=FAST)
    async with writer as run:
        async with run.message() as answer:
            for cut in range(0, len(key), 5):
                answer.preview(key[cut : cut + 5])
            answer.preview(" is the key")
            await run._outbox.flush()
        await run.append(("artifact.created", {"artifact_id": "a1", "content": {"deep": [f"x {key} y"]}}))
        await run.complete({"password": "hunter2"})
    everything = msgspec.json.encode([lane.runs[run.run_id].facts, lane.runs[run.run_id].previews])
    assert key.encode() not in everything
    assert b"hunter2" not in everything
    assert everything.count(b"[masked:anthropic-key]") == 3


async def test_what_the_log_hands_back_to_code_is_kept_as_it_is_and_nothing_else():
    """Fails without `_handed_back`: whoever tries the call again would be given the mask."""
    lane = MemoryLane()
    key = "sk-ant-" + "a1b2c3d4" * 4
    async with await RunWriter.start(lane, agent="a", input={"key": key}, retry=FAST) as run:
        call = {"tool_call_id": "c1", "name": f"say {key}", "arguments": {"key": key, "password": "hunter2"}}
        await run.append(("tool.requested", call), ("tool.completed", {"tool_call_id": "c1", "result": {"key": key}}))
        kept = {"artifact_id": "a1", "media_type": CHECKPOINT_TYPE, "content": {"key": key}, "name": key}
        other = {"artifact_id": "a2", "content": {"media_type": CHECKPOINT_TYPE, "key": key}}
        await run.append(("artifact.completed", kept), ("artifact.completed", other))
        await run.complete()
    (created,) = lane.payloads(run.run_id, "run.created")
    (requested,) = lane.payloads(run.run_id, "tool.requested")
    (completed,) = lane.payloads(run.run_id, "tool.completed")
    checkpoint, artifact = lane.payloads(run.run_id, "artifact.completed")
    mask = "[masked:anthropic-key]"
    assert created["input"] == {"key": key}
    assert (requested["name"], requested["arguments"]) == (f"say {mask}", call["arguments"])
    assert completed["result"] == {"key": mask}
    assert (checkpoint["content"], checkpoint["name"]) == ({"key": key}, mask)
    assert artifact["content"]["key"] == mask


async def test_masking_can_be_switched_off():
    lane = MemoryLane()
    async with await started(lane, redactor=None) as run:
        await run.complete({"password": "hunter2"})
    assert lane.payloads(run.run_id, "run.completed")[0]["output"] == {"password": "hunter2"}


async def test_a_writer_that_was_not_entered_writes_nothing():
    lane = MemoryLane()
    run = await started(lane)
    with pytest.raises(LeaseLost, match="async with"):
        await run.append(events.RunStarted())
