"""What a run's local state already says about a wish: pure.

Only what can never change again is objected to here: an end, a decision, an answer. Local state may be behind, so
everything else is for the server to decide; and the server decides all of it again.
"""

from dataclasses import dataclass
from typing import Any

from runlane.client.state import RunState
from runlane_contracts import commands as contract
from runlane_contracts.commands import CommandPayload
from runlane_contracts.problems import Code
from runlane_contracts.reducer import State


@dataclass(frozen=True, slots=True)
class Objection:
    """Why a wish would be refused, by the code the server would use. `recorded`: what was decided before."""

    code: str
    detail: str
    recorded: dict[str, Any] | None = None


def objection(state: RunState, payload: CommandPayload) -> Objection | None:
    """Why this wish can have no effect any more; None where it may have one."""
    items: dict[str, State] = state.data["items"]
    match payload:
        case contract.ResolveApproval() | contract.RevokeApproval():
            found = _about_approval(items.get(f"approval:{payload.approval_id}"), payload)
        case contract.ProvideInput():
            found = _about_input(items.get(f"input:{payload.input_id}"))
        case contract.RetryTool():
            found = _about_retry(items, payload.tool_call_id)
        case contract.ReconcileTool():
            found = _about_reconciling(items.get(f"tool:{payload.tool_call_id}"))
        case _:
            found = None
    if found is None and state.is_terminal:
        return Objection(Code.RUN_TERMINAL, f"the run is {state.status}")
    return found


def _about_approval(
    item: State | None, payload: contract.ResolveApproval | contract.RevokeApproval
) -> Objection | None:
    if item is None:
        return None
    wanted = payload.expected_version if isinstance(payload, contract.ResolveApproval) else None
    known = item.get("version")
    if item["status"] != "waiting":
        if isinstance(wanted, int) and isinstance(known, int) and wanted > known:
            return None  # it was asked anew, and that has not come here yet
        names = ("approval_id", "decision", "decided_by", "version", "action_digest")
        recorded = {name: item[name] for name in names if item.get(name) is not None}
        return Objection(Code.ALREADY_RESOLVED, f"it was {item['status']}", recorded)
    if isinstance(wanted, int) and isinstance(known, int) and wanted < known:
        shown = {"approval_id": item["id"], "version": known, "action_digest": item.get("action_digest")}
        return Objection(Code.VERSION_CONFLICT, f"version {wanted} is void; it is at version {known}", shown)
    return None


def _about_input(item: State | None) -> Objection | None:
    if item is None or item["status"] == "waiting":
        return None
    return Objection(
        Code.ALREADY_RESOLVED, f"it was {item['status']}", {"input_id": item["id"], "decision": item["status"]}
    )


def _about_retry(items: dict[str, State], tool_call_id: str) -> Objection | None:
    for other in items.values():
        if other["kind"] == "tool" and other.get("retry_of") == tool_call_id:
            return Objection(Code.ALREADY_RETRIED, f"it was retried as {other['id']}", {"tool_call_id": other["id"]})
    item = items.get(f"tool:{tool_call_id}")
    if item is not None and item["status"] in {"completed", "cancelled"}:
        return Objection(Code.NOT_RETRYABLE, f"the call is {item['status']}")
    return None


def _about_reconciling(item: State | None) -> Objection | None:
    if item is None or item["status"] not in {"completed", "cancelled"}:
        return None
    if item.get("outcome") is not None:
        recorded = {"tool_call_id": item["id"], "outcome": item["outcome"], "by": item.get("by")}
        return Objection(Code.ALREADY_RESOLVED, f"it was reconciled as {item['outcome']}", recorded)
    return Objection(Code.INVALID_STATE, f"the outcome of the call is known: it is {item['status']}")
