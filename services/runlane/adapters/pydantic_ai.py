"""Pydantic AI: `AgentStreamEvent`s (as plain JSON) to statements. One model response is one step.

A tool that needs approval ends the first run of the agent with deferred requests; the second run, with the decisions,
repeats the call's event. Both are one run here.
"""

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
from runlane_contracts import codec, events
from runlane_contracts.lifecycle import draft


class PydanticAIMapping:
    """Pure; one run. `said_by`: the agent's model, which no event names."""

    def __init__(self, said_by: ModelSaid | None = None) -> None:
        self.ignored: Counter[str] = Counter()
        self._said_by = (said_by or ModelSaid()).fields
        self._step = 0
        self._requested: set[str] = set()
        self._asked: set[str] = set()
        self._result: Message | None = None

    def feed(self, message: Message) -> list[Statement]:
        """What one event says."""
        match message.get("event_kind"):
            case "part_start":
                return self._part_start(message)
            case "part_delta":
                return self._part_delta(message)
            case "part_end":
                return self._part_end(message)
            case "function_tool_call" | "builtin_tool_call":
                return self._tool_call(message["part"])
            case "function_tool_result" | "builtin_tool_result":
                return [_tool_result(message.get("part") or message["result"])]
            case "deferred_tool_requests":
                return self._deferred(message["requests"])
            case "agent_run_result":
                return self._agent_result(message["result"])
            case other:
                self.ignored[str(other)] += 1
                return []

    def decided(self, approvals: dict[str, bool]) -> list[Statement]:
        """Decisions found in a recording; a tool call id stands for its approval."""
        out: list[Statement] = []
        for call_id, approved in approvals.items():
            self._asked.discard(call_id)
            out.append(Decided(approval_id=approval_id(call_id), decision="approved" if approved else "rejected"))
        return [*out, *resumed(None)]

    def finish(self, failure: str | None = None) -> list[Statement]:
        """Without a result the run failed."""
        if self._result is None:
            return [run_failed("agent_ended", failure or "the agent ended without a result")]
        return [draft(events.RunCompleted(output=self._result.get("output"), usage=_usage(self._result)))]

    # -- parts of a model response ----------------------------------------------------------------------------

    def _part_start(self, message: Message) -> list[Statement]:
        if message["index"] == 0 and message.get("previous_part_kind") is None:
            self._step += 1
        part = message["part"]
        item_id = self._item_id(message["index"])
        match part.get("part_kind"):
            case "text":
                started = draft(events.MessageStarted(message_id=item_id, role="assistant", **self._said_by))
                return [started, *_fragment("message", item_id, part.get("content"))]
            case "thinking":
                started = draft(events.ReasoningStarted(reasoning_id=item_id))
                return [started, *_fragment("reasoning", item_id, part.get("content"))]
            case _:
                return []  # a tool call is said when it is made

    def _part_delta(self, message: Message) -> list[Statement]:
        delta = message["delta"]
        kind = {"text": "message", "thinking": "reasoning"}.get(delta.get("part_delta_kind"))
        if kind is None:
            return []
        return _fragment(kind, self._item_id(message["index"]), delta.get("content_delta"))

    def _part_end(self, message: Message) -> list[Statement]:
        part = message["part"]
        item_id = self._item_id(message["index"])
        preview_id = _preview_id(item_id)
        match part.get("part_kind"):
            case "text":
                return [draft(events.MessageCompleted(
                    message_id=item_id, role="assistant", content=part["content"], preview_id=preview_id,
                    **self._said_by,
                ))]  # fmt: skip
            case "thinking":
                return [draft(events.ReasoningCompleted(
                    reasoning_id=item_id, content=part.get("content"), preview_id=preview_id,
                ))]  # fmt: skip
            case _:
                return []

    def _item_id(self, index: int) -> str:
        return f"msg_{self._step}_{index}"

    # -- tools and approvals ----------------------------------------------------------------------------------

    def _tool_call(self, part: Message) -> list[Statement]:
        call_id = foreign_id(part["tool_call_id"])
        if call_id in self._requested:  # approved, and now it runs
            return [draft(events.ToolRunning(tool_call_id=call_id))]
        self._requested.add(call_id)
        return [tool_requested(call_id, part["tool_name"], _arguments(part), "unsafe")]

    def _deferred(self, requests: Message) -> list[Statement]:
        asks = []
        for part in requests.get("approvals", []):
            call_id = foreign_id(part["tool_call_id"])
            if call_id in self._asked:
                continue
            self._asked.add(call_id)
            asks.append(Ask(
                approval_id=approval_id(call_id), tool_call_id=call_id, name=part["tool_name"],
                arguments=_arguments(part), description=f"run {part['tool_name']}", editable=True,
            ))  # fmt: skip
        return approvals_requested(*asks) if asks else []

    def _agent_result(self, result: Message) -> list[Statement]:
        output = result.get("output")
        if isinstance(output, dict) and {"calls", "approvals"} <= output.keys():
            return self._deferred(output)
        self._result = result
        return []


def approval_id(call_id: str) -> str:
    """The approval that stands for one deferred call."""
    return foreign_id(call_id, "apr_")


def _preview_id(item_id: str) -> str:
    return foreign_id(item_id, "pvw_")


def _fragment(kind: Any, item_id: str, text: str | None) -> list[Statement]:
    return [Fragment(preview_id=_preview_id(item_id), kind=kind, item_id=item_id, text=text)] if text else []


def _arguments(part: Message) -> Any:
    arguments = part.get("args")
    if not isinstance(arguments, str):
        return arguments or {}
    try:
        return codec.decode_json(arguments)
    except ValueError:
        return {"raw": arguments}  # the model wrote no JSON; the framework will ask it again


def _tool_result(part: Message) -> Statement:
    call_id = foreign_id(part["tool_call_id"])
    outcome = part.get("outcome", "success")
    if part.get("part_kind") == "retry-prompt" or outcome == "failed":
        return draft(events.ToolFailed(
            tool_call_id=call_id,
            error=events.Problem(code="tool_error", message=str(part.get("content")), retryable=True),
        ))  # fmt: skip
    if outcome == "denied":
        return draft(events.ToolCancelled(tool_call_id=call_id, reason=str(part.get("content"))))
    return draft(events.ToolCompleted(tool_call_id=call_id, result=part.get("content")))


def _usage(result: Message) -> Message | None:
    """Sum of the token counts over the model's responses."""
    state = result.get("_state") or {}
    totals: Counter[str] = Counter()
    for message in state.get("message_history", []):
        for name in ("input_tokens", "output_tokens"):
            totals[name] += (message.get("usage") or {}).get(name, 0)
    return dict(totals) or None
