"""What follows from a command or from time passing: pure functions of the run as it is.

`decide` answers a command with the facts it leads to, or refuses it by name. The `on_…` functions say what
has to be written because a moment came. All of them look at the run's state only, so asking again after the
facts are in the log gives nothing: a repeated delivery, a second supervisor and a late timer change nothing.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final, assert_never

import msgspec

from runlane.run_supervisor import answers
from runlane.run_supervisor.re_execution import Parent, re_executed
from runlane_contracts import canonical, commands, events
from runlane_contracts.codec import parse_timestamp, timestamp
from runlane_contracts.commands import Command, derived_id
from runlane_contracts.envelope import Actor
from runlane_contracts.lifecycle import (
    Approval,
    FactDraft,
    Refused,
    RunLifecycle,
    Tool,
    closers,
    draft,
    lose_lease,
    voided,
)
from runlane_contracts.problems import Code

SYSTEM: Final = Actor(kind="system", id="runlane")


# --- commands ---------------------------------------------------------------------------------------------


def decide(run: RunLifecycle, command: Command, *, now: datetime, parent: Parent | None = None) -> list[FactDraft]:
    """The facts that a command leads to. None: it was applied already, or what it wants is so already.

    `parent`: the run that a `run.re_execute` is about, as it is when it is over.

    Raises:
        Refused: it does not apply; the code says why.
    """
    if command.command_id in run.applied_commands:
        return []
    payload = payload_of(command)
    if isinstance(payload, commands.StartRun):
        return _caused_by(command, _start(run, command, payload))
    if isinstance(payload, commands.ReExecuteRun):
        return _caused_by(command, _re_execute(run, payload, parent))
    if not run.exists:
        raise Refused(Code.RUN_NOT_FOUND, "no such run")
    if run.is_terminal:
        raise Refused(Code.RUN_TERMINAL, f"the run is {run.status}", recorded=_recorded_decision(run, payload))
    return _caused_by(command, _decide_live(run, command, payload, now))


def payload_of(command: Command) -> commands.CommandPayload:
    """The typed payload of a command.

    Raises:
        Refused: no such command, or the payload does not fit it.
    """
    try:
        return commands.decode_command_payload(command.type, command.payload)
    except KeyError:
        raise Refused(Code.INVALID_REQUEST, f"unknown command {command.type[:80]!r}") from None
    except msgspec.MsgspecError as exc:
        raise Refused(Code.INVALID_REQUEST, f"{command.type}: {exc}") from exc


def _caused_by(command: Command, drafts: Sequence[FactDraft]) -> list[FactDraft]:
    """The same command mints the same event ids, and every fact names it as its cause."""
    return [
        msgspec.structs.replace(
            one,
            event_id=derived_id("evt", command.command_id, str(ordinal)),
            actor=one.actor or command.issued_by,
            causation_ids=(command.command_id,),
            traceparent=command.traceparent,
        )
        for ordinal, one in enumerate(drafts)
    ]


def _decide_live(
    run: RunLifecycle, command: Command, payload: commands.CommandPayload, now: datetime
) -> list[FactDraft]:
    match payload:
        case commands.CancelRun():
            return _cancel(run, payload, now)
        case commands.PauseRun():
            return _pause(run)
        case commands.ResumeRun():
            return _resume(run)
        case commands.SendMessage():
            message_id = derived_id("msg", command.command_id)
            return [draft(events.MessageCompleted(message_id=message_id, role="user", content=payload.content))]
        case _:
            return _decide_item(run, command, payload, now)


def _decide_item(
    run: RunLifecycle, command: Command, payload: commands.CommandPayload, now: datetime
) -> list[FactDraft]:
    match payload:
        case commands.ResolveApproval():
            return _resolve(run, payload, command.issued_by, now)
        case commands.RevokeApproval():
            return _revoke(run, payload, command.issued_by, now)
        case commands.RetryTool():
            return _retry(run, payload, command)
        case commands.ReconcileTool():
            return _reconcile(run, payload, command.issued_by)
        case commands.ProvideInput():
            return _provide(run, payload, command.issued_by, now)
        case _:
            raise AssertionError(f"{type(payload).__name__} has no rule")


# --- the run ----------------------------------------------------------------------------------------------


def _start(run: RunLifecycle, command: Command, payload: commands.StartRun) -> list[FactDraft]:
    if run.exists:
        raise Refused(Code.ALREADY_EXISTS, "a run with this id was started by another request")
    created = events.RunCreated(
        agent=payload.agent,
        input=payload.input,
        pool=payload.pool,
        dispatch=payload.dispatch,
        deadline_at=payload.deadline_at,
        limits=payload.limits,
        parent_run_id=payload.parent_run_id,
    )
    return [draft(created, session_id=command.session_id)]


def _re_execute(run: RunLifecycle, payload: commands.ReExecuteRun, parent: Parent | None) -> list[FactDraft]:
    if run.exists:
        raise Refused(Code.ALREADY_EXISTS, "a run with this id was started by another request")
    if parent is None:
        raise Refused(Code.RUN_NOT_FOUND, "no such run to execute again")
    return re_executed(run, payload, parent)


def _cancel(run: RunLifecycle, payload: commands.CancelRun, now: datetime) -> list[FactDraft]:
    if effective_status(run) == "cancelling":
        return []  # asked for already; the first deadline stands
    if run.owner is None:
        return _ended(run, events.RunCancelled(reason=payload.reason))
    deadline = timestamp(now + timedelta(seconds=limits_of(run).cancel_grace_s))
    return [draft(events.RunCancelRequested(deadline_at=deadline, reason=payload.reason))]


def _pause(run: RunLifecycle) -> list[FactDraft]:
    if effective_status(run) not in {"running", "waiting"}:
        raise Refused(Code.INVALID_STATE, f"only a running or waiting run can be paused; it is {_state_text(run)}")
    return [] if run.pause_requested else [draft(events.RunPauseRequested())]


def _resume(run: RunLifecycle) -> list[FactDraft]:
    status = effective_status(run)
    if status == "paused":
        return [draft(events.RunResumed())]
    if not run.pause_requested or status not in {"running", "waiting"}:
        raise Refused(Code.INVALID_STATE, f"only a paused run can be resumed; it is {_state_text(run)}")
    # The pause was asked for and not reached yet: take the request back, and stay where it was.
    resumed = draft(events.RunResumed())
    return [resumed] if status == "running" else [resumed, draft(events.RunWaiting(on=_waited_for(run)))]


def _waited_for(run: RunLifecycle) -> tuple[events.WaitingFor, ...]:
    approvals = (events.WaitingFor(kind="approval", id=id_) for id_, one in run.approvals.items() if not one.resolution)
    inputs = (
        events.WaitingFor(kind="input", id=id_)
        for id_, one in run.inputs.items()
        if one.answer is None and one.cancelled is None
    )
    return (*approvals, *inputs)


def effective_status(run: RunLifecycle) -> str:
    """The status, or for a lost run the one it goes on with once somebody takes it."""
    return run.status_before_lost if run.status == "lost" else run.status


def limits_of(run: RunLifecycle) -> events.Limits:
    """The run's bounds, or the defaults."""
    return (run.created.limits if run.created else None) or events.Limits()


