"""What may be written to a run, and what follows from what was written."""

import msgspec
import pytest
from msgspec.structs import replace

from runlane_contracts import events, lifecycle, reducer
from runlane_contracts.codec import decode_json
from runlane_contracts.lifecycle import FactDraft, Refused, RunLifecycle, draft
from runlane_contracts.problems import Code
from support.runs import Story, a_short_run, a_waiting_run, at

OWNED = (
    events.RunCreated(agent="a"),
    events.RunLeased(lease_epoch=1, worker_id="w1"),
    events.RunStarted(),
)


def owned() -> Story:
    return Story().then(*OWNED)


def admit(run: RunLifecycle, *payloads: events.Payload, lease_epoch: int = 1) -> list[FactDraft]:
    return lifecycle.admit(run, [draft(payload) for payload in payloads], lease_epoch=lease_epoch)


def raw(type_: str, payload: bytes) -> FactDraft:
    return FactDraft(type=type_, payload=msgspec.Raw(payload))


@pytest.mark.parametrize("type_", sorted(events.RESERVED))
def test_what_the_platform_states_is_refused_from_a_producer(type_: str) -> None:
    with pytest.raises(Refused) as caught:
        lifecycle.validate([draft(events.RunStarted()), raw(type_, b"{}")])
    assert (caught.value.code, caught.value.index) == (Code.INVALID_REQUEST, 1)


@pytest.mark.parametrize(
    "one",
    [
        raw("holo.projected", b"{}"),
        raw("tool.requested", b"[]"),
        raw("tool.requested", b'{"name": "x", "arguments": {}}'),
        raw("message.completed", b'{"message_id": "a b", "role": "x", "content": 1}'),
        raw("message.completed", b'{"message_id": "m", "role": "x", "content": ' + b"[" * 200 + b"]" * 200 + b"}"),
        draft(events.InputRequested(input_id="i1", prompt="?", expires_at="2026-02-30T00:00:00Z")),
        raw("run.resumed", b'{"nobody_knows_it": 1e999}'),
        raw("run.resumed", b'{"nobody_knows_it": ' + b"9" * 6000 + b"}"),
        draft(events.RunResumed(), traceparent="x\r\nNats-Msg-Id: forged"),
    ],
)
def test_what_does_not_fit_the_contract_is_refused_with_its_index(one: FactDraft) -> None:
    with pytest.raises(Refused) as caught:
        lifecycle.validate([draft(events.RunStarted()), one])
    assert (caught.value.code, caught.value.index) == (Code.INVALID_REQUEST, 1)


def test_a_batch_is_bounded_and_each_event_id_is_in_it_once() -> None:
    for drafts in ([], [draft(events.RunStarted())] * (lifecycle.MAX_FACTS_PER_COMMIT + 1)):
        with pytest.raises(Refused):
            lifecycle.validate(drafts)
    twice = [draft(events.RunStarted(), event_id="evt_1"), draft(events.RunPaused(), event_id="evt_1")]
    with pytest.raises(Refused) as caught:
        lifecycle.validate(twice)
    assert caught.value.index == 1


def test_nothing_follows_the_end_in_its_batch() -> None:
    with pytest.raises(Refused) as caught:
        lifecycle.validate([draft(events.RunCompleted()), draft(events.RunStarted())])
    assert caught.value.index == 1


def test_large_content_of_an_artifact_goes_behind_a_reference() -> None:
    fits = events.ArtifactCreated(artifact_id="f1", content="x" * 60_000)
    too_large = events.ArtifactCreated(artifact_id="f1", content="x" * 70_000)
    lifecycle.validate([draft(fits)])
    with pytest.raises(Refused) as caught:
        lifecycle.validate([draft(too_large)])
    assert caught.value.code is Code.PAYLOAD_TOO_LARGE


