"""What a run waits for, and what becomes of one that nobody drives."""

from datetime import UTC, datetime, timedelta

import pytest

from runlane.run_supervisor import moments
from runlane.run_supervisor.moments import Moments
from runlane.run_supervisor.recovery import GiveUp, HandOut, Hold, Leave, recover, wait_s, work_id
from runlane_contracts import events
from runlane_contracts.codec import encode, timestamp
from runlane_contracts.lifecycle import RunLifecycle
from runlane_contracts.subjects import RunAddress
from support.runs import Story

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
AT = "2026-03-01T13:00:00Z"
LATER = "2026-03-01T14:00:00Z"


def after(*payloads: events.Payload, start: Moments | None = None) -> Moments:
    found = start or Moments()
    for payload in payloads:
        moments.apply(found, payload.TYPE, payload, now=NOW)
    return found


def an_ask(id_: str = "a1", expires_at: str | None = AT, version: int = 1) -> events.ApprovalRequested:
    return events.ApprovalRequested(
        approval_id=id_, description="d", risk="low", version=version, action_digest="d", expires_at=expires_at
    )


def resolved(id_: str = "a1") -> events.ApprovalResolved:
    return events.ApprovalResolved(approval_id=id_, decision="approved", decided_by="u", version=1)


def test_a_run_without_moments_costs_nothing() -> None:
    plain = after(events.RunCreated(agent="a"), events.RunLeased(lease_epoch=1, worker_id="w"), an_ask(expires_at=None))
    assert plain.is_empty
    assert encode(plain) == b"{}"
    assert plain.next_at is None


def test_every_moment_is_kept_until_it_is_settled() -> None:
    asked = events.InputRequested(input_id="i1", prompt="p", expires_at=LATER)
    found = after(events.RunCreated(agent="a", deadline_at=LATER), an_ask(), asked,
                  events.RunCancelRequested(deadline_at=AT))  # fmt: skip
    assert found.due == {"deadline": LATER, "approval:a1": AT, "input:i1": LATER, "cancel": AT}
    assert found.next_at == datetime(2026, 3, 1, 13, tzinfo=UTC)
    found = after(resolved(), events.InputProvided(input_id="i1", by="u"), start=found)
    assert found.due == {"deadline": LATER, "cancel": AT}
    assert after(events.RunCancelled(), start=found).is_empty


def test_a_question_that_nothing_can_answer_is_looked_at_at_once() -> None:
    """One that came straight to the log is not checked by appends. To see it fail: take `expires_at` as it is."""
    asked = events.InputRequested(input_id="i1", prompt="p", schema={"type": "nonsense"}, expires_at=LATER)
    assert after(asked).due == {"input:i1": timestamp(NOW)}
    assert after(asked, events.InputCancelled(input_id="i1")).is_empty


def test_asking_again_moves_the_moment() -> None:
    found = after(an_ask(), an_ask(version=2, expires_at=LATER))
    assert found.due == {"approval:a1": LATER}
    assert after(an_ask(version=3, expires_at=None), start=found).is_empty
    assert after(an_ask(expires_at="2026-02-30T00:00:00Z")).is_empty


def test_a_lost_run_rests_longer_each_time() -> None:
    lost = after(events.RunLeaseLost(lease_epoch=3))
    assert lost.due == {"recover": timestamp(NOW + timedelta(seconds=4))}
    assert after(events.RunLeased(lease_epoch=4, worker_id="w"), start=lost).is_empty
    assert [wait_s(n) for n in (0, 1, 2, 3, 10, 9999)] == [1, 1, 2, 4, 60, 60]


def test_a_held_run_is_handed_out_once_somebody_spoke() -> None:
    held = Moments()
    moments.hold(held)
    assert not held.is_empty
    for payload in (resolved(), events.InputProvided(input_id="i", by="u"), events.RunResumed(),
                    events.InputCancelled(input_id="i")):  # fmt: skip
        assert after(payload, start=held.copy()).due == {"recover": timestamp(NOW)}
    assert after(events.RunLeased(lease_epoch=2, worker_id="w"), start=held.copy()).is_empty
    assert after(events.RunCancelled(), start=held.copy()).is_empty


def test_only_what_stands_there_still_is_struck() -> None:
    found = after(an_ask(), an_ask("a2"))
    moments.strike(found, {"approval:a1": LATER, "approval:a2": AT, "deadline": AT})
    assert found.due == {"approval:a1": AT}


def a_run(*then: events.Payload, **created: object) -> RunLifecycle:
    first = events.RunCreated(agent="a", **created)  # type: ignore[arg-type]
    return Story().then(first, events.RunLeased(lease_epoch=1, worker_id="w"), events.RunStarted(), *then).run


