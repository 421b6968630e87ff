"""Writes down what a mapping says: facts in commits, fragments as previews; and listens for what people decide.

The scribe is the one place where statements meet a run. It numbers fragments, keeps consecutive facts in one commit,
and follows the run's own log, which is the only channel a decision or a cancellation comes by.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol, Self

import msgspec

from runlane.adapters.mapping import Decided, Fragment, Statement
from runlane.client import Fact, RunReader, RunWriter
from runlane.client.transports.ports import ReaderTransport
from runlane_contracts import events
from runlane_contracts.lifecycle import FactDraft


class Sink(Protocol):
    """A run that is held for writing, and what is written to it, also by others."""

    async def append(self, *facts: FactDraft) -> Any:
        """Durable when it returns; raises when the lease was lost."""
        ...

    def publish_preview(self, kind: str, id: str, data: Any = None, *, preview_id: str) -> None:  # noqa: A002
        """May vanish; nobody waits."""
        ...

    def facts(self) -> AsyncIterator[Fact]:
        """The run's facts from the start, then live."""
        ...


class RunSink:
    """A `RunWriter`, with the run's own log read over `transport`."""

    def __init__(self, writer: RunWriter, transport: ReaderTransport) -> None:
        self._writer, self._transport = writer, transport

    async def append(self, *facts: FactDraft) -> None:
        await self._writer.append(*facts)

    def publish_preview(self, kind: str, id: str, data: Any = None, *, preview_id: str) -> None:  # noqa: A002
        self._writer.publish_preview(kind, id, data, preview_id=preview_id)

    async def facts(self) -> AsyncIterator[Fact]:
        async with RunReader(self._transport, self._writer.run_id, from_="start", previews=False) as reader:
            async for item in reader:
                if isinstance(item, Fact):
                    yield item


class Scribe:
    """`async with Scribe(sink) as scribe`: say statements, await decisions, notice a cancellation."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._decisions: dict[str, events.ApprovalResolved] = {}
        self._changed = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self.cancel_requested = asyncio.Event()
        self.ended_as: str | None = None
        """The terminal fact that was said, by its type."""

    async def __aenter__(self) -> Self:
        self._following = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    async def say(self, statements: Sequence[Statement]) -> list[Decided]:
        """Write statements in order; returns the decisions among them, which are not the scribe's to make."""
        pending: list[FactDraft] = []
        decided: list[Decided] = []
        for one in statements:
            match one:
                case FactDraft():
                    pending.append(one)
                case Fragment():
                    await self._write(pending)
                    self._sink.publish_preview(one.kind, one.item_id, one.text, preview_id=one.preview_id)
                case Decided():
                    await self._write(pending)
                    decided.append(one)
        await self._write(pending)
        return decided

    async def decision(self, approval_id: str) -> events.ApprovalResolved:
        """What was decided, as soon as it is in the log."""
        while approval_id not in self._decisions:
            if self._lost is not None:
                raise self._lost
            await self._changed.wait()
        return self._decisions[approval_id]

    @property
    def _lost(self) -> BaseException | None:
        """Why the run's log can no longer be followed, if so."""
        task = self._following
        if task is None or not task.done() or task.cancelled():
            return None
        return task.exception() or ConnectionError("the run's log ended")

    async def _write(self, pending: list[FactDraft]) -> None:
        if pending:
            await self._sink.append(*pending)
            self.ended_as = next((one.type for one in pending if one.type in events.TERMINAL_RUN), self.ended_as)
            pending.clear()

    async def _follow(self) -> None:
        try:
            async for fact in self._sink.facts():
                self._notice(fact)
                self._wake()
        finally:
            self._wake()

    def _notice(self, fact: Fact) -> None:
        if fact.type == "approval.resolved":
            resolved = msgspec.json.decode(fact.payload, type=events.ApprovalResolved)
            self._decisions.setdefault(resolved.approval_id, resolved)
        elif fact.type == "run.cancel_requested":
            self.cancel_requested.set()

    def _wake(self) -> None:
        woken, self._changed = self._changed, asyncio.Event()
        woken.set()
