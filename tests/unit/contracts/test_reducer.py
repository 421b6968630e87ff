"""The fold that every reader keeps."""

from copy import deepcopy

import msgspec
import pytest
from msgspec.structs import replace

from runlane_contracts import events, reducer
from runlane_contracts.envelope import Fact
from support.runs import Story, a_short_run, a_waiting_run, at


def fold(story: Story) -> reducer.State:
    state = reducer.initial_state(story.run.tenant_id, story.run.run_id)
    for fact in story.facts:
        reducer.reduce(state, fact)
    return state


def begun() -> Story:
    return Story().then(
        events.RunCreated(agent="a", input="x"), events.RunLeased(lease_epoch=1, worker_id="w1"), events.RunStarted()
    )


def test_a_short_run_folds_to_what_happened() -> None:
    state = fold(a_short_run())
    assert state["run"]["status"] == "completed"
    assert state["run"]["agent"] == "acceptance"
    assert state["run"]["output"] == {"text": "An apple and a pear."}
    assert state["run"]["created_at"] == at(1)
    assert state["run"]["ended_at"] == at(12)
    assert "worker_id" not in state["run"]
    assert state["through_sequence"] == 12
    assert list(state["items"]) == ["turn:t1", "message:m1", "reasoning:r1", "tool:c1", "message:m2"]
    tool = state["items"]["tool:c1"]
    assert (tool["status"], tool["first_sequence"], tool["last_sequence"]) == ("completed", 7, 9)
    assert tool["arguments"] == {"basket": 7}
    assert tool["result"] == {"items": ["apple", "pear"]}
    assert reducer.is_terminal(state)


@pytest.mark.parametrize(
    ("payload", "status"),
    [
        (events.RunStarted(), "running"),
        (events.RunWaiting(), "waiting"),
        (events.RunPaused(), "paused"),
        (events.RunResumed(), "running"),
        (events.RunCancelRequested(deadline_at=at(9), reason="no"), "cancelling"),
        (events.RunCompleted(), "completed"),
        (events.RunFailed(error=events.Problem(code="boom")), "failed"),
        (events.RunCancelled(), "cancelled"),
        (events.RunLeaseLost(lease_epoch=1), "lost"),
        (events.RunPauseRequested(), "running"),
    ],
)
def test_each_run_fact_moves_the_status(payload: events.Payload, status: str) -> None:
    assert fold(begun().then(payload))["run"]["status"] == status


@pytest.mark.parametrize(
    "end", [events.RunCompleted(), events.RunFailed(error=events.Problem(code="x")), events.RunCancelled()]
)
def test_nothing_leaves_a_terminal_status(end: events.Payload) -> None:
    story = begun().then(end)
    status = fold(story)["run"]["status"]
    for later in (
        events.RunStarted(),
        events.RunLeased(lease_epoch=2, worker_id="w2"),
        events.RunLeaseLost(lease_epoch=1),
        events.RunCancelRequested(deadline_at=at(9)),
        events.RunCompleted(output="other"),
        events.RunFailed(error=events.Problem(code="y")),
    ):
        story.then(later)
        state = fold(story)
        assert state["run"]["status"] == status
        assert "worker_id" not in state["run"]
    assert "output" not in fold(story)["run"]


def test_a_lost_run_goes_on_where_it_was_once_somebody_drives_it() -> None:
    story = a_waiting_run().then(events.RunLeaseLost(lease_epoch=1))
    lost = fold(story)
    assert lost["run"]["status"] == "lost"
    assert "worker_id" not in lost["run"]
    assert lost["run"]["waiting_on"], "what it waits for is still asked"
    back = fold(story.then(events.RunLeased(lease_epoch=2, worker_id="w2", attempt=2)))
    assert back["run"]["status"] == "waiting"
    assert back["run"]["waiting_on"] == [{"kind": "approval", "id": "a1"}]
    assert back["run"]["worker_id"] == "w2"
    assert "status_before_lost" not in back["run"]


def test_a_run_that_moves_while_lost_shows_it_once_somebody_drives_it() -> None:
    story = a_waiting_run().then(events.RunLeaseLost(lease_epoch=1), events.RunResumed())
    assert fold(story)["run"]["status"] == "lost"
    back = fold(story.then(events.RunLeased(lease_epoch=2, worker_id="w2")))
    assert back["run"]["status"] == "running"
    assert "waiting_on" not in back["run"]