def test_a_moment_is_settled_when_the_run_says_so_and_not_when_it_does_not_know() -> None:
    asked = events.InputRequested(input_id="i1", prompt="p", expires_at=AT)
    open_ = a_run(an_ask(), asked, deadline_at=AT)
    for name in ("approval:a1", "input:i1", "deadline", "cancel", "approval:unknown", "input:unknown", "recover"):
        assert not moments.is_settled(open_, name, AT), name
    done = a_run(an_ask(), resolved(), asked, events.InputCancelled(input_id="i1"), events.RunLeaseLost(lease_epoch=1))
    for name in ("approval:a1", "input:i1", "recover"):
        assert moments.is_settled(done, name, AT), name
    assert moments.is_settled(a_run(an_ask(expires_at=LATER)), "approval:a1", AT), "it was moved"
    assert moments.is_settled(a_run(events.RunCompleted()), "deadline", AT)
    assert not moments.is_settled(RunLifecycle(tenant_id="t", run_id="r"), "deadline", AT)


LOST = events.RunLeaseLost(lease_epoch=1)


def test_a_lost_run_of_a_pool_is_handed_out_as_its_next_attempt() -> None:
    assert recover(a_run(LOST, pool="gpu")) == HandOut("gpu", 2)
    safe = events.ToolRequested(tool_call_id="c", name="n", arguments={}, side_effect="idempotent")
    assert recover(a_run(safe, events.ToolRunning(tool_call_id="c"), LOST)) == HandOut("default", 2)
    assert work_id(RunAddress("t", "r"), 2) == "work/t/r/2"


@pytest.mark.parametrize("status", [(), ("completed",), ("unknown",)])
def test_what_a_run_did_stands_in_its_log_and_does_not_keep_it_from_being_handed_out(status: tuple[str, ...]) -> None:
    unsafe = events.ToolRequested(tool_call_id="c", name="n", arguments={}, side_effect="unsafe")
    ends = {"completed": events.ToolCompleted(tool_call_id="c"),
            "unknown": events.ToolOutcomeUnknown(tool_call_id="c", operation_id="o")}  # fmt: skip
    assert recover(a_run(unsafe, *(ends[one] for one in status), LOST)) == HandOut("default", 2)
    waiting = a_run(unsafe, ends["unknown"], events.RunWaiting(), LOST)
    assert recover(waiting) == HandOut("default", 2), "its worker may be able to tell what became of the call"


def test_what_is_not_ours_to_hand_out_is_left() -> None:
    assert recover(a_run()) == Leave()
    assert recover(a_run(LOST, dispatch="external")) == Leave()
    assert recover(a_run(events.RunCompleted())) == Leave()
    assert recover(RunLifecycle(tenant_id="t", run_id="r")) == Leave()


def test_a_run_that_waits_for_a_person_is_held() -> None:
    assert recover(a_run(an_ask(), events.RunWaiting(), LOST)) == Hold()
    assert recover(a_run(events.InputRequested(input_id="i", prompt="p"), events.RunWaiting(), LOST)) == Hold()
    assert recover(a_run(events.RunPaused(), LOST)) == Hold()
    assert isinstance(recover(a_run(an_ask(), events.RunWaiting(), LOST, resolved())), HandOut)
    assert isinstance(recover(a_run(an_ask(), LOST)), HandOut), "it asked, and went on working"


def test_a_run_that_lost_too_many_owners_fails_and_leaves_nothing_open() -> None:
    losses: list[events.Payload] = [events.TaskCreated(task_id="t"), LOST]
    for epoch in (2, 3):
        losses += [events.RunLeased(lease_epoch=epoch, worker_id="w"), events.RunLeaseLost(lease_epoch=epoch)]
    decision = recover(a_run(*losses))
    assert isinstance(decision, GiveUp)
    assert [one.type for one in decision.drafts] == ["task.cancelled", "run.failed"]
    patient = a_run(*losses, limits=events.Limits(max_attempts=4))
    assert isinstance(recover(patient), HandOut)


def test_giving_a_run_back_uses_up_no_attempt() -> None:
    back: list[events.Payload] = [events.RunLeaseLost(lease_epoch=1, cause="released")]
    for epoch in range(2, 9):
        back += [events.RunLeased(lease_epoch=epoch, worker_id="w", attempt=epoch),
                 events.RunLeaseLost(lease_epoch=epoch, cause="released")]  # fmt: skip
    assert recover(a_run(*back)) == HandOut("default", 9)