@pytest.mark.parametrize(
    ("payload", "status"),
    [
        (events.RunCompleted(), "completed"),
        (events.RunFailed(error=events.Problem(code="x")), "failed"),
        (events.RunCancelled(), "cancelled"),
    ],
)
def test_a_run_that_is_over_stays_over_and_takes_nothing_more(payload: events.Payload, status: str) -> None:
    story = owned().then(payload)
    assert story.run.status == status
    with pytest.raises(Refused) as caught:
        admit(story.run, events.MessageCompleted(message_id="m1", role="x", content="late"))
    assert caught.value.code is Code.RUN_TERMINAL
    story.then(*OWNED[1:], events.RunCancelRequested(deadline_at=at(9)), events.RunLeaseLost(lease_epoch=1))
    assert story.run.status == status


def test_who_ends_a_run_closes_what_is_open_first() -> None:
    story = owned().then(
        events.TurnStarted(turn_id="t1"),
        events.MessageStarted(message_id="m1", role="assistant"),
        events.ReasoningStarted(reasoning_id="r1"),
        events.ToolRequested(tool_call_id="c1", name="x", arguments={}),
        events.ToolRequested(tool_call_id="c2", name="x", arguments={}, side_effect="unsafe"),
        events.ToolOutcomeUnknown(tool_call_id="c2", operation_id="o1"),
        events.ApprovalRequested(approval_id="a1", description="d", risk="low", version=4, action_digest="x"),
        events.InputRequested(input_id="i1", prompt="?"),
        events.TaskCreated(task_id="k1"),
        events.ArtifactCreated(artifact_id="f1"),
    )
    written = admit(
        story.run,
        events.ToolCompleted(tool_call_id="c1"),
        events.TaskCreated(task_id="k2"),
        events.RunCompleted(output="x"),
    )
    closed = {one.type: decode_json(one.payload) for one in written[2:-1]}
    assert written[-1].type == "run.completed"
    assert set(closed) == {
        "message.cancelled", "reasoning.cancelled", "tool.failed", "approval.resolved", "input.cancelled",
        "task.cancelled", "artifact.failed",
    }  # fmt: skip
    assert closed["tool.failed"]["error"]["code"] == "outcome_unknown", "cancelled would claim it did not happen"
    assert (closed["approval.resolved"]["decision"], closed["approval.resolved"]["version"]) == ("revoked", 4)
    assert [one.type for one in written].count("task.cancelled") == 2
    story.drafts(*written)
    assert story.run.open_items == {}


def test_a_repeat_is_recognised_and_half_a_repeat_refused() -> None:
    story = owned().then(events.RunPaused(), event_id="evt_1")
    assert lifecycle.admit(story.run, [draft(events.RunPaused(), event_id="evt_1")], lease_epoch=9) == []
    mixed = [draft(events.RunPaused(), event_id="evt_1"), draft(events.RunResumed(), event_id="evt_2")]
    with pytest.raises(Refused) as caught:
        lifecycle.admit(story.run, mixed, lease_epoch=1)
    assert caught.value.code is Code.IDEMPOTENCY_CONFLICT


def test_only_the_holder_of_the_lease_writes() -> None:
    story = owned()
    for lease_epoch in (0, 2):
        with pytest.raises(Refused) as caught:
            admit(story.run, events.RunPaused(), lease_epoch=lease_epoch)
        assert caught.value.code is Code.LEASE_FENCED
    story.then(events.RunLeaseLost(lease_epoch=1))
    with pytest.raises(Refused) as caught:
        admit(story.run, events.RunPaused())
    assert caught.value.code is Code.LEASE_FENCED


def test_an_expected_sequence_that_moved_on_says_where_the_run_is() -> None:
    story = owned()
    drafts = [draft(events.RunPaused())]
    assert lifecycle.admit(story.run, drafts, lease_epoch=1, expected_sequence=3) == drafts
    with pytest.raises(Refused) as caught:
        lifecycle.admit(story.run, drafts, lease_epoch=1, expected_sequence=2)
    assert (caught.value.code, caught.value.current_sequence) == (Code.SEQUENCE_CONFLICT, 3)


