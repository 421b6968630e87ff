"""Items that take time, as context managers: shown while they grow, one fact when they end."""

import asyncio
from types import TracebackType
from typing import Any, Protocol, Self

from runlane.client.errors import LeaseLost, RunCancelled
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


class _InProgress:
    """An item between its first and its last fact. Leaving by an exception ends it as failed or cancelled."""

    def __init__(self, writer: ItemWriter, kind: str, id_: str, preview_id: str) -> None:
        self.id = id_
        self.preview_id = preview_id
        self._writer = writer
        self._kind = kind
        self._shown = False
        self._ended = False

    def preview(self, data: Any, *, operation: Operation = "append") -> None:
        """Show a fragment. It may vanish; nobody waits."""
        self._shown = True
        self._writer.publish_preview(self._kind, self.id, data, preview_id=self.preview_id, operation=operation)

    async def __aenter__(self) -> Self:
        await self._writer.append(*self._opening())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ended or isinstance(exc, LeaseLost):
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

    def _opening(self) -> tuple[Payload, ...]:
        raise NotImplementedError

    def _completed(self) -> Payload:
        raise NotImplementedError

    def _failed(self, error: Problem) -> Payload:
        raise NotImplementedError

    def _cancelled(self, reason: str) -> Payload:
        raise NotImplementedError


class MessageInProgress(_InProgress):
    """A message. Its final content is what `complete` was given, else the previewed text, joined."""

    def __init__(self, writer: ItemWriter, message_id: str, preview_id: str, role: str) -> None:
        super().__init__(writer, "message", message_id, preview_id)
        self._role = role
        self._parts: list[str] = []
        self._content: Any = None

    def preview(self, data: Any, *, operation: Operation = "append") -> None:
        """Show a fragment, and remember appended text for the final content."""
        if operation == "append" and isinstance(data, str):
            self._parts.append(data)
        super().preview(data, operation=operation)

    def complete(self, content: Any) -> None:
        """Set the final content; it replaces what was previewed."""
        self._content = content

    def _opening(self) -> tuple[Payload, ...]:
        return (events.MessageStarted(message_id=self.id, role=self._role),)

    def _completed(self) -> Payload:
        content = "".join(self._parts) if self._content is None else self._content
        return events.MessageCompleted(
            message_id=self.id, role=self._role, content=content, preview_id=self._committed_preview
        )

    def _failed(self, error: Problem) -> Payload:
        return events.MessageFailed(message_id=self.id, error=error)

    def _cancelled(self, reason: str) -> Payload:
        return events.MessageCancelled(message_id=self.id, reason=reason)


class ReasoningInProgress(_InProgress):
    """Reasoning. Its final content is what `complete` was given, else the previewed text, joined."""

    def __init__(self, writer: ItemWriter, reasoning_id: str, preview_id: str) -> None:
        super().__init__(writer, "reasoning", reasoning_id, preview_id)
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
        return (events.ReasoningStarted(reasoning_id=self.id),)

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
        self, writer: ItemWriter, request: events.ToolRequested, preview_id: str, *, is_requested: bool = False
    ) -> None:
        super().__init__(writer, "tool", request.tool_call_id, preview_id)
        self.action_digest = request.action_digest or action_digest(request.name, request.arguments)
        self._request = request
        self._is_requested = is_requested
        self._result: Any = None
        self._content_ref: events.ContentRef | None = None

    def complete(self, result: Any = None, *, content_ref: events.ContentRef | None = None) -> None:
        """Set the result, or where a large one lies."""
        self._result, self._content_ref = result, content_ref

    async def failed(self, code: str, message: str = "", *, retryable: bool = False) -> None:
        """End the call as failed; `retryable` lets people try it again."""
        await self._end(self._failed(Problem(code=code, message=message, retryable=retryable)))

    async def outcome_unknown(self, operation_id: str) -> None:
        """Say that the call may or may not have taken effect; a person reconciles it."""
        await self._end(events.ToolOutcomeUnknown(tool_call_id=self.id, operation_id=operation_id))

    def _opening(self) -> tuple[Payload, ...]:
        asked, running = self._request, events.ToolRunning(tool_call_id=self.id)
        if self._is_requested:
            return (running,)
        return (
            events.ToolRequested(
                tool_call_id=asked.tool_call_id, name=asked.name, arguments=asked.arguments, attempt=asked.attempt,
                retry_of=asked.retry_of, action_digest=self.action_digest, side_effect=asked.side_effect,
                operation_id=asked.operation_id,
            ),
            running,
        )  # fmt: skip

    def _completed(self) -> Payload:
        return events.ToolCompleted(
            tool_call_id=self.id, result=self._result, content_ref=self._content_ref,
            preview_id=self._committed_preview,
        )  # fmt: skip

    def _failed(self, error: Problem) -> Payload:
        if self._request.side_effect == "unsafe" and error.code in _NO_ANSWER:
            return events.ToolOutcomeUnknown(tool_call_id=self.id, operation_id=self._request.operation_id or self.id)
        return events.ToolFailed(tool_call_id=self.id, error=error)

    def _cancelled(self, reason: str) -> Payload:
        return events.ToolCancelled(tool_call_id=self.id, reason=reason)


_NO_ANSWER = frozenset({"TimeoutError", "Unreachable", "ReadTimeout", "ConnectionResetError", "BrokenPipeError"})
"""Exceptions after which an unsafe call may well have taken effect."""
