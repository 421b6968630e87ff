"""Codex `app-server` (JSON-RPC over stdio): notifications and approval requests to statements."""

from collections import Counter
from typing import Any

from runlane.adapters.mapping import (
    Ask,
    Decided,
    Fragment,
    Message,
    ModelSaid,
    Statement,
    approvals_requested,
    foreign_id,
    resumed,
    run_failed,
    tool_requested,
)
from runlane_contracts import events
from runlane_contracts.lifecycle import draft

_ACCEPTING = frozenset({"accept", "acceptForSession", "acceptWithExecpolicyAmendment"})
_TOOL_ITEMS = frozenset({"commandExecution", "fileChange", "mcpToolCall", "webSearch", "dynamicToolCall"})
_TEXT_DELTAS = {
    "item/agentMessage/delta": "message",
    "item/reasoning/textDelta": "reasoning",
    "item/reasoning/summaryTextDelta": "reasoning",
    "item/commandExecution/outputDelta": "tool",
}


class CodexMapping:
    """Pure; one run. Feed it both directions of a recording, or what a live process writes."""

    def __init__(self) -> None:
        self.ignored: Counter[str] = Counter()
        self._asked: dict[Any, tuple[str, str]] = {}  # their request id → (approval id, tool call id)
        self._said_by = ModelSaid()
        self._usage: Message | None = None
        self._turn_status = ""
        self._error = ""
        self._last_text = ""

    def feed(self, message: Message) -> list[Statement]:  # noqa: C901, PLR0911, PLR0912 - one line a message kind
        """What one message says."""
        method = message.get("method")
        if method is None:
            return self._response(message)
        params = message.get("params") or {}
        if method in _TEXT_DELTAS:
            return _fragment(_TEXT_DELTAS[method], params)
        if method.endswith("requestApproval"):
            return self._approval(message["id"], method, params)
        match method:
            case "thread/started":
                self._said_by = _model_of(params.get("thread"))
                return []
            case "turn/started":
                return [draft(events.TurnStarted(turn_id=foreign_id(params["turn"]["id"])))]
            case "turn/completed":
                return self._turn_completed(params["turn"])
            case "item/started":
                return self._item_started(params["item"])
            case "item/completed":
                return self._item_completed(params["item"])
            case "turn/plan/updated":
                return [draft(events.PlanUpdated(version=1, steps=params.get("plan", [])))]
            case "thread/tokenUsage/updated":
                self._usage = params["tokenUsage"]["total"]
                return []
            case "error":
                self._error = str((params.get("error") or {}).get("message", params))
                return []
            case _:
                self.ignored[method] += 1
                return []

    def finish(self, failure: str | None = None) -> list[Statement]:
        """End of file is not success: without a completed turn the run failed."""
        if self._turn_status == "completed":
            return [draft(events.RunCompleted(output={"text": self._last_text}, usage=self._usage))]
        if self._turn_status == "interrupted":
            return [draft(events.RunCancelled(reason="the turn was interrupted"))]
        code = "turn_failed" if self._turn_status else "agent_ended"
        return [run_failed(code, self._error or failure or "the agent ended without completing its turn")]

    # -- turns and items ------------------------------------------------------------------------------------

    def _turn_completed(self, turn: Message) -> list[Statement]:
        self._turn_status = str(turn.get("status"))
        if turn.get("error"):
            self._error = str(turn["error"].get("message", turn["error"]))
        return [draft(events.TurnCompleted(turn_id=foreign_id(turn["id"]), usage=self._usage))]

    def _item_started(self, item: Message) -> list[Statement]:
        item_id = foreign_id(item["id"])
        kind = item.get("type")
        if kind == "agentMessage":
            return [draft(events.MessageStarted(message_id=item_id, role="assistant", **self._said_by.fields))]
        if kind == "reasoning":
            return [draft(events.ReasoningStarted(reasoning_id=item_id))]
        if kind in _TOOL_ITEMS:
            return [tool_requested(item_id, *_action(item), "unsafe")]
        return []

    def _item_completed(self, item: Message) -> list[Statement]:
        item_id = foreign_id(item["id"])
        kind = item.get("type")
        if kind == "userMessage":
            text = "\n".join(part.get("text", "") for part in item.get("content", []) if part.get("type") == "text")
            return [draft(events.MessageCompleted(message_id=item_id, role="user", content=text))]
        if kind == "agentMessage":
            self._last_text = item.get("text", "")
            return [draft(events.MessageCompleted(
                message_id=item_id, role="assistant", content=self._last_text, preview_id=_preview_id(item_id),
                **self._said_by.fields,
            ))]  # fmt: skip
        if kind == "reasoning":
            return [draft(events.ReasoningCompleted(
                reasoning_id=item_id, content="\n".join(item.get("content") or []),
                summary="\n".join(item.get("summary") or []), preview_id=_preview_id(item_id),
            ))]  # fmt: skip
        if kind in _TOOL_ITEMS:
            return [_tool_ended(item_id, item)]
        self.ignored[f"item {kind}"] += 1
        return []

    # -- approvals ------------------------------------------------------------------------------------------

    def _approval(self, request_id: Any, method: str, params: Message) -> list[Statement]:
        call_id = foreign_id(params["itemId"])
        ask = Ask(
            approval_id=approval_id(call_id, request_id), tool_call_id=call_id,
            name="shell" if "command" in params else method.split("/")[1],
            arguments=_shown(params), description=str(params.get("reason") or params.get("command") or method),
        )  # fmt: skip
        self._asked[request_id] = (ask.approval_id, call_id)
        return approvals_requested(ask)

    def _response(self, message: Message) -> list[Statement]:
        """A decision on its way in (in a recording)."""
        asked = self._asked.pop(message.get("id"), None) if "result" in message else None
        if asked is None:
            return []
        decision = message["result"].get("decision")
        name = next(iter(decision)) if isinstance(decision, dict) else decision
        allowed = name in _ACCEPTING
        return [
            Decided(approval_id=asked[0], decision="approved" if allowed else "rejected"),
            *resumed(asked[1] if allowed else None),
        ]