def test_a_run_that_does_not_exist_takes_nothing() -> None:
    with pytest.raises(Refused) as caught:
        admit(RunLifecycle(tenant_id="acme", run_id="run_9"), events.RunStarted())
    assert caught.value.code is Code.RUN_NOT_FOUND


def test_losing_an_owner_leaves_running_unsafe_calls_unknown() -> None:
    story = owned().then(
        events.ToolRequested(tool_call_id="safe", name="x", arguments={}, side_effect="idempotent"),
        events.ToolRunning(tool_call_id="safe"),
        events.ToolRequested(tool_call_id="asked", name="x", arguments={}, side_effect="unsafe"),
        events.ToolRequested(tool_call_id="running", name="x", arguments={}, side_effect="unsafe", operation_id="o1"),
        events.ToolRunning(tool_call_id="running"),
    )
    lost = lifecycle.lose_lease(story.run, "expired")
    assert [one.type for one in lost] == ["run.lease_lost", "tool.outcome_unknown"]
    assert decode_json(lost[1].payload) == {"tool_call_id": "running", "operation_id": "o1"}


def test_places_are_given_in_order_with_revisions_of_items() -> None:
    run = owned().run
    drafts = [
        draft(events.TaskCreated(task_id="k1")),
        draft(events.TaskUpdated(task_id="k1"), event_id="evt_own"),
        draft(events.RunPaused()),
    ]
    actor = events_actor()
    facts = lifecycle.place(run, drafts, lease_epoch=1, actor=actor, occurred_at=at(50), event_ids=["e1", "e2", "e3"])
    assert [fact.sequence for fact in facts] == [4, 5, 6]
    assert [fact.event_id for fact in facts] == ["e1", "evt_own", "e3"]
    assert [fact.subject.revision if fact.subject else None for fact in facts] == [1, 2, None]
    assert {fact.correlation_id for fact in facts} == {run.run_id}


def events_actor() -> lifecycle.Actor:
    return lifecycle.Actor(kind="agent", id="a1")


def test_a_fork_is_independent() -> None:
    story = a_waiting_run()
    fork = story.run.fork()
    fork.evolve(Story(run_id="run_2").then(*OWNED).facts)
    before = story.run.sequence
    later = a_waiting_run().then(
        events.ApprovalResolved(approval_id="a1", decision="approved", decided_by="u", version=1)
    )
    fork.evolve(later.facts[-1:])
    assert fork.approvals["a1"].resolution is not None
    assert story.run.approvals["a1"].resolution is None
    assert story.run.sequence == before


def test_a_command_is_known_by_what_it_caused() -> None:
    story = owned().then(events.RunPauseRequested(), causation_ids=("cmd_8",))  # a producer cannot settle a command
    assert story.run.applied_commands == {}
    by_service = replace(story.facts[-1], sequence=5, event_id="evt_x", lease_epoch=0, causation_ids=("cmd_7", "evt_1"))
    story.run.evolve([by_service])
    assert story.run.applied_commands == {"cmd_7": 5}
    assert story.run.pause_requested
    story.run.evolve([replace(by_service, sequence=6, event_id="evt_y", type="run.paused")])
    assert not story.run.pause_requested


def test_a_finished_short_run_leaves_nothing_open() -> None:
    assert a_short_run().run.open_items == {}


def an_ask(version: int = 1, approval_id: str = "a1") -> events.ApprovalRequested:
    return events.ApprovalRequested(
        approval_id=approval_id, description="d", risk="low", version=version, action_digest=f"of {approval_id}"
    )


def test_a_question_is_asked_once_and_revised_version_by_version() -> None:
    run = owned().then(an_ask(2)).run
    assert admit(run, an_ask(3))
    assert admit(run, an_ask(1, "a2"), an_ask(2, "a2"))
    for again in ((an_ask(2),), (an_ask(1),), (an_ask(1, "a2"), an_ask(1, "a2"))):
        with pytest.raises(Refused) as caught:
            admit(run, *again)
        assert (caught.value.code, caught.value.index) == (Code.VERSION_CONFLICT, len(again) - 1)
    decided = events.ApprovalResolved(approval_id="a1", decision="rejected", decided_by="u", version=2)
    with pytest.raises(Refused) as caught:
        admit(owned().then(an_ask(2), decided).run, events.TurnStarted(turn_id="t"), an_ask(3))
    assert (caught.value.code, caught.value.index) == (Code.ALREADY_RESOLVED, 1)


