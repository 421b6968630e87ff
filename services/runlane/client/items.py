"""Items that take time, as context managers: shown while they grow, one fact when they end."""

import asyncio
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec

from runlane.client.errors import AlreadyRan, LeaseLost, RunCancelled
from runlane_contracts import events
from runlane_contracts.canonical import action_digest
from runlane_contracts.events import Payload, Problem
from runlane_contracts.previews import Operation


class ItemWriter(Protocol):
    """What an item needs of its writer."""

    async def append(self, *facts: Payload) -> Any:
        """Durable when this returns."""
        ...

    def publish_preview(
        self, kind: str, id: str, data: Any = None, *, preview_id: str, operation: Operation = "append",  # noqa: A002
        abandoned: bool = False,
    ) -> None:  # fmt: skip
        """May vanish."""
        ...


Item = dict[str, Any]
"""An item of the run's state, as an earlier attempt left it."""


class _InProgress(ABC):
    """An item between its first and its last fact. Leaving by an exception ends it as failed or cancelled.

    What an earlier attempt wrote of it is not written again: `done` says that it is over, and that what happens in
    the block counts for nothing.
    """

    def __init__(self, writer: ItemWriter, kind: str, id_: str, preview_id: str, known: Item | None) -> None:
        self.id = id_
        self.done = known is not None and known["status"] in {"completed", "failed", "cancelled"}
        self._known = known
        self.preview_id = preview_id
        self._writer = writer
        self._kind = kind
        self._shown = False
        self._ended = False

    def preview(self, data: Any, *, operation: Operation = "append") -> None:
        """Show a fragment. It may vanish; nobody waits."""
        if self.done:
            return
        self._shown = True
        self._writer.publish_preview(self._kind, self.id, data, preview_id=self.preview_id, operation=operation)

    async def __aenter__(self) -> Self:
        if not self.done and (opening := self._opening()):
            await self._writer.append(*opening)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.done or self._ended or isinstance(exc, LeaseLost):
            return
        if exc is None:
            await self._end(self._completed())
            return
        if self._shown:
            self._writer.publish_preview(self._kind, self.id, preview_id=self.preview_id, abandoned=True)
        if isinstance(exc, RunCancelled | asyncio.CancelledError | GeneratorExit):
            if isinstance(exc, RunCancelled):
                await self._end(self._cancelled(str(exc)))
            return  # cancelled from outside: no more waiting; the run's end closes the item
        await self._end(self._failed(Problem(code=type(exc).__name__, message=str(exc)[:2000])))

    async def _end(self, fact: Payload) -> None:
        self._ended = True
        await self._writer.append(fact)

    @property
    def _committed_preview(self) -> str | None:
        return self.preview_id if self._shown else None

    @abstractmethod
    def _opening(self) -> tuple[Payload, ...]: ...

    @abstractmethod
    def _completed(self) -> Payload: ...

    @abstractmethod
    def _failed(self, error: Problem) -> Payload: ...

    @abstractmethod
    def _cancelled(self, reason: str) -> Payload: ...


class MessageInProgress(_InProgress):
    """A message. Its final content is what `complete` was given, else the previewed text, joined."""

    def __init__(
        self,
        writer: ItemWriter,
        message_id: str,
        preview_id: str,
        role: str,
        *,
        model: str | None = None,
        provider: str | None = None,
        known: Item | None = None,
    ) -> None:
        super().__init__(writer, "message", message_id, preview_id, known)
        self._role, self._model, self._provider = role, model, provider
        self._parts: list[str] = []
        self._content: Any = None

    @property
    def content(self) -> Any:
        """What it says: of one that is `done`, what the log holds."""
        if self.done and self._known is not None:
            return self._known.get("content")
        return "".join(self._parts) if self._content is None else self._content

    def preview(self, data: Any, *, operation: Operation = "append") -> None:
        """Show a fragment, and remember appended text for the final content."""
        if operation == "append" and isinstance(data, str):
            self._parts.append(data)
        super().preview(data, operation=operation)

    def complete(self, content: Any, *, model: str | None = None) -> None:
        """Set the final content; it replaces what was previewed. `model`: which one answered, if not the one asked."""
        self._content, self._model = content, model or self._model

    def _opening(self) -> tuple[Payload, ...]:
        if self._known is not None:
            return ()
        asked = events.MessageStarted(message_id=self.id, role=self._role, model=self._model, provider=self._provider)
        return (asked,)

    def _completed(self) -> Payload:
        return events.MessageCompleted(
            message_id=self.id, role=self._role, content=self.content, preview_id=self._committed_preview,
            model=self._model, provider=self._provider,
        )  # fmt: skip

    def _failed(self, error: Problem) -> Payload:
        return events.MessageFailed(message_id=self.id, error=error)

    def _cancelled(self, reason: str) -> Payload:
        return events.MessageCancelled(message_id=self.id, reason=reason)


