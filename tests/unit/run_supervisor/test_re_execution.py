"""What a run is begun with that executes another one again, and when it is not."""

from typing import Any

import msgspec
import pytest

from runlane.run_supervisor.re_execution import Parent, re_executed
from runlane_contracts import events
from runlane_contracts.checkpoint import CHECKPOINT_TYPE, checkpoint_artifact_id
from runlane_contracts.commands import ReExecuteRun
from runlane_contracts.lifecycle import FactDraft, Refused, RunLifecycle
from runlane_contracts.problems import Code
from support.runs import Story

NEW = RunLifecycle(tenant_id="acme", run_id="run_new")
PAID = (
    events.ToolRequested(tool_call_id="c1", name="pay", arguments={"amount": 5}, side_effect="unsafe"),
    events.ToolRunning(tool_call_id="c1"),
)


def parent_after(*then: events.Payload, ended: bool = True, **created: Any) -> Parent:
    beginning = events.RunCreated(agent="payer", **({"input": {"amount": 5}} | created))
    story = Story(run_id="run_old", session_id="ses_1").then(
        beginning, events.RunLeased(lease_epoch=1, worker_id="w1"), events.RunStarted(), *then
    )
    if ended:
        story.then(events.RunCompleted(output=1))
    parent = Parent(run=RunLifecycle(tenant_id="acme", run_id="run_old"))
    parent.take(story.facts)
    return parent


def begun(parent: Parent, **asked: Any) -> list[tuple[str, dict[str, Any]]]:
    return [told(one) for one in re_executed(NEW, ReExecuteRun(parent_run_id="run_old", **asked), parent)]


def told(one: FactDraft) -> tuple[str, dict[str, Any]]:
    return one.type, msgspec.json.decode(one.payload)


def refused(parent: Parent, **asked: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        begun(parent, **asked)
    return caught.value


def a_checkpoint(content: Any) -> events.ArtifactCompleted:
    return events.ArtifactCompleted(
        artifact_id=checkpoint_artifact_id("run_old"), name="checkpoint", media_type=CHECKPOINT_TYPE, content=content
    )


def test_it_gets_what_the_old_one_was_given_and_names_it() -> None:
    parent = parent_after(pool="fast", limits=events.Limits(max_attempts=7), deadline_at="2026-03-01T00:00:00Z")
    ((type_, payload),) = begun(parent)
    assert type_ == "run.created"
    assert payload == {
        "agent": "payer", "input": {"amount": 5}, "pool": "fast", "dispatch": "pool", "parent_run_id": "run_old",
        "limits": {"max_attempts": 7},
    }  # fmt: skip
    (created,) = re_executed(NEW, ReExecuteRun(parent_run_id="run_old"), parent)
    assert created.session_id == "ses_1"


def test_what_is_said_anew_counts() -> None:
    parent = parent_after(pool="fast")
    ((_, payload),) = begun(parent, pool="slow", dispatch="external", deadline_at="2027-01-01T00:00:00Z")
    assert (payload["pool"], payload["dispatch"]) == ("slow", "external")
    assert payload["deadline_at"] == "2027-01-01T00:00:00Z"


def test_from_a_checkpoint_it_begins_with_the_last_one_as_an_artifact_of_its_own() -> None:
    parent = parent_after(a_checkpoint({"page": 1}), a_checkpoint({"page": 2}))
    created, (type_, payload) = begun(parent, from_="checkpoint")
    assert created[1]["parent_run_id"] == "run_old"
    assert type_ == "artifact.completed"
    assert payload["content"] == {"page": 2}
    assert payload["artifact_id"] == checkpoint_artifact_id("run_new") != checkpoint_artifact_id("run_old")


def test_without_a_checkpoint_there_is_nothing_to_begin_from() -> None:
    assert refused(parent_after(), from_="checkpoint").code is Code.INVALID_STATE


def test_a_run_that_goes_on_is_not_executed_a_second_time_beside_it() -> None:
    assert refused(parent_after(ended=False)).code is Code.INVALID_STATE


def test_a_run_that_is_not_there_is_not_found() -> None:
    assert refused(Parent(run=RunLifecycle(tenant_id="acme", run_id="run_old"))).code is Code.RUN_NOT_FOUND


@pytest.mark.parametrize(
    "outcome",
    [
        events.ToolCompleted(tool_call_id="c1", result=1),
        events.ToolFailed(tool_call_id="c1", error=events.Problem(code="timeout")),
        events.ToolOutcomeUnknown(tool_call_id="c1", operation_id="o1"),
        events.ToolReconciled(tool_call_id="c1", outcome="executed", by="u1"),
        events.ToolCancelled(tool_call_id="c1"),
    ],
    ids=lambda one: one.TYPE,
)
@pytest.mark.parametrize("from_", ["input", "checkpoint"])
def test_what_may_have_had_its_effect_is_not_done_again_unless_asked(outcome: events.Payload, from_: Any) -> None:
    """To see it fail: leave `ToolRunning` or the outcome out of `Parent._take`."""
    parent = parent_after(*PAID, outcome, a_checkpoint(1))
    refusal = refused(parent, from_=from_)
    assert refusal.code is Code.UNSAFE_TOOLS
    assert refusal.recorded == {"tool_calls": [{"tool_call_id": "c1", "name": "pay"}]}
    assert begun(parent, from_=from_, allow_unsafe=True)[0][0] == "run.created"


@pytest.mark.parametrize(
    "then",
    [
        (PAID[0], events.ToolCancelled(tool_call_id="c1")),
        (*PAID, events.ToolReconciled(tool_call_id="c1", outcome="not_executed", by="u1")),
        (events.ToolRequested(tool_call_id="c1", name="read", arguments={}, side_effect="idempotent"),
         events.ToolRunning(tool_call_id="c1"), events.ToolCompleted(tool_call_id="c1", result=1)),
    ],
    ids=["never began", "was not executed", "is idempotent"],
)  # fmt: skip
def test_what_had_no_effect_that_matters_may_be_done_again(then: tuple[events.Payload, ...]) -> None:
    assert begun(parent_after(*then))[0][0] == "run.created"


def test_a_record_that_is_not_whole_is_not_executed_again() -> None:
    erased = events.LogCompacted(
        from_sequence=1, to_sequence=1, snapshot_ref="-", sha256="-", policy="-", reason="erasure"
    )
    parent = parent_after()
    parent._take(erased)
    assert refused(parent).code is Code.INVALID_STATE