def _state_text(run: RunLifecycle) -> str:
    return f"lost while {run.status_before_lost}" if run.status == "lost" else run.status


def _refuse_while_cancelling(run: RunLifecycle) -> None:
    if effective_status(run) == "cancelling":
        raise Refused(Code.INVALID_STATE, "the run is being cancelled; nothing new is set going")


def _ended(run: RunLifecycle, how: events.Payload) -> list[FactDraft]:
    """The end of a run: its owner fenced, every item closed, then the terminal fact; one commit."""
    fenced = [] if run.owner is None else lose_lease(run, "fenced")
    end = draft(how)
    after = run.fork()
    for one in fenced:
        match events.decode_payload(one.type, one.payload):
            case events.ToolOutcomeUnknown() as unknown:
                after.tools[unknown.tool_call_id].status = "outcome_unknown"
            case events.ApprovalResolved() as void:
                del after.open_items["approval", void.approval_id]
            case _:
                continue
    return [*fenced, *closers(after, end.type), end]


# --- approvals --------------------------------------------------------------------------------------------


def _resolve(run: RunLifecycle, payload: commands.ResolveApproval, by: Actor, now: datetime) -> list[FactDraft]:
    approval = _waiting_approval(run, payload.approval_id, now)
    asked = approval.request
    if by.id in asked.not_by:
        raise Refused(Code.FORBIDDEN, f"{by.id} may not decide this: somebody else has to", recorded=_shown(asked))
    if payload.expected_version is not None and payload.expected_version != asked.version:
        detail = f"version {payload.expected_version} is void; the approval is at version {asked.version}"
        raise Refused(Code.VERSION_CONFLICT, detail, recorded=_shown(asked))
    if payload.action_digest is not None and payload.action_digest != asked.action_digest:
        raise Refused(Code.VERSION_CONFLICT, "the action is not the one that was shown", recorded=_shown(asked))
    if payload.decision != "rejected":
        _refuse_while_cancelling(run)
    data, digest = _agreed(run, asked, payload)
    approved_by = _approvals_of(approval, digest, by) if payload.decision != "rejected" and asked.quorum > 1 else ()
    if payload.decision != "rejected" and len(approved_by) < asked.quorum and asked.quorum > 1:
        voted = events.ApprovalVoted(
            approval_id=payload.approval_id,
            decision=payload.decision,
            by=by.id,
            version=asked.version,
            action_digest=digest,
            data=data,
            reason=payload.reason,
        )
        return [draft(voted)]
    resolved = events.ApprovalResolved(
        approval_id=payload.approval_id,
        decision=payload.decision,
        decided_by=by.id,
        version=asked.version,
        data=data,
        reason=payload.reason,
        action_digest=digest,
        approved_by=approved_by,
    )
    return [draft(resolved)]


