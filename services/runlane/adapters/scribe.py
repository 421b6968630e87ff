"""Writes down what a mapping says: facts in commits, fragments as previews; and listens for what people decide.

The scribe is the one place where statements meet a run. It numbers fragments, keeps consecutive facts in one commit,
and follows the run's own log, which is the only channel a decision or a cancellation comes by.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from runlane.adapters.mapping import Decided, Fragment, Statement
from runlane_contracts import events
from runlane_contracts.envelope import Fact
from runlane_contracts.lifecycle import FactDraft
from runlane_contracts.previews import Preview, PreviewSubject


class Sink(Protocol):
    """A run that is held for writing."""

    async def append(self, drafts: Sequence[FactDraft]) -> None:
        """Durable when it returns; raises when the lease was lost."""
        ...

    def publish_preview(self, preview: Preview) -> None:
        """May vanish; nobody waits."""
        ...

    def facts(self) -> AsyncIterator[Fact]:
        """The run's facts from the start, then live."""
        ...


class Scribe:
    """`async with Scribe(sink) as scribe`: say statements, await decisions, notice a cancellation."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._preview_seq: dict[str, int] = {}
        self._decisions: dict[str, events.ApprovalResolved] = {}
        self._changed = asyncio.Condition()
        self._following: asyncio.Task[None] | None = None
        self.cancel_requested = asyncio.Event()

    async def __aenter__(self) -> "Scribe":
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
                    self._show(one)
                case Decided():
                    await self._write(pending)
                    decided.append(one)
        await self._write(pending)
        return decided

    async def decision(self, approval_id: str) -> events.ApprovalResolved:
        """What was decided, as soon as it is in the log."""
        async with self._changed:
            await self._changed.wait_for(lambda: approval_id in self._decisions)
            return self._decisions[approval_id]

    async def _write(self, pending: list[FactDraft]) -> None:
        if pending:
            await self._sink.append(list(pending))
            pending.clear()

    def _show(self, fragment: Fragment) -> None:
        seq = self._preview_seq.get(fragment.preview_id, 0) + 1
        self._preview_seq[fragment.preview_id] = seq
        subject = PreviewSubject(kind=fragment.kind, id=fragment.item_id)
        self._sink.publish_preview(
            Preview(preview_id=fragment.preview_id, subject=subject, preview_seq=seq, operation="append", data=fragment.text)
        )

    async def _follow(self) -> None:
        async for fact in self._sink.facts():
            if fact.type == "approval.resolved":
                resolved = msgspec.json.decode(fact.payload, type=events.ApprovalResolved)
                async with self._changed:
                    self._decisions.setdefault(resolved.approval_id, resolved)
                    self._changed.notify_all()
            elif fact.type == "run.cancel_requested":
                self.cancel_requested.set()