def test_losing_an_older_lease_or_the_same_one_twice_changes_nothing() -> None:
    story = begun().then(events.RunLeased(lease_epoch=2, worker_id="w2"), events.RunLeaseLost(lease_epoch=1))
    assert fold(story)["run"]["status"] == "running"
    story.then(events.RunLeaseLost(lease_epoch=2), events.RunLeaseLost(lease_epoch=2))
    story.then(events.RunLeased(lease_epoch=3, worker_id="w3"))
    assert fold(story)["run"]["status"] == "running"


def test_what_a_run_waits_for_is_gone_when_it_no_longer_waits() -> None:
    assert "waiting_on" not in fold(a_waiting_run().then(events.RunResumed()))["run"]


def test_open_approvals_are_those_without_a_decision() -> None:
    story = a_waiting_run()
    assert [one["id"] for one in reducer.open_approvals(fold(story))] == ["a1"]
    story.then(events.ApprovalResolved(approval_id="a1", decision="approved", decided_by="u1", version=1))
    state = fold(story)
    assert reducer.open_approvals(state) == []
    assert state["items"]["approval:a1"]["status"] == "approved"
    assert state["items"]["approval:a1"]["ended_at"] == at(7)


def test_a_question_that_was_revised_waits_anew_and_keeps_nothing_of_what_was_said_before() -> None:
    story = a_waiting_run()
    asked = fold(story)["items"]["approval:a1"]
    revoked = events.ApprovalResolved(
        approval_id="a1", decision="revoked", decided_by="system", version=1, reason="r", approved_by=("u1",)
    )
    again = events.ApprovalRequested(approval_id="a1", description="d2", risk="low", version=2, action_digest="x")
    state = fold(story.then(revoked, again))
    item = state["items"]["approval:a1"]
    assert [one["id"] for one in reducer.open_approvals(state)] == ["a1"]
    assert (item["status"], item["version"], item["description"]) == ("waiting", 2, "d2")
    assert not {"decision", "decided_by", "reason", "approved_by", "votes", "ended_at"} & item.keys()
    assert item["first_sequence"] == asked["first_sequence"]


@pytest.mark.parametrize(("outcome", "status"), [("executed", "completed"), ("not_executed", "failed")])
def test_a_reconciled_call_is_what_was_found_out(outcome: str, status: str) -> None:
    story = begun().then(
        events.ToolRequested(tool_call_id="c1", name="pay", arguments={}),
        events.ToolOutcomeUnknown(tool_call_id="c1", operation_id="o1"),
    )
    assert "ended_at" not in fold(story)["items"]["tool:c1"]
    story.then(events.ToolReconciled(tool_call_id="c1", outcome=outcome, by="u1"))  # type: ignore[arg-type]
    assert fold(story)["items"]["tool:c1"]["status"] == status


def test_an_item_that_opens_again_has_not_ended() -> None:
    story = begun().then(events.TaskCompleted(task_id="k1"))
    assert fold(story)["items"]["task:k1"]["ended_at"] == at(4)
    assert "ended_at" not in fold(story.then(events.TaskUpdated(task_id="k1")))["items"]["task:k1"]


def test_an_unknown_type_becomes_a_generic_item() -> None:
    story = begun().raw("holo.projected", b'{"kind": "chart", "id": 7, "first_sequence": "no", "x": 1}', event_id="e9")
    item = fold(story)["items"]["other:e9"]
    assert item["type"] == "holo.projected"
    assert item["status"] == "projected"
    assert (item["kind"], item["id"], item["first_sequence"], item["x"]) == ("other", "e9", 4, 1)


def test_scope_of_a_fact_is_kept_on_its_item() -> None:
    story = begun().then(
        events.MessageCompleted(message_id="m1", role="user", content="x"), turn_id="t1", task_id="k1", parent_id="p1"
    )
    item = fold(story)["items"]["message:m1"]
    assert (item["turn_id"], item["task_id"], item["parent_id"]) == ("t1", "k1", "p1")


def test_session_and_plan_are_items_of_which_there_is_one() -> None:
    story = Story(session_id="ses_9").then(
        events.SessionStarted(title="t"),
        events.PlanUpdated(version=1, steps=["a"]),
        events.PlanUpdated(version=2, steps=["b"]),
    )
    state = fold(story)
    assert list(state["items"]) == ["session:ses_9", "plan:plan"]
    assert state["items"]["plan:plan"]["steps"] == ["b"]
    assert state["run"]["session_id"] == "ses_9"


def test_log_facts_leave_marks_and_move_nothing_else() -> None:
    state = fold(begun().then(events.LogQuarantined(reason="schema", event_id="e1")))
    assert state["marks"] == [{"sequence": 4, "type": "log.quarantined", "reason": "schema", "event_id": "e1"}]
    assert state["run"]["status"] == "running"


