"""Every rule of the machine, every rejection code."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from runlane.run_supervisor import machine, table
from runlane_contracts import canonical, events
from runlane_contracts.codec import timestamp
from runlane_contracts.commands import COMMANDS, STARTING, Command
from runlane_contracts.envelope import Actor
from runlane_contracts.lifecycle import STATUSES, FactDraft, Refused, RunLifecycle, draft, place
from runlane_contracts.problems import Code
from support.runs import Story

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
USER = Actor(kind="user", id="ada")
README = Path(machine.__file__).parent / "README.md"


def command(type_: str, command_id: str = "cmd_1", **payload: Any) -> Command:
    return Command(
        command_id=command_id, idempotency_key="k", type=type_, tenant_id="acme", run_id="run_1",
        issued_at=timestamp(NOW), issued_by=USER, payload=Raw(msgspec.json.encode(payload)),
    )  # fmt: skip


def decided(run: RunLifecycle, type_: str, **payload: Any) -> list[tuple[str, dict[str, Any]]]:
    return told(machine.decide(run, command(type_, **payload), now=NOW))


def told(drafts: list[FactDraft]) -> list[tuple[str, dict[str, Any]]]:
    return [(one.type, msgspec.json.decode(one.payload)) for one in drafts]


def refused(run: RunLifecycle, type_: str, **payload: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        machine.decide(run, command(type_, **payload), now=NOW)
    return caught.value


def in_s(seconds: float) -> str:
    return timestamp(NOW + timedelta(seconds=seconds))


def a_run(*then: events.Payload, limits: events.Limits | None = None, deadline_at: str | None = None) -> RunLifecycle:
    created = events.RunCreated(agent="a", limits=limits, deadline_at=deadline_at)
    leased = events.RunLeased(lease_epoch=1, worker_id="w1")
    return Story().then(created, leased, events.RunStarted(), *then).run


def an_ask(**changes: Any) -> events.ApprovalRequested:
    ask = {"approval_id": "a1", "tool_call_id": "c1", "description": "send", "risk": "high", "data": {"to": "x"},
           "editable": True, "version": 3, "action_digest": "sha256:abc"}  # fmt: skip
    return events.ApprovalRequested(**(ask | changes))


def a_call(id_: str = "c1", **changes: Any) -> events.ToolRequested:
    call = {"name": "send_mail", "arguments": {"to": "x"}, "action_digest": "sha256:abc", "side_effect": "unsafe"}
    return events.ToolRequested(tool_call_id=id_, **(call | changes))


def a_failure(id_: str = "c1", *, retryable: bool = True) -> events.ToolFailed:
    return events.ToolFailed(tool_call_id=id_, error=events.Problem(code="timeout", retryable=retryable))


# --- the table --------------------------------------------------------------------------------------------


def test_the_readme_shows_the_table_that_the_machine_makes() -> None:
    assert table.markdown() in README.read_text(), "run `python -m runlane.run_supervisor.table` and paste it"


def test_the_table_has_every_command_and_every_status() -> None:
    assert {sample.TYPE for sample in table.SAMPLES} == set(COMMANDS)
    assert {table.run_in(state).status for state in table.STATES} == {"", *STATUSES}


@pytest.mark.parametrize("state", table.STATES)
@pytest.mark.parametrize("sample", table.SAMPLES, ids=lambda sample: sample.TYPE)
def test_every_cell_leads_to_facts_that_fit_or_to_a_stable_code(state: str, sample: Any) -> None:
    run = table.run_in(state)
    outcome = table.cell(state, sample)
    if outcome and outcome[0] not in events.PAYLOADS:
        assert outcome[0] in set(Code)
    elif run.exists:
        assert not run.is_terminal, "nothing is decided about a run that is over"


# --- every decision ---------------------------------------------------------------------------------------


def test_facts_of_a_command_carry_its_id_its_author_and_ids_that_a_repeat_mints_again() -> None:
    run = a_run(an_ask(), a_call(), events.ToolRunning(tool_call_id="c1"))
    first = machine.decide(run, command("run.pause"), now=NOW)
    again = machine.decide(run, command("run.pause"), now=NOW)
    other = machine.decide(run, command("run.pause", "cmd_2"), now=NOW)
    assert [one.event_id for one in first] == [one.event_id for one in again]
    assert first[0].event_id != other[0].event_id
    assert first[0].causation_ids == ("cmd_1",)
    assert first[0].actor == USER


def test_a_command_that_is_in_the_run_leads_to_nothing_more() -> None:
    story = Story().then(events.RunCreated(agent="a"), events.RunLeased(lease_epoch=1, worker_id="w"))
    story.then(events.RunStarted())
    drafts = machine.decide(story.run, command("message.send", content="hi"), now=NOW)
    story.run.evolve(place(story.run, drafts, lease_epoch=0, actor=USER, occurred_at=in_s(0), event_ids=["evt_x"]))
    assert machine.decide(story.run, command("message.send", content="hi"), now=NOW) == []


def test_a_producer_that_names_a_command_as_its_cause_does_not_settle_it() -> None:
    story = Story().then(events.RunCreated(agent="a"), events.RunLeased(lease_epoch=1, worker_id="w"))
    story.then(events.RunStarted(), causation_ids=("cmd_1",))
    assert machine.decide(story.run, command("message.send", content="hi"), now=NOW)


def test_a_run_that_does_not_exist_is_named() -> None:
    assert refused(RunLifecycle(tenant_id="acme", run_id="run_1"), "run.cancel").code == Code.RUN_NOT_FOUND


@pytest.mark.parametrize("type_", sorted(set(COMMANDS) - STARTING))
def test_a_run_that_is_over_refuses_everything(type_: str) -> None:
    sample = next(one for one in table.SAMPLES if type_ == one.TYPE)
    run = a_run(events.RunCompleted())
    assert refused(run, type_, **msgspec.to_builtins(sample)).code == Code.RUN_TERMINAL


def test_unknown_and_misshapen_commands_are_invalid() -> None:
    assert refused(a_run(), "run.explode").code == Code.INVALID_REQUEST
    assert refused(a_run(), "approval.resolve", approval_id="a1", decision="maybe").code == Code.INVALID_REQUEST
    assert refused(a_run(), "run.cancel", unheard_of=1).code == Code.INVALID_REQUEST


# --- start ------------------------------------------------------------------------------------------------


def test_start_creates_the_run_with_all_it_was_given() -> None:
    start = {"agent": "a", "input": {"q": 1}, "pool": "gpu", "dispatch": "external", "deadline_at": in_s(60),
             "limits": {"cancel_grace_s": 1.0, "max_attempts": 2}, "parent_run_id": "run_0"}  # fmt: skip
    asked = msgspec.structs.replace(command("run.start", **start), session_id="ses_1")
    (created,) = machine.decide(RunLifecycle(tenant_id="acme", run_id="run_1"), asked, now=NOW)
    assert msgspec.json.decode(created.payload) == start
    assert created.session_id == "ses_1"


def test_an_id_starts_one_run() -> None:
    assert refused(a_run(), "run.start", agent="a").code == Code.ALREADY_EXISTS
    assert refused(a_run(events.RunCompleted()), "run.start", agent="a").code == Code.ALREADY_EXISTS


# --- cancel, pause, resume --------------------------------------------------------------------------------


def test_cancel_ends_an_unowned_run_at_once_and_closes_what_is_open() -> None:
    run = a_run(an_ask(), a_call(), events.ToolRunning(tool_call_id="c1"), events.RunLeaseLost(lease_epoch=1))
    assert decided(run, "run.cancel", reason="enough") == [
        ("approval.resolved", {"approval_id": "a1", "decision": "revoked", "decided_by": "system", "version": 3,
                               "reason": "run.cancelled"}),
        ("tool.failed", {"tool_call_id": "c1", "error": {"code": "outcome_unknown", "message": "run.cancelled",
                                                        "retryable": False}}),
        ("run.cancelled", {"reason": "enough"}),
    ]  # fmt: skip


def test_cancel_gives_an_owner_its_grace() -> None:
    run = a_run(limits=events.Limits(cancel_grace_s=1.5))
    assert decided(run, "run.cancel") == [("run.cancel_requested", {"deadline_at": in_s(1.5)})]
    assert decided(a_run(), "run.cancel") == [("run.cancel_requested", {"deadline_at": in_s(30)})]


def test_cancelling_again_changes_nothing() -> None:
    assert decided(a_run(events.RunCancelRequested(deadline_at=in_s(5))), "run.cancel") == []


def test_pause_is_asked_for_once() -> None:
    assert decided(a_run(), "run.pause") == [("run.pause_requested", {})]
    assert decided(a_run(events.RunPauseRequested()), "run.pause") == []
    assert refused(a_run(events.RunPaused()), "run.pause").code == Code.INVALID_STATE


def test_resume_continues_a_paused_run() -> None:
    assert decided(a_run(events.RunPaused()), "run.resume") == [("run.resumed", {})]
    assert refused(a_run(), "run.resume").code == Code.INVALID_STATE


def test_resume_takes_back_a_pause_that_was_not_reached() -> None:
    assert decided(a_run(events.RunPauseRequested()), "run.resume") == [("run.resumed", {})]
    waiting = a_run(an_ask(), events.InputRequested(input_id="i1", prompt="p"), events.RunWaiting(),
                    events.RunPauseRequested())  # fmt: skip
    on = [{"kind": "approval", "id": "a1"}, {"kind": "input", "id": "i1"}]
    assert decided(waiting, "run.resume") == [("run.resumed", {}), ("run.waiting", {"on": on})]


def test_what_is_said_to_a_lost_run_counts_once_somebody_takes_it() -> None:
    story = Story().then(events.RunCreated(agent="a"), events.RunLeased(lease_epoch=1, worker_id="w"))
    story.then(events.RunStarted(), events.RunPaused(), events.RunLeaseLost(lease_epoch=1))
    story.drafts(*machine.decide(story.run, command("run.resume"), now=NOW))
    assert story.run.status == "lost"
    story.then(events.RunLeased(lease_epoch=2, worker_id="w2"))
    assert story.run.status == "running"


# --- approvals --------------------------------------------------------------------------------------------


def test_an_approval_is_resolved_for_exactly_what_was_shown() -> None:
    run = a_run(a_call(), an_ask())
    shown = {"approval_id": "a1", "decision": "approved", "expected_version": 3, "action_digest": "sha256:abc"}
    assert decided(run, "approval.resolve", **shown) == [
        ("approval.resolved", {"approval_id": "a1", "decision": "approved", "decided_by": "ada", "version": 3,
                               "action_digest": "sha256:abc"}),
    ]  # fmt: skip
    assert refused(run, "approval.resolve", **shown | {"expected_version": 2}).code == Code.VERSION_CONFLICT
    stale = refused(run, "approval.resolve", **shown | {"action_digest": "sha256:other"})
    assert stale.code == Code.VERSION_CONFLICT
    assert stale.recorded == {"approval_id": "a1", "version": 3, "action_digest": "sha256:abc"}


def test_an_unknown_approval_is_not_found() -> None:
    assert refused(a_run(), "approval.resolve", approval_id="a1", decision="approved").code == Code.APPROVAL_NOT_FOUND
    assert refused(a_run(), "approval.revoke", approval_id="a1", reason="r").code == Code.APPROVAL_NOT_FOUND


@pytest.mark.parametrize("verb", ["approval.resolve", "approval.revoke"])
def test_a_second_decision_learns_the_first_without_its_content(verb: str) -> None:
    first = events.ApprovalResolved(approval_id="a1", decision="modified", decided_by="bob", version=3,
                                    data={"to": "secret"}, reason="because", action_digest="d")  # fmt: skip
    payload = {"decision": "rejected"} if verb == "approval.resolve" else {"reason": "r"}
    late = refused(a_run(an_ask(), first), verb, approval_id="a1", **payload)
    assert late.code == Code.ALREADY_RESOLVED
    assert late.recorded == {"approval_id": "a1", "decision": "modified", "decided_by": "bob", "version": 3,
                             "action_digest": "d"}  # fmt: skip


def test_a_decision_after_the_end_learns_what_was_decided_before_it() -> None:
    first = events.ApprovalResolved(approval_id="a1", decision="approved", decided_by="bob", version=3)
    over = a_run(an_ask(), first, events.RunCompleted())
    late = refused(over, "approval.resolve", approval_id="a1", decision="rejected")
    assert late.code == Code.RUN_TERMINAL
    assert late.recorded is not None
    assert late.recorded["decision"] == "approved"


def test_a_decision_after_the_expiry_comes_too_late_even_before_it_is_recorded() -> None:
    run = a_run(an_ask(expires_at=in_s(0)))
    late = refused(run, "approval.resolve", approval_id="a1", decision="approved")
    assert late.code == Code.ALREADY_RESOLVED
    assert late.recorded is not None
    assert late.recorded["decision"] == "expired"
    assert decided(a_run(an_ask(expires_at=in_s(1))), "approval.resolve", approval_id="a1", decision="approved")


def test_an_edited_approval_carries_the_edit_and_the_digest_of_what_will_run() -> None:
    run = a_run(a_call(), an_ask())
    ((_, resolved),) = decided(run, "approval.resolve", approval_id="a1", decision="modified", data={"to": "y"})
    assert resolved["data"] == {"to": "y"}
    assert resolved["action_digest"] == canonical.action_digest("send_mail", {"to": "y"})
    ((_, alone),) = decided(a_run(an_ask(tool_call_id=None)), "approval.resolve", approval_id="a1",
                            decision="modified", data={"to": "y"})  # fmt: skip
    assert alone["action_digest"] == canonical.sha256_of({"to": "y"})


def test_edits_need_data_and_leave_to_edit() -> None:
    run = a_run(an_ask())
    assert refused(run, "approval.resolve", approval_id="a1", decision="modified").code == Code.INVALID_REQUEST
    assert refused(run, "approval.resolve", approval_id="a1", decision="approved", data=1).code == Code.INVALID_REQUEST
    fixed = a_run(an_ask(editable=False))
    assert refused(fixed, "approval.resolve", approval_id="a1", decision="modified", data=1).code == Code.INVALID_STATE


def voted(run: RunLifecycle, by: str, decision: str = "approved", **payload: Any) -> list[tuple[str, dict[str, Any]]]:
    """What `by` decides, and the run as that leaves it."""
    told_by = msgspec.structs.replace(
        command("approval.resolve", f"cmd_{by}_{decision}", approval_id="a1", decision=decision, **payload),
        issued_by=Actor(kind="user", id=by),
    )
    drafts = machine.decide(run, told_by, now=NOW)
    run.evolve(place(run, drafts, lease_epoch=0, actor=USER, occurred_at=timestamp(NOW),
                     event_ids=[f"evt_{run.sequence + 1}"] * len(drafts)))  # fmt: skip
    return told(drafts)


def test_p11_a_quorum_is_that_many_people_for_the_same_action() -> None:
    """To see it fail: let `_resolve` write no `ApprovalVoted`; then the first approval resolves."""
    run = a_run(a_call(), an_ask(quorum=2))
    ((type_, vote),) = voted(run, "ada")
    assert (type_, vote["by"], vote["decision"], vote["version"]) == ("approval.voted", "ada", "approved", 3)
    assert ("approval", "a1") in run.open_items
    with pytest.raises(Refused) as caught:
        voted(run, "ada", "modified", data={"to": "y"})
    assert caught.value.code is Code.ALREADY_RESOLVED
    assert caught.value.recorded is not None
    assert caught.value.recorded["decided_by"] == "ada"
    assert voted(run, "bob", "modified", data={"to": "y"})[0][0] == "approval.voted", "another action"
    ((type_, resolved),) = voted(run, "eve")
    assert (type_, resolved["decision"], resolved["decided_by"]) == ("approval.resolved", "approved", "eve")
    assert resolved["approved_by"] == ["ada", "eve"]
    with pytest.raises(Refused) as caught:
        voted(run, "dan")
    assert caught.value.code is Code.ALREADY_RESOLVED


def test_p11_one_no_is_enough_and_an_approver_may_still_say_it() -> None:
    """To see it fail: count approvals in `_resolve` for `rejected` too."""
    for by in ("ada", "bob"):
        run = a_run(a_call(), an_ask(quorum=3))
        voted(run, "ada")
        assert voted(run, by, "rejected")[0][1]["decision"] == "rejected"


def test_p11_a_revision_voids_the_votes_before_it() -> None:
    """To see it fail: keep `votes` in `_approval_requested`."""
    run = a_run(a_call(), an_ask(quorum=2))
    voted(run, "ada")
    run.evolve(place(run, [draft(an_ask(quorum=2, version=4))], lease_epoch=1, actor=USER,
                     occurred_at=timestamp(NOW), event_ids=["evt_revised"]))  # fmt: skip
    late = refused(run, "approval.resolve", approval_id="a1", decision="approved", expected_version=3)
    assert late.code is Code.VERSION_CONFLICT
    assert "version 3 is void" in late.detail
    assert voted(run, "bob")[0][0] == "approval.voted"


@pytest.mark.parametrize("decision", ["approved", "rejected", "modified"])
def test_p11_who_may_not_decide_decides_nothing(decision: str) -> None:
    """To see it fail: remove the look at `not_by` from `_resolve`."""
    run = a_run(a_call(), an_ask(not_by=["ada"]))
    data = {"data": {"to": "y"}} if decision == "modified" else {}
    assert refused(run, "approval.resolve", approval_id="a1", decision=decision, **data).code is Code.FORBIDDEN
    assert voted(run, "bob", decision, **data)[0][1]["decision"] == decision


def test_revoking_takes_the_question_back() -> None:
    assert decided(a_run(an_ask()), "approval.revoke", approval_id="a1", reason="not needed") == [
        ("approval.resolved", {"approval_id": "a1", "decision": "revoked", "decided_by": "ada", "version": 3,
                               "reason": "not needed", "action_digest": "sha256:abc"}),
    ]  # fmt: skip


def test_a_run_that_is_being_cancelled_takes_a_no_but_no_yes() -> None:
    run = a_run(an_ask(), events.RunCancelRequested(deadline_at=in_s(5)))
    assert refused(run, "approval.resolve", approval_id="a1", decision="approved").code == Code.INVALID_STATE
    assert decided(run, "approval.resolve", approval_id="a1", decision="rejected")


# --- tools ------------------------------------------------------------------------------------------------


def test_retry_asks_for_the_same_call_again_under_a_new_id() -> None:
    run = a_run(a_call(attempt=2, operation_id="op"), a_failure())
    ((type_, again),) = decided(run, "tool.retry", tool_call_id="c1")
    assert type_ == "tool.requested"
    assert again.pop("tool_call_id").startswith("call_")
    assert again == {"name": "send_mail", "arguments": {"to": "x"}, "action_digest": "sha256:abc",
                     "side_effect": "unsafe", "operation_id": "op", "attempt": 3, "retry_of": "c1"}  # fmt: skip
    assert decided(run, "tool.retry", tool_call_id="c1") == decided(run, "tool.retry", tool_call_id="c1")


def test_retry_repeats_what_a_person_approved_not_what_the_agent_first_asked() -> None:
    edited = events.ApprovalResolved(approval_id="a1", decision="modified", decided_by="u", version=3,
                                     data={"to": "y"}, action_digest="sha256:edited")  # fmt: skip
    ((_, again),) = decided(a_run(a_call(), an_ask(), edited, a_failure()), "tool.retry", tool_call_id="c1")
    assert again["arguments"] == {"to": "y"}
    assert again["action_digest"] == "sha256:edited"


def test_what_cannot_be_retried_is_refused_by_name() -> None:
    final = a_run(a_call(), a_failure(retryable=False))
    unknown = a_run(a_call(), events.ToolOutcomeUnknown(tool_call_id="c1", operation_id="o"))
    for run in (final, unknown, a_run(a_call()), a_run(a_call(), events.ToolCompleted(tool_call_id="c1"))):
        assert refused(run, "tool.retry", tool_call_id="c1").code == Code.NOT_RETRYABLE
    assert refused(a_run(), "tool.retry", tool_call_id="c1").code == Code.NOT_FOUND
    twice = refused(a_run(a_call(), a_failure(), a_call("c2", retry_of="c1")), "tool.retry", tool_call_id="c1")
    assert twice.code == Code.ALREADY_RETRIED
    assert twice.recorded == {"tool_call_id": "c2"}


def test_an_unknown_outcome_is_settled_once() -> None:
    unknown = events.ToolOutcomeUnknown(tool_call_id="c1", operation_id="o")
    story = Story().then(events.RunCreated(agent="a"), events.RunLeased(lease_epoch=1, worker_id="w"))
    story.then(events.RunStarted(), a_call(), unknown)
    settle = {"tool_call_id": "c1", "outcome": "not_executed", "note": "looked it up"}
    drafts = machine.decide(story.run, command("tool.reconcile", **settle), now=NOW)
    assert told(drafts) == [("tool.reconciled", settle | {"by": "ada"})]
    story.drafts(*drafts)
    second = msgspec.structs.replace(command("tool.reconcile", **settle), command_id="cmd_2")
    with pytest.raises(Refused) as late:
        machine.decide(story.run, second, now=NOW)
    assert late.value.code == Code.ALREADY_RESOLVED
    assert late.value.recorded == {"tool_call_id": "c1", "outcome": "not_executed", "by": "ada"}
    retry = msgspec.structs.replace(command("tool.retry", tool_call_id="c1"), command_id="cmd_3")
    assert machine.decide(story.run, retry, now=NOW), "what was not executed may be tried again"


def test_p11_what_was_found_out_of_a_call_voids_the_question_about_it() -> None:
    run = a_run(a_call(), events.ToolOutcomeUnknown(tool_call_id="c1", operation_id="c1"), an_ask())
    revoked, reconciled = decided(run, "tool.reconcile", tool_call_id="c1", outcome="executed", note="seen")
    assert (revoked[0], revoked[1]["approval_id"], revoked[1]["decision"]) == ("approval.resolved", "a1", "revoked")
    assert reconciled[0] == "tool.reconciled"


def test_p11_the_end_of_a_run_ends_a_question_about_a_running_unsafe_call_once() -> None:
    run = a_run(a_call(), events.ToolRunning(tool_call_id="c1"), an_ask(), deadline_at=in_s(-1))
    types = [type_ for type_, _ in told(machine.overdue(run, now=NOW))]
    assert types == ["run.lease_lost", "approval.resolved", "tool.outcome_unknown", "tool.failed", "run.failed"]


def test_only_an_unknown_outcome_is_reconciled() -> None:
    settle = {"tool_call_id": "c1", "outcome": "executed", "note": "n"}
    assert refused(a_run(a_call()), "tool.reconcile", **settle).code == Code.INVALID_STATE
    assert refused(a_run(), "tool.reconcile", **settle).code == Code.NOT_FOUND


# --- inputs and messages ----------------------------------------------------------------------------------


def asked_for(schema: dict[str, Any] | None = None, **more: Any) -> RunLifecycle:
    return a_run(events.InputRequested(input_id="i1", prompt="p", schema=schema, **more))


def test_an_answer_is_recorded_once() -> None:
    assert decided(asked_for(), "input.provide", input_id="i1", value={"n": 1}) == [
        ("input.provided", {"input_id": "i1", "by": "ada", "value": {"n": 1}}),
    ]
    answered = a_run(events.InputRequested(input_id="i1", prompt="p"),
                     events.InputProvided(input_id="i1", by="bob", value="secret"))  # fmt: skip
    late = refused(answered, "input.provide", input_id="i1", value=1)
    assert late.code == Code.ALREADY_RESOLVED
    assert late.recorded == {"input_id": "i1", "decision": "provided", "by": "bob"}
    assert refused(a_run(), "input.provide", input_id="i1", value=1).code == Code.NOT_FOUND


def test_an_answer_fits_the_schema_it_was_asked_with() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    assert decided(asked_for(schema), "input.provide", input_id="i1", value={"n": 1})
    misfit = refused(asked_for(schema), "input.provide", input_id="i1", value={"n": "hunter2"})
    assert misfit.code == Code.INVALID_REQUEST
    assert "type at /n" in misfit.detail
    assert "hunter2" not in misfit.detail
    broken = refused(asked_for({"type": "nonsense"}), "input.provide", input_id="i1", value=1)
    assert broken.code == Code.INVALID_STATE


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "writeOnly": True},
        {"type": "string", "format": "password"},
        {"type": "object", "properties": {"pin": {"anyOf": [{"type": "string", "format": "password"}]}}},
    ],
)
def test_a_secret_answer_is_kept_where_views_do_not_look(schema: dict[str, Any]) -> None:
    value = {"pin": "s"} if schema["type"] == "object" else "s"
    ((_, provided),) = decided(asked_for(schema), "input.provide", input_id="i1", value=value)
    assert provided == {"input_id": "i1", "by": "ada", "secret_value": value}


def test_a_question_that_ended_takes_no_answer() -> None:
    asked = events.InputRequested(input_id="i1", prompt="p")
    for reason, decision in (("expired", "expired"), ("changed my mind", "cancelled")):
        over = a_run(asked, events.InputCancelled(input_id="i1", reason=reason))
        late = refused(over, "input.provide", input_id="i1", value=1)
        assert (late.code, late.recorded) == (Code.ALREADY_RESOLVED, {"input_id": "i1", "decision": decision})
    late = refused(asked_for(expires_at=in_s(-1)), "input.provide", input_id="i1", value=1)
    assert (late.code, late.recorded) == (Code.ALREADY_RESOLVED, {"input_id": "i1", "decision": "expired"})


def test_a_message_becomes_a_fact_under_an_id_of_its_own() -> None:
    ((type_, message),) = decided(a_run(), "message.send", content={"text": "hi"})
    assert type_ == "message.completed"
    assert message.pop("message_id").startswith("msg_")
    assert message == {"role": "user", "content": {"text": "hi"}}


# --- time -------------------------------------------------------------------------------------------------


def test_a_lost_lease_is_told_once_and_says_whose_outcome_is_unknown() -> None:
    running = events.ToolRunning(tool_call_id="c1")
    run = a_run(a_call(), running, a_call("c2", side_effect="none"), events.ToolRunning(tool_call_id="c2"))
    assert told(machine.on_lease_lost(run, lease_epoch=1)) == [
        ("run.lease_lost", {"lease_epoch": 1, "cause": "expired"}),
        ("tool.outcome_unknown", {"tool_call_id": "c1", "operation_id": "c1"}),
    ]
    assert machine.on_lease_lost(run, lease_epoch=2) == [], "another lease"
    assert machine.on_lease_lost(a_run(events.RunLeaseLost(lease_epoch=1)), lease_epoch=1) == []
    assert machine.on_lease_lost(a_run(events.RunCompleted()), lease_epoch=1) == []
    assert machine.on_lease_lost(RunLifecycle(tenant_id="t", run_id="r"), lease_epoch=0) == []


OUTCOME_UNKNOWN = {"code": "outcome_unknown", "message": "run.cancelled", "retryable": False}


def test_a_lease_lost_while_cancelling_ends_the_run() -> None:
    run = a_run(a_call(), events.ToolRunning(tool_call_id="c1"),
                events.RunCancelRequested(deadline_at=in_s(9), reason="enough"))  # fmt: skip
    assert told(machine.on_lease_lost(run, lease_epoch=1)) == [
        ("run.lease_lost", {"lease_epoch": 1, "cause": "expired"}),
        ("tool.outcome_unknown", {"tool_call_id": "c1", "operation_id": "c1"}),
        ("tool.failed", {"tool_call_id": "c1", "error": OUTCOME_UNKNOWN}),
        ("run.cancelled", {"reason": "enough"}),
    ]


def test_a_deaf_owner_is_fenced_and_the_run_ended_for_it() -> None:
    run = a_run(events.TaskCreated(task_id="t1"), events.RunCancelRequested(deadline_at=in_s(0), reason="enough"))
    ended = machine.overdue(run, now=NOW)
    assert told(ended) == [
        ("run.lease_lost", {"lease_epoch": 1, "cause": "fenced"}),
        ("task.cancelled", {"task_id": "t1", "reason": "run.cancelled"}),
        ("run.cancelled", {"reason": "enough"}),
    ]
    assert {one.actor for one in ended} == {machine.SYSTEM}
    assert machine.overdue(run, now=NOW - timedelta(seconds=1)) == []


def test_a_deadline_ends_the_run_whatever_it_does() -> None:
    run = a_run(an_ask(expires_at=in_s(0)), deadline_at=in_s(0))
    ended = told(machine.overdue(run, now=NOW))
    assert [type_ for type_, _ in ended] == ["run.lease_lost", "approval.resolved", "run.failed"]
    assert ended[-1][1]["error"]["code"] == "deadline_exceeded"
    assert machine.overdue(a_run(events.RunCompleted(), deadline_at=in_s(0)), now=NOW) == []


def test_questions_expire_each_at_its_time() -> None:
    run = a_run(an_ask(expires_at=in_s(0)), an_ask(approval_id="a2", expires_at=in_s(1)), an_ask(approval_id="a3"),
                events.InputRequested(input_id="i1", prompt="p", expires_at=in_s(-1)))  # fmt: skip
    assert told(machine.overdue(run, now=NOW)) == [
        ("approval.resolved", {"approval_id": "a1", "decision": "expired", "decided_by": "system", "version": 3,
                               "action_digest": "sha256:abc"}),
        ("input.cancelled", {"input_id": "i1", "reason": "expired"}),
    ]  # fmt: skip
    assert machine.on_approval_expired(run, "nope", now=NOW) == []
    assert machine.on_input_expired(run, "nope", now=NOW) == []


def test_a_question_that_nothing_can_answer_is_taken_back_and_says_why() -> None:
    """It came straight to the log, past the check of appends: nobody may wait for it for ever."""
    run = a_run(events.InputRequested(input_id="i1", prompt="p", schema={"type": "nonsense"}, expires_at=in_s(60)))
    ((type_, payload),) = told(machine.overdue(run, now=NOW))
    assert (type_, payload["input_id"]) == ("input.cancelled", "i1")
    assert payload["reason"] == f"{machine.UNANSWERABLE}: not a JSON Schema: $.type"
    assert refused(run, "input.provide", input_id="i1", value=1).code == Code.INVALID_STATE


def test_what_was_settled_does_not_expire() -> None:
    run = a_run(
        an_ask(expires_at=in_s(-9)),
        events.ApprovalResolved(approval_id="a1", decision="approved", decided_by="u", version=3),
        events.InputRequested(input_id="i1", prompt="p", expires_at=in_s(-9)),
        events.InputProvided(input_id="i1", by="u", value=1),
    )
    assert machine.overdue(run, now=NOW) == []


def test_a_text_that_names_no_moment_never_comes() -> None:
    assert machine.overdue(a_run(an_ask(expires_at="2026-02-31T00:00:00Z")), now=NOW) == []


def test_ending_facts_leave_nothing_open() -> None:
    story = Story().then(events.RunCreated(agent="a"), events.RunLeased(lease_epoch=1, worker_id="w"))
    story.then(events.RunStarted(), an_ask(), a_call(), events.ToolRunning(tool_call_id="c1"))
    story.then(events.MessageStarted(message_id="m1", role="assistant"), events.ArtifactCreated(artifact_id="f1"))
    story.then(events.RunCancelRequested(deadline_at=in_s(0)))
    story.drafts(*machine.overdue(story.run, now=NOW))
    assert story.run.status == "cancelled"
    assert story.run.open_items == {}
    assert story.run.owner is None
