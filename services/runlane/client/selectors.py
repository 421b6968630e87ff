"""Questions to a run's state. Pure; each answer is a plain JSON value out of the state, not a copy."""

from typing import Any

from runlane_contracts.reducer import OPEN_ITEM_STATUS, State, open_approvals

__all__ = [
    "approval", "artifacts", "item", "messages", "open_approvals", "open_inputs", "plan", "run", "running_runs",
    "running_tools", "timeline", "tool_call",
]  # fmt: skip


def run(state: State) -> dict[str, Any]:
    """The run itself: status, agent, input, output, owner."""
    found: dict[str, Any] = state["run"]
    return found


def item(state: State, kind: str, id_: str) -> dict[str, Any] | None:
    """One item, or None."""
    found: dict[str, Any] | None = state["items"].get(f"{kind}:{id_}")
    return found


def tool_call(state: State, tool_call_id: str) -> dict[str, Any] | None:
    """One tool call, or None."""
    return item(state, "tool", tool_call_id)


def approval(state: State, approval_id: str) -> dict[str, Any] | None:
    """One approval, or None."""
    return item(state, "approval", approval_id)


def plan(state: State) -> dict[str, Any] | None:
    """The newest plan, or None."""
    return item(state, "plan", "plan")


def timeline(state: State) -> list[dict[str, Any]]:
    """Every item, in the order in which they appeared."""
    return sorted(state["items"].values(), key=lambda one: one["first_sequence"])


def messages(state: State) -> list[dict[str, Any]]:
    """Every message, in order."""
    return _of_kind(state, "message")


def artifacts(state: State) -> list[dict[str, Any]]:
    """Every artifact, in order."""
    return _of_kind(state, "artifact")


def running_tools(state: State) -> list[dict[str, Any]]:
    """Tool calls that have not ended, in order."""
    return [one for one in _of_kind(state, "tool") if one["status"] in OPEN_ITEM_STATUS]


def open_inputs(state: State) -> list[dict[str, Any]]:
    """Questions to people that nobody answered yet, in order."""
    return [one for one in _of_kind(state, "input") if one["status"] == "waiting"]


def running_runs(listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of listed runs, those that are not over."""
    return [one for one in listed if one.get("status") not in ("completed", "failed", "cancelled")]


def _of_kind(state: State, kind: str) -> list[dict[str, Any]]:
    return [one for one in timeline(state) if one["kind"] == kind]