@pytest.mark.parametrize(
    ("type_", "payload"),
    [
        ("tool.requested", b"[]"),
        ("tool.requested", b'{"name": "x"}'),
        ("tool.requested", b'{"tool_call_id": 7}'),
        ("run.leased", b'{"lease_epoch": "1", "worker_id": "w"}'),
        ("run.leased", b'{"lease_epoch": true, "worker_id": "w"}'),
        ("run.lease_lost", b"{}"),
        ("run.cancel_requested", b"{}"),
        ("approval.resolved", b'{"approval_id": "a1"}'),
        ("tool.reconciled", b'{"tool_call_id": "c1"}'),
        ("log.quarantined", b"7"),
        ("holo.projected", b"null"),
        ("message.completed", b'{"message_id": "m1", "content": ' + b"[" * 5000 + b"]" * 5000 + b"}"),
        ("message.completed", b'{"message_id": "m1", "content": 1e999}'),
    ],
)
def test_a_fact_that_does_not_fit_leaves_a_mark_and_stops_nobody(type_: str, payload: bytes) -> None:
    story = begun().raw(type_, payload, event_id="e9").then(events.RunPaused())
    state = fold(story)
    assert state["marks"] == [reducer.quarantine_mark(4, "e9")]
    assert state["items"] == {}
    assert state["run"]["status"] == "paused"
    assert state["through_sequence"] == 5


def test_a_fact_that_is_in_the_state_changes_nothing() -> None:
    story = a_short_run()
    state = fold(story)
    before = deepcopy(state)
    assert [reducer.reduce(state, fact) for fact in story.facts] == [None] * len(story.facts)
    assert state == before


def test_a_fact_whose_predecessor_is_missing_is_refused_and_changes_nothing() -> None:
    story = a_short_run()
    state = reducer.initial_state("acme", "run_1")
    reducer.reduce(state, story.facts[0])
    before = deepcopy(state)
    with pytest.raises(reducer.SequenceGap) as caught:
        reducer.reduce(state, story.facts[2])
    assert (caught.value.expected, caught.value.got) == (2, 3)
    assert state == before


def test_reduce_names_the_item_it_changed() -> None:
    story = begun().then(events.ToolRequested(tool_call_id="c1", name="x", arguments=None))
    state = reducer.initial_state("acme", "run_1")
    assert [reducer.reduce(state, fact) for fact in story.facts] == [None, None, None, "tool:c1"]


def test_the_checksum_is_that_of_the_value_not_of_its_spelling() -> None:
    def with_input(payload: bytes) -> str:
        story = Story().raw("run.created", payload)
        return reducer.checksum(fold(story))

    assert with_input(b'{"agent": "a", "input": {"b": 1.0, "a": 2}}') == with_input(
        b'{"input": {"a": 2, "b": 1}, "agent": "a"}'
    )
    assert with_input(b'{"agent": "a", "input": 1}') != with_input(b'{"agent": "a", "input": 2}')


def test_every_known_type_is_folded() -> None:
    for type_, cls in events.PAYLOADS.items():
        minimal = Story().raw(type_, events_example(cls))
        state = fold(minimal)
        assert state["through_sequence"] == 1, type_
        quarantined = [mark for mark in state["marks"] if mark.get("reason") == "unfit"]
        assert not quarantined, type_


def events_example(cls: type[events.Payload]) -> bytes:
    """Just what the fold reads."""
    texts = {"outcome": "executed", "decision": "approved", "deadline_at": at(1), "worker_id": "w1", "by": "u1"}
    values: dict[str, object] = dict(texts) | {"lease_epoch": 1}
    if cls.ITEM is not None:
        values[cls.ITEM[1]] = "i1"
    return msgspec.json.encode(values)


def test_a_run_without_recorded_times_uses_when_it_happened() -> None:
    fact: Fact = replace(begun().facts[0], recorded_at=None, occurred_at=at(77))
    state = reducer.initial_state("acme", "run_1")
    reducer.reduce(state, fact)
    assert state["run"]["created_at"] == at(77)


@pytest.mark.parametrize(("depth", "fits"), [(126, True), (127, False), (1000, False)])
def test_a_payload_may_nest_to_a_bound_and_its_state_can_be_hashed(depth: int, fits: bool) -> None:
    nested = b"[" * depth + b"]" * depth
    story = begun().raw("message.completed", b'{"message_id": "m1", "role": "x", "content": {"a": ' + nested + b"}}")
    state = fold(story)
    assert bool(state["items"]) is fits
    assert reducer.checksum(state).startswith("sha256:")