def approval_id(call_id: str, request_id: Any) -> str:
    """The approval that stands for one server request about one item."""
    return foreign_id(f"apr_{call_id}_{request_id}")


def _model_of(thread: Any) -> ModelSaid:
    return ModelSaid.of(thread.get("model"), thread.get("modelProvider")) if isinstance(thread, dict) else ModelSaid()


def _preview_id(item_id: str) -> str:
    return foreign_id(item_id, "pvw_")


def _fragment(kind: Any, params: Message) -> list[Statement]:
    item_id = foreign_id(params["itemId"])
    text = params.get("delta") or ""
    return [Fragment(preview_id=_preview_id(item_id), kind=kind, item_id=item_id, text=text)] if text else []


def _shown(params: Message) -> Message:
    return {key: params[key] for key in ("command", "cwd", "changes", "grantRoot") if params.get(key) is not None}


def _action(item: Message) -> tuple[str, Any]:
    match item["type"]:
        case "commandExecution":
            return "shell", {"command": item.get("command"), "cwd": item.get("cwd")}
        case "fileChange":
            return "apply_patch", {"changes": item.get("changes", [])}
        case "mcpToolCall":
            return f"{item.get('server')}/{item.get('tool')}", item.get("arguments") or {}
        case "webSearch":
            return "web_search", {"query": item.get("query")}
        case _:
            return str(item.get("tool") or item["type"]), item.get("arguments") or {}


def _tool_ended(item_id: str, item: Message) -> Statement:
    status = item.get("status", "completed")
    if status == "declined":
        return draft(events.ToolCancelled(tool_call_id=item_id, reason="declined"))
    if status == "failed" or item.get("error"):
        detail = item.get("error") or item.get("aggregatedOutput") or status
        return draft(events.ToolFailed(
            tool_call_id=item_id, error=events.Problem(code="tool_error", message=str(detail)),
        ))  # fmt: skip
    return draft(events.ToolCompleted(tool_call_id=item_id, result=_result(item), preview_id=_preview_id(item_id)))


def _result(item: Message) -> Any:
    if item["type"] == "commandExecution":
        return {"output": item.get("aggregatedOutput"), "exit_code": item.get("exitCode")}
    return item.get("result") or item.get("changes") or {"status": item.get("status")}