class ReasoningInProgress(_InProgress):
    """Reasoning. Its final content is what `complete` was given, else the previewed text, joined."""

    def __init__(self, writer: ItemWriter, reasoning_id: str, preview_id: str, *, known: Item | None = None) -> None:
        super().__init__(writer, "reasoning", reasoning_id, preview_id, known)
        self._parts: list[str] = []
        self._content: Any = None
        self._summary: Any = None

    def preview(self, data: Any, *, operation: Operation = "append") -> None:
        """Show a fragment, and remember appended text for the final content."""
        if operation == "append" and isinstance(data, str):
            self._parts.append(data)
        super().preview(data, operation=operation)

    def complete(self, content: Any = None, *, summary: Any = None) -> None:
        """Set the final content and summary; they replace what was previewed."""
        self._content, self._summary = content, summary

    def _opening(self) -> tuple[Payload, ...]:
        return () if self._known is not None else (events.ReasoningStarted(reasoning_id=self.id),)

    def _completed(self) -> Payload:
        content = self._content
        if content is None and self._summary is None:
            content = "".join(self._parts)
        return events.ReasoningCompleted(
            reasoning_id=self.id, content=content, summary=self._summary, preview_id=self._committed_preview
        )

    def _failed(self, error: Problem) -> Payload:
        return events.ReasoningFailed(reasoning_id=self.id, error=error)

    def _cancelled(self, reason: str) -> Payload:
        return events.ReasoningCancelled(reasoning_id=self.id, reason=reason)


class ToolInProgress(_InProgress):
    """A tool call. `complete` sets its result; `outcome_unknown` says that nobody knows what it did."""

    def __init__(
        self, writer: ItemWriter, request: events.ToolRequested, preview_id: str, *, known: Item | None = None
    ) -> None:
        super().__init__(writer, "tool", request.tool_call_id, preview_id, known)
        self.name = request.name
        self.arguments = request.arguments
        self.operation_id = request.operation_id or request.tool_call_id
        """The same whenever this call runs: give it to whatever can tell a repetition by it."""
        self.action_digest = request.action_digest or action_digest(request.name, request.arguments)
        self._request = request
        self._result: Any = None
        self._content_ref: events.ContentRef | None = None

    @property
    def result(self) -> Any:
        """What it gave, or where a large result lies: of one that is `done`, what the log holds."""
        if self.done and self._known is not None:
            return self._known.get("result", self._known.get("content_ref"))
        return self._result if self._content_ref is None else self._content_ref

    def complete(self, result: Any = None, *, content_ref: events.ContentRef | None = None) -> None:
        """Set the result, or where a large one lies."""
        self._result, self._content_ref = result, content_ref

    async def finish(self) -> None:
        """Write the outcome now, and not at the end of the block."""
        await self._writer.append(self._completed())
        self._ended = True

    async def failed(self, code: str, message: str = "", *, retryable: bool = False) -> None:
        """End the call as failed; `retryable` lets people try it again."""
        if not self.done:
            await self._end(self._failed(Problem(code=code, message=message, retryable=retryable)))

    async def failed_by(self, problem: Problem, exc: Exception) -> bool:
        """End the call after an exception; false if it may have taken effect all the same."""
        if self._request.side_effect == "unsafe" and type(exc).__name__ in _NO_ANSWER:
            await self.outcome_unknown(self.operation_id)
            return False
        await self._end(events.ToolFailed(tool_call_id=self.id, error=problem))
        return True

    async def outcome_unknown(self, operation_id: str) -> None:
        """Say that the call may or may not have taken effect; a person reconciles it."""
        await self._end(events.ToolOutcomeUnknown(tool_call_id=self.id, operation_id=operation_id))

    async def __aenter__(self) -> Self:
        began = self._known is not None and self._known["status"] != "requested"
        if began and self._request.side_effect == "unsafe":
            raise AlreadyRan(f"unsafe call {self.id} of {self.name!r} began before, and its block cannot be skipped")
        return await super().__aenter__()

    def _opening(self) -> tuple[Payload, ...]:
        asked, running = self._request, events.ToolRunning(tool_call_id=self.id)
        if self._known is not None:
            return (running,)
        return (msgspec.structs.replace(asked, action_digest=self.action_digest), running)

    def _completed(self) -> Payload:
        return events.ToolCompleted(
            tool_call_id=self.id, result=self._result, content_ref=self._content_ref,
            preview_id=self._committed_preview,
        )  # fmt: skip

    def _failed(self, error: Problem) -> Payload:
        if self._request.side_effect == "unsafe" and error.code in _NO_ANSWER:
            return events.ToolOutcomeUnknown(tool_call_id=self.id, operation_id=self.operation_id)
        return events.ToolFailed(tool_call_id=self.id, error=error)

    def _cancelled(self, reason: str) -> Payload:
        return events.ToolCancelled(tool_call_id=self.id, reason=reason)


_NO_ANSWER = frozenset({
    "TimeoutError", "Unreachable", "ReadTimeout", "WriteTimeout", "ReadError", "WriteError", "RemoteProtocolError",
    "ConnectionResetError", "BrokenPipeError",
})  # fmt: skip
"""Exceptions after which an unsafe call may well have taken effect."""
