"""Group commit: what queues while one commit is in flight is the next commit. Bounded; the caller waits."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from runlane.client.errors import RequestRefused, RunlaneError
from runlane.client.transports.ports import Written
from runlane_contracts.events import TERMINAL_RUN
from runlane_contracts.lifecycle import MAX_FACTS_PER_COMMIT, FactDraft
from runlane_contracts.streams import MAX_COMMIT_BYTES

ENVELOPE_BYTES = 600
"""What one fact weighs beyond its payload, generously."""

_FAULT_OF_ONE = frozenset({"invalid_request", "idempotency_conflict", "payload_too_large", "invalid_state"})

Commit = Callable[[Sequence[FactDraft], int | None], Awaitable[list[Written]]]
"""Writes drafts, all or nothing, and tries again what may be tried again."""


@dataclass(slots=True, eq=False)
class _Request:
    drafts: tuple[FactDraft, ...]
    expected_sequence: int | None
    done: asyncio.Future[list[Written]]
    weight: int = field(init=False)

    def __post_init__(self) -> None:
        self.weight = sum(len(bytes(one.payload)) + ENVELOPE_BYTES for one in self.drafts)

    @property
    def stands_alone(self) -> bool:
        return self.expected_sequence is not None

    @property
    def ends_the_run(self) -> bool:
        return self.drafts[-1].type in TERMINAL_RUN


class CommitQueue:
    """Appends of one writer, in the order in which they were asked for."""

    def __init__(self, commit: Commit, *, max_queued_facts: int = 4096, max_queued_bytes: int = 8 << 20) -> None:
        self._commit = commit
        self._max_facts = max_queued_facts
        self._max_bytes = max_queued_bytes
        self._waiting: deque[_Request] = deque()
        self._facts = 0
        self._bytes = 0
        self._changed = asyncio.Condition()
        self._in_flight = False
        self._closed_by: RunlaneError | None = None

    async def put(self, drafts: tuple[FactDraft, ...], expected_sequence: int | None) -> list[Written]:
        """Queue, waiting for room, and wait until it is written. Order is that of the calls."""
        request = _Request(drafts, expected_sequence, asyncio.get_running_loop().create_future())
        async with self._changed:
            await self._changed.wait_for(lambda: self._closed_by is not None or self._has_room(request))
            if self._closed_by is not None:
                raise self._closed_by
            self._waiting.append(request)
            self._facts += len(drafts)
            self._bytes += request.weight
            self._changed.notify_all()
        return await request.done

    def _has_room(self, request: _Request) -> bool:
        return not self._waiting or (
            self._facts + len(request.drafts) <= self._max_facts and self._bytes + request.weight <= self._max_bytes
        )

    async def run(self) -> None:
        """Commit what queues, for ever."""
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: bool(self._waiting))
                group = self._take_group()
                self._in_flight = True
                self._changed.notify_all()
            try:
                await self._write(group)
            finally:
                async with self._changed:
                    self._in_flight = False
                    self._changed.notify_all()

    async def idle(self) -> None:
        """Until nothing waits and nothing is in flight."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._waiting and not self._in_flight)

    async def close(self, because: RunlaneError) -> None:
        """Refuse what waits and what comes."""
        async with self._changed:
            self._closed_by = because
            while self._waiting:
                self._refuse(self._waiting.popleft(), because)
            self._changed.notify_all()

    def _take_group(self) -> list[_Request]:
        group: list[_Request] = []
        facts = weight = 0
        while self._waiting:
            request = self._waiting[0]
            if request.done.done():  # its caller was cancelled before it left
                self._forget(self._waiting.popleft())
                continue
            full = facts + len(request.drafts) > MAX_FACTS_PER_COMMIT or weight + request.weight > MAX_COMMIT_BYTES
            if group and (full or request.stands_alone):
                break
            self._forget(self._waiting.popleft())
            group.append(request)
            facts += len(request.drafts)
            weight += request.weight
            if request.stands_alone or request.ends_the_run:
                break
        return group

    def _forget(self, request: _Request) -> None:
        self._facts -= len(request.drafts)
        self._bytes -= request.weight

    async def _write(self, group: list[_Request]) -> None:
        if not group:
            return
        drafts = [one for request in group for one in request.drafts]
        try:
            written = await self._commit(drafts, group[0].expected_sequence)
        except RequestRefused as refused:
            if len(group) > 1 and refused.code in _FAULT_OF_ONE:
                for request in group:  # the others did nothing wrong
                    await self._write([request])
                return
            for request in group:
                self._refuse(request, refused)
            return
        except RunlaneError as exc:
            for request in group:
                self._refuse(request, exc)
            return
        except BaseException as exc:
            for request in group:
                self._refuse(request, exc)
            raise
        self._answer(group, written)

    def _answer(self, group: list[_Request], written: list[Written]) -> None:
        places = {one.event_id: one for one in written}
        for request in group:
            if not request.done.done():
                mine = [places[one.event_id] for one in request.drafts if one.event_id in places]
                request.done.set_result(mine)

    def _refuse(self, request: _Request, because: BaseException) -> None:
        if not request.done.done():
            if isinstance(because, asyncio.CancelledError):
                request.done.cancel()
            else:
                request.done.set_exception(because)