def _approvals_of(approval: Approval, digest: str, by: Actor) -> tuple[str, ...]:
    """Who approved exactly this action, `by` being the last. Nobody counts twice."""
    for vote in approval.votes:
        if vote.by == by.id:
            recorded = {"approval_id": vote.approval_id, "decision": vote.decision, "decided_by": vote.by,
                        "version": vote.version, "action_digest": vote.action_digest}  # fmt: skip
            raise Refused(Code.ALREADY_RESOLVED, f"{by.id} approved it; others have to", recorded=recorded)
    return (*(vote.by for vote in approval.votes if vote.action_digest == digest), by.id)


def _agreed(run: RunLifecycle, asked: events.ApprovalRequested, payload: commands.ResolveApproval) -> tuple[Any, str]:
    """The edited data, if any, and the digest of what the decision is about."""
    if payload.decision != "modified":
        if payload.data is not None:
            raise Refused(Code.INVALID_REQUEST, f"data goes with `modified`, not with `{payload.decision}`")
        return None, asked.action_digest
    if payload.data is None:
        raise Refused(Code.INVALID_REQUEST, "`modified` needs the data that shall be used instead")
    if not asked.editable:
        raise Refused(Code.INVALID_STATE, "the approval cannot be edited")
    tool = run.tools.get(asked.tool_call_id) if asked.tool_call_id else None
    if tool is None:
        return payload.data, canonical.sha256_of(payload.data)
    return payload.data, canonical.action_digest(tool.request.name, payload.data)


def _revoke(run: RunLifecycle, payload: commands.RevokeApproval, by: Actor, now: datetime) -> list[FactDraft]:
    asked = _waiting_approval(run, payload.approval_id, now).request
    revoked = events.ApprovalResolved(
        approval_id=payload.approval_id,
        decision="revoked",
        decided_by=by.id,
        version=asked.version,
        reason=payload.reason,
        action_digest=asked.action_digest,
    )
    return [draft(revoked)]


def _waiting_approval(run: RunLifecycle, approval_id: str, now: datetime) -> Approval:
    approval = run.approvals.get(approval_id)
    if approval is None:
        raise Refused(Code.APPROVAL_NOT_FOUND, "no such approval")
    if approval.resolution is not None:
        decision = approval.resolution.decision
        raise Refused(Code.ALREADY_RESOLVED, f"it was {decision}", recorded=_decision(approval.resolution))
    if is_due(approval.request.expires_at, now):
        raise Refused(Code.ALREADY_RESOLVED, "it was expired", recorded=_decision(_expired(approval.request)))
    return approval


def _expired(asked: events.ApprovalRequested) -> events.ApprovalResolved:
    return events.ApprovalResolved(
        approval_id=asked.approval_id,
        decision="expired",
        decided_by=SYSTEM.kind,
        version=asked.version,
        action_digest=asked.action_digest,
    )


def _decision(resolved: events.ApprovalResolved) -> dict[str, Any]:
    """Who decided what. Without the content: views mask it, an error must not show it."""
    shown = {
        "approval_id": resolved.approval_id,
        "decision": resolved.decision,
        "decided_by": resolved.decided_by,
        "version": resolved.version,
        "action_digest": resolved.action_digest,
    }
    return {name: value for name, value in shown.items() if value is not None}


