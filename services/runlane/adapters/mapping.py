"""What a mapping says: facts, fragments, and decisions that a recording holds.

A mapping is pure: it is fed one foreign message at a time and answers with statements. Whoever drives it (a live
process, a recording) gives the statements to a writer. A mapping never fails on a message it does not know: it
counts it in `ignored` and says nothing.
"""

import hashlib
import re
from collections import Counter
from typing import Any, Literal, Protocol

from msgspec import Struct

from runlane_contracts import events
from runlane_contracts.canonical import action_digest
from runlane_contracts.ids import is_id
from runlane_contracts.lifecycle import FactDraft, draft


class Fragment(Struct, frozen=True, kw_only=True):
    """A piece of text that the fact carrying `preview_id` will replace."""

    preview_id: str
    kind: Literal["message", "reasoning", "tool"]
    item_id: str
    text: str


class Decided(Struct, frozen=True, kw_only=True):
    """A decision found in a recording, to be given again as a command."""

    approval_id: str
    decision: Literal["approved", "rejected", "modified"]
    data: Any = None


Statement = FactDraft | Fragment | Decided
Message = dict[str, Any]


class Mapping(Protocol):
    """Foreign messages in, statements out. `ignored` counts what had no meaning, by kind."""

    ignored: Counter[str]

    def feed(self, message: Message) -> list[Statement]:
        """What one message says."""
        ...

    def finish(self, failure: str | None = None) -> list[Statement]:
        """How the run ends, now that no message will follow; `failure` says what the driver saw."""
        ...


def foreign_id(text: str, prefix: str = "") -> str:
    """An id of ours for an id of theirs: the same text where it may be one, else a readable form with a hash."""
    wanted = prefix + text
    if is_id(wanted):
        return wanted
    readable = re.sub(r"[^A-Za-z0-9_-]+", "_", wanted)[:40].strip("_")
    return f"{readable}_{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"


class ModelSaid(Struct, frozen=True):
    """Who wrote a message: what facts say of the model."""

    model: str | None = None
    provider: str | None = None

    @classmethod
    def of(cls, model: Any, provider: Any = None) -> "ModelSaid":
        """From what a framework says; what is no name says nothing."""
        return cls(_name(model), _PROVIDERS.get(str(provider).lower(), _name(provider)))

    @property
    def fields(self) -> dict[str, str | None]:
        """For the payload of a message."""
        return {"model": self.model, "provider": self.provider}


_PROVIDERS = {
    "google": "gcp.gemini", "google-gla": "gcp.gemini", "google-vertex": "gcp.vertex_ai", "vertex": "gcp.vertex_ai",
    "google-cloud": "gcp.vertex_ai", "bedrock": "aws.bedrock", "azure": "azure.ai.openai", "mistral": "mistral_ai",
    "grok": "x_ai", "xai": "x_ai", "firstparty": "anthropic", "foundry": "azure.ai.inference",
    "openai-chat": "openai", "openai-responses": "openai",
}  # fmt: skip
"""Names of frameworks, as OpenTelemetry has them (`gen_ai.provider.name`)."""


def _name(said: Any) -> str | None:
    return said[: events.MAX_MODEL_NAME] if isinstance(said, str) and said else None


def tool_requested(
    call_id: str, name: str, arguments: Any, side_effect: events.SideEffect, **envelope: Any
) -> FactDraft:
    """A tool call with the digest of exactly this action."""
    payload = events.ToolRequested(
        tool_call_id=call_id, name=name, arguments=arguments, attempt=1,
        action_digest=action_digest(name, arguments), side_effect=side_effect,
    )  # fmt: skip
    return draft(payload, **envelope)


class Ask(Struct, frozen=True, kw_only=True):
    """An approval to ask for."""

    approval_id: str
    tool_call_id: str
    name: str
    arguments: Any
    description: str
    editable: bool = False


def approvals_requested(*asks: Ask, risk: str = "unknown") -> list[Statement]:
    """Ask for decisions and wait: the questions and the waiting belong into one commit."""
    out: list[Statement] = [
        draft(events.ApprovalRequested(
            approval_id=ask.approval_id, tool_call_id=ask.tool_call_id, description=ask.description, risk=risk,
            data=ask.arguments, editable=ask.editable, version=1,
            action_digest=action_digest(ask.name, ask.arguments),
        ))
        for ask in asks
    ]  # fmt: skip
    waiting = tuple(events.WaitingFor(kind="approval", id=ask.approval_id) for ask in asks)
    out.append(draft(events.RunWaiting(on=waiting)))
    return out


def resumed(call_id: str | None) -> list[Statement]:
    """What follows a decision: the run goes on, and an allowed call runs."""
    out: list[Statement] = [draft(events.RunResumed())]
    if call_id is not None:
        out.append(draft(events.ToolRunning(tool_call_id=call_id)))
    return out


def run_failed(code: str, message: str) -> FactDraft:
    """The run ended badly."""
    return draft(events.RunFailed(error=events.Problem(code=code, message=message)))
