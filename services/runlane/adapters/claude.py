"""Claude Code, `--output-format stream-json --include-partial-messages`: messages to statements.

One content block is one item. The complete `assistant` message of a block arrives before the block's stop event and
is what becomes the fact; the deltas before it are the preview.
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
from runlane_contracts import events
from runlane_contracts.lifecycle import draft

_READ_ONLY_TOOLS = frozenset({"Read", "Glob", "Grep", "LS", "WebFetch", "WebSearch", "ToolSearch", "TodoRead"})


class ClaudeMapping:
    """Pure; one run. Feed it both directions of a recording, or what a live process writes."""

    def __init__(self) -> None:
        self.ignored: Counter[str] = Counter()
        self._message = ""
        self._model: Any = None
        self._provider: Any = "anthropic"
        self._blocks: Counter[str] = Counter()  # complete blocks seen per API message
        self._streaming: dict[int, tuple[str, str]] = {}  # block index → (kind, item id)
        self._asked: dict[str, str] = {}  # their request id → tool use id
        self._turn = ""
        self._result: Message | None = None

    def feed(self, message: Message) -> list[Statement]:
        """What one message says."""
        handler = getattr(self, "_on_" + str(message.get("type")).replace("-", "_"), None)
        if handler is None:
            self.ignored[str(message.get("type"))] += 1
            return []
        out: list[Statement] = handler(message)
        return out

    def finish(self, failure: str | None = None) -> list[Statement]:
        """End of file is not success: without a result the run failed."""
        result = self._result
        if result is None:
            return [run_failed("agent_ended", failure or "the agent ended without a result")]
        if result.get("is_error"):
            text = str(result.get("result") or result.get("errors") or result.get("subtype"))
            return [run_failed(str(result.get("subtype", "error")), text)]
        usage = {"tokens": result.get("usage"), "cost_usd": result.get("total_cost_usd")}
        return [draft(events.RunCompleted(output={"text": result.get("result", "")}, usage=usage))]

    # -- user and assistant ---------------------------------------------------------------------------------

    def _on_user(self, message: Message) -> list[Statement]:
        content = message["message"].get("content")
        if isinstance(content, str):
            return self._prompt(message, content)
        return [_tool_result(block) for block in content or [] if block.get("type") == "tool_result"]

    def _prompt(self, message: Message, content: str) -> list[Statement]:
        if "uuid" not in message:  # ours, on its way in; the agent repeats it with an id
            return []
        self._turn = foreign_id(message["uuid"], "turn_")
        said = events.MessageCompleted(message_id=foreign_id(message["uuid"], "msg_"), role="user", content=content)
        return [draft(events.TurnStarted(turn_id=self._turn)), draft(said)]

    def _on_assistant(self, message: Message) -> list[Statement]:
        body = message["message"]
        parent = message.get("parent_tool_use_id")
        scope = {"parent_id": foreign_id(parent)} if parent else {}
        out: list[Statement] = []
        for block in body.get("content", []):
            item_id = _block_id(body["id"], self._blocks[body["id"]])
            self._blocks[body["id"]] += 1
            out += self._complete_block(block, item_id, ModelSaid.of(body.get("model"), self._provider), scope)
        return out

    def _complete_block(
        self, block: Message, item_id: str, said_by: ModelSaid, scope: dict[str, Any]
    ) -> list[Statement]:
        match block.get("type"):
            case "text":
                return [draft(events.MessageCompleted(
                    message_id=item_id, role="assistant", content=block["text"], preview_id=_preview_id(item_id),
                    **said_by.fields,
                ), **scope)]  # fmt: skip
            case "thinking":
                return [draft(events.ReasoningCompleted(
                    reasoning_id=item_id, content=block.get("thinking", ""), preview_id=_preview_id(item_id),
                ), **scope)]  # fmt: skip
            case "tool_use":
                effect: events.SideEffect = "none" if block["name"] in _READ_ONLY_TOOLS else "unsafe"
                return [tool_requested(foreign_id(block["id"]), block["name"], block.get("input", {}), effect, **scope)]
            case other:
                self.ignored[f"block {other}"] += 1
                return []

    # -- partial messages -----------------------------------------------------------------------------------

    def _on_stream_event(self, message: Message) -> list[Statement]:
        event = message["event"]
        match event.get("type"):
            case "message_start":
                self._message, self._model = event["message"]["id"], event["message"].get("model")
                self._streaming.clear()
                return []
            case "content_block_start":
                return self._block_started(event)
            case "content_block_delta":
                return self._block_delta(event)
            case _:
                return []

    def _block_started(self, event: Message) -> list[Statement]:
        item_id = _block_id(self._message, event["index"])
        match event["content_block"].get("type"):
            case "text":
                self._streaming[event["index"]] = ("message", item_id)
                said_by = ModelSaid.of(self._model, self._provider).fields
                return [draft(events.MessageStarted(message_id=item_id, role="assistant", **said_by))]
            case "thinking":
                self._streaming[event["index"]] = ("reasoning", item_id)
                return [draft(events.ReasoningStarted(reasoning_id=item_id))]
            case _:
                return []

    def _block_delta(self, event: Message) -> list[Statement]:
        kind, item_id = self._streaming.get(event["index"], ("", ""))
        delta = event["delta"]
        text = delta.get("text") or delta.get("thinking")
        if not text or kind not in {"message", "reasoning"}:
            return []
        return [Fragment(preview_id=_preview_id(item_id), kind=kind, item_id=item_id, text=text)]  # type: ignore[arg-type]

    # -- permission -----------------------------------------------------------------------------------------

    def _on_control_request(self, message: Message) -> list[Statement]:
        request = message["request"]
        if request.get("subtype") != "can_use_tool":
            self.ignored[f"control {request.get('subtype')}"] += 1
            return []
        call_id = foreign_id(request.get("tool_use_id") or message["request_id"])
        self._asked[message["request_id"]] = call_id
        return approvals_requested(Ask(
            approval_id=approval_id(message["request_id"]), tool_call_id=call_id, name=request["tool_name"],
            arguments=request.get("input", {}), editable=True,
            description=request.get("description") or f"run {request['tool_name']}",
        ))  # fmt: skip

    def _on_control_response(self, message: Message) -> list[Statement]:
        """A decision on its way in (in a recording), or what the agent says of itself; its echo says nothing new."""
        response = message["response"]
        call_id = self._asked.pop(response.get("request_id", ""), None)
        answer = response.get("response")
        account = answer.get("account") if isinstance(answer, dict) else None
        if isinstance(account, dict):
            self._provider = account.get("apiProvider") or self._provider
        if call_id is None or not isinstance(answer, dict):
            return []
        allowed = answer.get("behavior") == "allow"
        asked = approval_id(response["request_id"])
        decided = Decided(approval_id=asked, decision="approved" if allowed else "rejected")
        return [decided, *resumed(call_id if allowed else None)]

    # -- the rest -------------------------------------------------------------------------------------------

    def _on_result(self, message: Message) -> list[Statement]:
        self._result = message
        if not self._turn:
            return []
        return [draft(events.TurnCompleted(turn_id=self._turn, usage=message.get("usage")))]

    def _on_system(self, message: Message) -> list[Statement]:
        if message.get("subtype") not in {"init", "status"}:
            self.ignored[f"system {message.get('subtype')}"] += 1
        return []


def approval_id(request_id: str) -> str:
    """The approval that stands for a permission request."""
    return foreign_id(request_id, "apr_")


def _block_id(message_id: str, index: int) -> str:
    return foreign_id(f"{message_id}_{index}")


def _preview_id(item_id: str) -> str:
    return foreign_id(item_id, "pvw_")


def _tool_result(block: Message) -> Statement:
    call_id = foreign_id(block["tool_use_id"])
    content = block.get("content")
    if block.get("is_error"):
        return draft(events.ToolFailed(
            tool_call_id=call_id, error=events.Problem(code="tool_error", message=_as_text(content)),
        ))  # fmt: skip
    return draft(events.ToolCompleted(tool_call_id=call_id, result=content))


def _as_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content or [] if isinstance(part, dict))
