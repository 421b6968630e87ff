"""How to talk to an agent program over its stdio: pure reactions, one class per program.

A dialogue says what to send first, what to answer to each message, which message asks a person, and which message
ends it. It holds the mapping of the same program.
"""

from typing import Any, Protocol

from runlane.adapters import claude, codex
from runlane.adapters.mapping import Mapping, Message, foreign_id
from runlane_contracts import events

Approved = frozenset({"approved", "modified"})


class Dialogue(Protocol):
    """One program, one prompt."""

    mapping: Mapping

    def command(self, program: str, arguments: tuple[str, ...]) -> list[str]:
        """How the program is started."""
        ...

    def opening(self) -> list[Message]:
        """What to send first."""
        ...

    def react(self, message: Message) -> list[Message]:
        """What to send after a message, other than an answer by a person."""
        ...

    def asks(self, message: Message) -> str | None:
        """The approval a message asks for, if it does."""
        ...

    def answer(self, message: Message, decision: events.ApprovalResolved) -> Message:
        """The reply to a question. The mapping, fed with it, says what it means for the run."""
        ...

    def interrupt(self) -> list[Message]:
        """What to send when the run is cancelled."""
        ...

    def is_over(self, message: Message) -> bool:
        """Whether the program has said its last word."""
        ...


class ClaudeDialogue:
    """Claude Code: stream-json both ways, permissions over stdio."""

    def __init__(self, prompt: str) -> None:
        self.mapping: Mapping = claude.ClaudeMapping()
        self._prompt = prompt

    def command(self, program: str, arguments: tuple[str, ...]) -> list[str]:
        return [
            program, "-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose",
            "--include-partial-messages", "--replay-user-messages", "--permission-prompt-tool", "stdio", *arguments,
        ]  # fmt: skip

    def opening(self) -> list[Message]:
        return [
            {"type": "control_request", "request_id": "rl-1", "request": {"subtype": "initialize", "hooks": {}}},
            {"type": "user", "message": {"role": "user", "content": self._prompt}, "parent_tool_use_id": None,
             "session_id": "default"},
        ]  # fmt: skip

    def react(self, message: Message) -> list[Message]:
        if message.get("type") != "control_request" or self.asks(message) is not None:
            return []
        refusal = {"subtype": "error", "request_id": message["request_id"], "error": "not supported by this bridge"}
        return [{"type": "control_response", "response": refusal}]

    def asks(self, message: Message) -> str | None:
        if message.get("type") == "control_request" and message["request"].get("subtype") == "can_use_tool":
            return claude.approval_id(message["request_id"])
        return None

    def answer(self, message: Message, decision: events.ApprovalResolved) -> Message:
        request = message["request"]
        allowed = decision.decision in Approved
        answer: dict[str, Any]
        if allowed:
            edited = decision.data if decision.decision == "modified" else None
            answer = {"behavior": "allow", "updatedInput": edited if edited is not None else request.get("input", {})}
        else:
            answer = {"behavior": "deny", "message": decision.reason or f"{decision.decision} by {decision.decided_by}"}
        reply = {"subtype": "success", "request_id": message["request_id"], "response": answer}
        return {"type": "control_response", "response": reply}

    def interrupt(self) -> list[Message]:
        return [{"type": "control_request", "request_id": "rl-stop", "request": {"subtype": "interrupt"}}]

    def is_over(self, message: Message) -> bool:
        return message.get("type") == "result"


class CodexDialogue:
    """Codex `app-server`: initialize, start a thread, start a turn, answer its requests."""

    _INITIALIZE, _THREAD, _TURN, _STOP = 1, 2, 3, 4

    def __init__(self, prompt: str, *, cwd: str, model: str | None = None, approval_policy: str = "untrusted") -> None:
        self.mapping: Mapping = codex.CodexMapping()
        self._prompt, self._cwd, self._model, self._policy = prompt, cwd, model, approval_policy
        self._thread_id = self._turn_id = ""
        self._failed = False

    def command(self, program: str, arguments: tuple[str, ...]) -> list[str]:
        return [program, "app-server", *arguments]

    def opening(self) -> list[Message]:
        client = {"name": "runlane", "title": "Runlane", "version": "0.1.0"}
        return [{"id": self._INITIALIZE, "method": "initialize", "params": {"clientInfo": client}}]

    def react(self, message: Message) -> list[Message]:
        if "method" in message:
            return self._refuse(message)
        if "error" in message:
            self._failed = True
            return []
        match message.get("id"):
            case self._INITIALIZE:
                return [{"method": "initialized"}, self._start_thread()]
            case self._THREAD:
                self._thread_id = message["result"]["thread"]["id"]
                text = [{"type": "text", "text": self._prompt}]
                return [
                    {"id": self._TURN, "method": "turn/start", "params": {"threadId": self._thread_id, "input": text}}
                ]
            case self._TURN:
                self._turn_id = message["result"]["turn"]["id"]
                return []
            case _:
                return []

    def asks(self, message: Message) -> str | None:
        if "id" in message and str(message.get("method", "")).endswith("requestApproval"):
            return codex.approval_id(foreign_id(message["params"]["itemId"]), message["id"])
        return None

    def answer(self, message: Message, decision: events.ApprovalResolved) -> Message:
        allowed = decision.decision in Approved
        return {"id": message["id"], "result": {"decision": "accept" if allowed else "decline"}}

    def interrupt(self) -> list[Message]:
        if not self._turn_id:
            return []
        params = {"threadId": self._thread_id, "turnId": self._turn_id}
        return [{"id": self._STOP, "method": "turn/interrupt", "params": params}]

    def is_over(self, message: Message) -> bool:
        return self._failed or message.get("method") == "turn/completed"

    def _start_thread(self) -> Message:
        params: dict[str, Any] = {"cwd": self._cwd, "approvalPolicy": self._policy, "sandbox": "workspace-write"}
        if self._model:
            params["model"] = self._model
        return {"id": self._THREAD, "method": "thread/start", "params": params}

    def _refuse(self, message: Message) -> list[Message]:
        if "id" not in message or self.asks(message) is not None:
            return []
        return [{"id": message["id"], "error": {"code": -32601, "message": "not supported by this bridge"}}]