@pytest.mark.parametrize(
    "end", [events.InputProvided(input_id="i", by="u", value=1), events.InputCancelled(input_id="i")]
)
def test_an_answered_question_is_not_asked_again(end: events.Payload) -> None:
    asked = events.InputRequested(input_id="i", prompt="p")
    assert admit(owned().then(asked).run, asked), "it may be put differently while it waits"
    with pytest.raises(Refused) as caught:
        admit(owned().then(asked, end).run, asked)
    assert caught.value.code == Code.ALREADY_RESOLVED


def about(digest: str, approval_id: str = "a1", version: int = 1, **more: str) -> events.ApprovalRequested:
    return events.ApprovalRequested(
        approval_id=approval_id, description="d", risk="low", version=version, action_digest=digest,
        **({"tool_call_id": "c1"} | more),  # type: ignore[arg-type]
    )  # fmt: skip


def a_call(digest: str) -> events.ToolRequested:
    return events.ToolRequested(tool_call_id="c1", name="pay", arguments={}, action_digest=digest)


@pytest.mark.parametrize(
    "newer", [a_call("new"), about("new", "a2"), events.ToolRequested(tool_call_id="c1", name="pay", arguments=[])]
)
def test_p11_a_question_about_an_action_that_changed_is_void_and_says_so(newer: events.Payload) -> None:
    """To see it fail: let `_with_voided` write no `_voided(old)`; then an answer to the old question counts."""
    run = owned().then(a_call("old"), about("old")).run
    revoked, last = admit(run, newer)
    assert (revoked.type, last.type) == ("approval.resolved", newer.TYPE)
    said = decode_json(revoked.payload)
    assert (said["approval_id"], said["decision"], said["reason"]) == ("a1", "revoked", lifecycle.ACTION_CHANGED)
    assert revoked.actor is not None
    assert revoked.actor.kind == "system"


PAST = [
    events.ToolCompleted(tool_call_id="c1", result=1),
    events.ToolFailed(tool_call_id="c1", error=events.Problem(code="timeout")),
    events.ToolCancelled(tool_call_id="c1"),
    events.ToolOutcomeUnknown(tool_call_id="c1", operation_id="o1"),
    events.ToolReconciled(tool_call_id="c1", outcome="executed", by="w1"),
]


@pytest.mark.parametrize("past", PAST, ids=lambda one: one.TYPE)
def test_p11_a_question_about_a_call_that_is_past_is_void_and_says_so(past: events.Payload) -> None:
    """To see it fail: take the type out of `CALL_IS_PAST`; then the question goes on waiting for ever."""
    story = owned().then(a_call("d"), about("d"), about("e", "a2", tool_call_id="c2"))
    revoked, last = admit(story.run, past)
    assert (revoked.type, last.type) == ("approval.resolved", past.TYPE)
    said = decode_json(revoked.payload)
    assert (said["approval_id"], said["decision"]) == ("a1", "revoked")
    assert said["reason"] == lifecycle.CALL_IS_PAST[past.TYPE]
    types = [one.type for one in admit(story.run, past, events.RunCancelled())]
    assert types.count("approval.resolved") == 2, "each question ends once, also where the run ends in the same commit"
    state = reducer.initial_state("acme", "run_1")
    for fact in story.then(events.decode_payload(revoked.type, revoked.payload), past).facts:  # type: ignore[arg-type]
        reducer.reduce(state, fact)
    assert [one["id"] for one in reducer.open_approvals(state)] == ["a2"]


def test_p11_a_question_that_is_asked_about_a_call_of_the_past_waits() -> None:
    """Whether it shall be done again, say."""
    story = owned().then(a_call("d"), PAST[1], about("d"))
    assert [one.type for one in admit(story.run, events.TurnStarted(turn_id="t"))] == ["turn.started"]
    assert story.run.approvals["a1"].resolution is None