def _shown(asked: events.ApprovalRequested) -> dict[str, Any]:
    return {"approval_id": asked.approval_id, "version": asked.version, "action_digest": asked.action_digest}


def _recorded_decision(run: RunLifecycle, payload: commands.CommandPayload) -> dict[str, Any] | None:
    """What was decided before the run ended, for whoever decides after it."""
    if not isinstance(payload, commands.ResolveApproval | commands.RevokeApproval):
        return None
    approval = run.approvals.get(payload.approval_id)
    return _decision(approval.resolution) if approval and approval.resolution else None


# --- tools ------------------------------------------------------------------------------------------------


def _retry(run: RunLifecycle, payload: commands.RetryTool, command: Command) -> list[FactDraft]:
    _refuse_while_cancelling(run)
    tool = _tool(run, payload.tool_call_id)
    if tool.retried_by is not None:
        raise Refused(
            Code.ALREADY_RETRIED, f"it was retried as {tool.retried_by}", recorded={"tool_call_id": tool.retried_by}
        )
    if tool.status != "failed" or not tool.retryable:
        raise Refused(Code.NOT_RETRYABLE, f"the call is {tool.status}, and not marked as retryable")
    arguments, digest = _as_it_ran(run, tool)
    again = msgspec.structs.replace(
        tool.request,
        tool_call_id=derived_id("call", command.command_id),
        arguments=arguments,
        action_digest=digest,
        attempt=tool.request.attempt + 1,
        retry_of=payload.tool_call_id,
    )
    return [draft(again)]


def _as_it_ran(run: RunLifecycle, tool: Tool) -> tuple[Any, str]:
    """The arguments of the failed attempt: what a person approved with edits, else what the agent asked for."""
    for approval in run.approvals.values():
        resolved = approval.resolution
        if resolved is None or resolved.decision != "modified":
            continue
        if approval.request.tool_call_id == tool.request.tool_call_id:
            return resolved.data, resolved.action_digest or tool.request.action_digest
    return tool.request.arguments, tool.request.action_digest


def _reconcile(run: RunLifecycle, payload: commands.ReconcileTool, by: Actor) -> list[FactDraft]:
    tool = _tool(run, payload.tool_call_id)
    if tool.reconciled is not None and tool.status != "outcome_unknown":
        recorded = {"tool_call_id": payload.tool_call_id, "outcome": tool.reconciled.outcome, "by": tool.reconciled.by}
        raise Refused(Code.ALREADY_RESOLVED, f"it was reconciled as {tool.reconciled.outcome}", recorded=recorded)
    if tool.status != "outcome_unknown":
        raise Refused(Code.INVALID_STATE, f"the outcome of the call is known: it is {tool.status}")
    if payload.result is not None and payload.outcome != "executed":
        raise Refused(Code.INVALID_REQUEST, "a result goes with `executed` only")
    reconciled = events.ToolReconciled(
        tool_call_id=payload.tool_call_id, outcome=payload.outcome, by=by.id, note=payload.note, result=payload.result
    )
    return [*voided(run, payload.tool_call_id, reconciled.TYPE), draft(reconciled)]


def _tool(run: RunLifecycle, tool_call_id: str) -> Tool:
    tool = run.tools.get(tool_call_id)
    if tool is None:
        raise Refused(Code.NOT_FOUND, "no such tool call")
    return tool


# --- inputs -----------------------------------------------------------------------------------------------


def _provide(run: RunLifecycle, payload: commands.ProvideInput, by: Actor, now: datetime) -> list[FactDraft]:
    asked = run.inputs.get(payload.input_id)
    if asked is None:
        raise Refused(Code.NOT_FOUND, "no such input")
    if asked.answer is not None:
        recorded = {"input_id": payload.input_id, "decision": "provided", "by": asked.answer.by}
        raise Refused(Code.ALREADY_RESOLVED, "it was answered", recorded=recorded)
    if asked.cancelled is not None:
        decision = "expired" if asked.cancelled.reason == EXPIRED else "cancelled"
        raise Refused(Code.ALREADY_RESOLVED, f"it was {decision}", recorded=_input_ended(payload, decision))
    if is_due(asked.request.expires_at, now):
        raise Refused(Code.ALREADY_RESOLVED, "it was expired", recorded=_input_ended(payload, EXPIRED))
    schema = asked.request.schema
    if schema is not None:
        _refuse_misfit(schema, payload.value)
    if schema is not None and answers.is_secret(schema):
        return [draft(events.InputProvided(input_id=payload.input_id, by=by.id, secret_value=payload.value))]
    return [draft(events.InputProvided(input_id=payload.input_id, by=by.id, value=payload.value))]


