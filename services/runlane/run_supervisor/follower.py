"""Follows the log: learns the moments of every run, and that runs have ended."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import msgspec

from runlane.kernel.clock import Now
from runlane.kernel.errors import Retryable
from runlane.run_supervisor import moments
from runlane.run_supervisor.moment_book import MomentBook
from runlane.run_supervisor.moments import Moments
from runlane_contracts import events
from runlane_contracts.codec import decode_fact, decode_fact_head, decode_raw_commit
from runlane_contracts.subjects import RunAddress

WRITES_AT_ONCE: Final = 64

OnEnd = Callable[[RunAddress], Awaitable[None]]
Known = tuple[str, events.Payload]


class LogMessage(Protocol):
    """One message of a LOG stream."""

    @property
    def data(self) -> bytes: ...
    @property
    def stream_seq(self) -> int: ...


class LogFollower:
    """Handles batches of commits; most of them need nothing at all."""

    def __init__(self, book: MomentBook, on_end: OnEnd, *, now: Now) -> None:
        self._book, self._on_end, self._now = book, on_end, now
        self._slots = asyncio.Semaphore(WRITES_AT_ONCE)

    async def handle(self, batch: "Sequence[LogMessage]") -> int:
        """Take in a batch in its order; the sequence up to which it is durable. Raises Retryable."""
        facts: dict[RunAddress, list[Known]] = {}
        for message in batch:
            run, known = relevant(message.data)
            if known:
                facts.setdefault(run, []).extend(known)
        try:
            async with asyncio.TaskGroup() as tasks:
                for run, known in facts.items():
                    tasks.create_task(self._take_in(run, known))
        except* Retryable as away:
            raise Retryable(str(away.exceptions[0])) from away
        return batch[-1].stream_seq

    async def _take_in(self, run: RunAddress, facts: Sequence[Known]) -> None:
        def change(found: Moments) -> None:
            for type_, payload in facts:
                moments.apply(found, type_, payload, now=self._now())

        async with self._slots:
            await self._book.change(run, change)
            if facts[-1][0] in events.TERMINAL_RUN:
                await self._on_end(run)


def relevant(data: bytes) -> tuple[RunAddress, list[Known]]:
    """The facts of a commit that change when the run has to be looked at."""
    try:
        commit = decode_raw_commit(data)
    except msgspec.MsgspecError:
        return RunAddress("", ""), []  # no commit of ours; the redaction filter quarantines it
    found: list[Known] = []
    for raw in commit.facts:
        try:
            if decode_fact_head(raw).type not in moments.RELEVANT:
                continue
            fact = decode_fact(raw)
            payload = events.decode_payload(fact.type, fact.payload)
        except msgspec.MsgspecError:
            continue
        if isinstance(payload, events.Payload):
            found.append((fact.type, payload))
    return RunAddress(commit.tenant_id, commit.run_id), found