def test_p11_losing_an_owner_voids_the_question_about_a_call_whose_outcome_nobody_knows() -> None:
    """To see it fail: take `voided` out of `lose_lease`."""
    unsafe = replace(a_call("d"), side_effect="unsafe")
    story = owned().then(unsafe, events.ToolRunning(tool_call_id="c1"), about("d"))
    lost = lifecycle.lose_lease(story.run, "expired")
    assert [one.type for one in lost] == ["run.lease_lost", "approval.resolved", "tool.outcome_unknown"]
    assert decode_json(lost[1].payload)["reason"] == lifecycle.CALL_IS_PAST["tool.outcome_unknown"]


@pytest.mark.parametrize("version", [0, -1])
def test_a_question_has_a_version_of_one_or_more(version: int) -> None:
    with pytest.raises(Refused, match="version is 1 or more") as caught:
        lifecycle.validate([draft(events.RunStarted()), draft(an_ask(version))])
    assert (caught.value.code, caught.value.index) == (Code.INVALID_REQUEST, 1)


def test_a_question_stays_when_the_action_does() -> None:
    run = owned().then(a_call("old"), about("old")).run
    for same in (a_call("old"), about("other", "a2", tool_call_id="c2")):
        assert [one.type for one in admit(run, same)] == [same.TYPE]


@pytest.mark.parametrize("digest", ["old", "new"])
def test_p11_a_version_that_was_revised_is_void_and_says_so_before_the_next(digest: str) -> None:
    """To see it fail: take `old.approval_id == asked_now.approval_id` out of `_outdated_by`."""
    story = owned().then(a_call("old"), about("old"))
    revoked, asked = admit(story.run, about(digest, version=2))
    assert (revoked.type, asked.type) == ("approval.resolved", "approval.requested")
    said = decode_json(revoked.payload)
    assert (said["version"], said["decision"], said["action_digest"]) == (1, "revoked", "old")
    assert said["reason"] == lifecycle.REVISED
    written = [events.decode_payload(one.type, one.payload) for one in (revoked, asked)]
    approval = story.then(*written).run.approvals["a1"]  # type: ignore[arg-type]
    assert (approval.request.version, approval.resolution, approval.votes) == (2, None, ())


def test_p11_a_question_may_be_revised_twice_in_one_commit() -> None:
    types = [one.type for one in admit(owned().run, about("d"), about("e", version=2), about("f", version=3))]
    assert types == ["approval.requested", *["approval.resolved", "approval.requested"] * 2]


def test_p11_one_action_never_has_two_open_questions() -> None:
    """To see it fail: remove the loop over `asked` from `_refuse_same_action`."""
    for drafts in ((about("d"), about("d", "a2", tool_call_id="c2")), (about("d"), a_call("x"), about("d", "a2"))):
        with pytest.raises(Refused) as caught:
            admit(owned().run, *drafts)
        assert (caught.value.code, caught.value.index) == (Code.INVALID_STATE, len(drafts) - 1)
        assert caught.value.recorded == {"approval_id": "a1"}
    assert admit(owned().run, about(""), about("", "a2", tool_call_id="c2")), "no digest names no action"


def test_p11_a_rejected_action_is_asked_again_only_with_a_reason() -> None:
    """To see it fail: remove the loop over `run.approvals` from `_refuse_same_action`."""
    no = events.ApprovalResolved(approval_id="a1", decision="rejected", decided_by="u", version=1)
    run = owned().then(about("d"), no).run
    with pytest.raises(Refused) as caught:
        admit(run, events.TurnStarted(turn_id="t"), about("d", "a2"))
    assert (caught.value.code, caught.value.index) == (Code.INVALID_REQUEST, 1)
    assert "reason_again" in caught.value.detail
    assert admit(run, about("d", "a2", reason_again="the price fell"))
    assert admit(run, about("e", "a2"))