def _input_ended(payload: commands.ProvideInput, decision: str) -> dict[str, Any]:
    return {"input_id": payload.input_id, "decision": decision}


def _refuse_misfit(schema: dict[str, Any], value: Any) -> None:
    match answers.check(schema, value):
        case answers.Fits():
            return
        case answers.Misfit(path=path, rule=rule):
            raise Refused(Code.INVALID_REQUEST, f"the value does not fit the schema: {rule} at {path or '/'}")
        case answers.Uncheckable(reason=reason):
            detail = f"the schema that was asked with cannot be checked for this value: {reason}"
            raise Refused(Code.INVALID_STATE, detail)
        case never:
            assert_never(never)


# --- time -------------------------------------------------------------------------------------------------

EXPIRED: Final = "expired"
UNANSWERABLE: Final = "nothing can fit the schema"


def is_due(moment: str | None, now: datetime) -> bool:
    """Whether a moment has come. A text that names none never comes."""
    if moment is None:
        return False
    try:
        return parse_timestamp(moment) <= now
    except ValueError:
        return False


def overdue(run: RunLifecycle, *, now: datetime) -> list[FactDraft]:
    """Everything that had to happen by now, in one commit; the end of the run makes the rest moot."""
    ended = on_deadline(run, now=now) or on_cancel_deadline(run, now=now)
    if ended:
        return ended
    approvals = (one for id_ in run.approvals for one in on_approval_expired(run, id_, now=now))
    inputs = (one for id_ in run.inputs for one in on_input_expired(run, id_, now=now))
    return [*approvals, *inputs]


def on_deadline(run: RunLifecycle, *, now: datetime) -> list[FactDraft]:
    """The run's own deadline: it failed."""
    if not _is_live(run) or run.created is None or not is_due(run.created.deadline_at, now):
        return []
    error = events.Problem(code="deadline_exceeded", message=f"not finished by {run.created.deadline_at}")
    return _by_system(_ended(run, events.RunFailed(error=error)))


def on_cancel_deadline(run: RunLifecycle, *, now: datetime) -> list[FactDraft]:
    """The owner had its time to stop at a safe point: it is fenced, and the run ended for it."""
    if not _is_live(run) or effective_status(run) != "cancelling" or not is_due(run.cancel_deadline_at, now):
        return []
    return _by_system(_ended(run, events.RunCancelled(reason=run.cancel_reason)))


def on_approval_expired(run: RunLifecycle, approval_id: str, *, now: datetime) -> list[FactDraft]:
    """Nobody decided in time."""
    approval = run.approvals.get(approval_id)
    if not _is_live(run) or approval is None or approval.resolution is not None:
        return []
    if not is_due(approval.request.expires_at, now):
        return []
    return _by_system([draft(_expired(approval.request))])


def on_input_expired(run: RunLifecycle, input_id: str, *, now: datetime) -> list[FactDraft]:
    """Nobody answered in time; or nobody ever can, and then there is nothing to wait for."""
    asked = run.inputs.get(input_id)
    if not _is_live(run) or asked is None or asked.answer is not None or asked.cancelled is not None:
        return []
    schema = asked.request.schema
    if is_due(asked.request.expires_at, now):
        reason = EXPIRED
    elif schema is not None and (why := answers.why_unanswerable(schema)) is not None:
        reason = f"{UNANSWERABLE}: {why}"
    else:
        return []
    return _by_system([draft(events.InputCancelled(input_id=input_id, reason=reason))])


def on_lease_lost(run: RunLifecycle, *, lease_epoch: int) -> list[FactDraft]:
    """The lease ran out. A run that was being cancelled has nobody left to stop it: it ends now."""
    if not _is_live(run) or run.owner is None or run.lease_epoch != lease_epoch:
        return []
    lost = lose_lease(run, EXPIRED)
    if run.status != "cancelling":
        return lost
    ended = _ended(run, events.RunCancelled(reason=run.cancel_reason))
    return _by_system([lost[0], *ended[1:]])


def _is_live(run: RunLifecycle) -> bool:
    return run.exists and not run.is_terminal


def _by_system(drafts: Sequence[FactDraft]) -> list[FactDraft]:
    return [one if one.actor is not None else msgspec.structs.replace(one, actor=SYSTEM) for one in drafts]
