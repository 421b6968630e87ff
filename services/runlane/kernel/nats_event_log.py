"""The event log on JetStream: one commit is one message, the run's subject is its compare-and-set."""

import asyncio
import random
from collections.abc import AsyncGenerator

from runlane.kernel.commit_reader import CommitReader
from runlane.kernel.connection import Connection
from runlane.kernel.direct import DirectReader
from runlane.kernel.errors import Conflict, Overloaded, Permanent, Retryable
from runlane.kernel.event_log import NOTHING, StoredCommit
from runlane.kernel.publisher import Publisher, WindowedPublisher
from runlane_contracts import headers as names
from runlane_contracts.codec import encode
from runlane_contracts.cursor import Position
from runlane_contracts.envelope import Commit
from runlane_contracts.ids import is_id, is_tenant, is_traceparent
from runlane_contracts.streams import MAX_COMMIT_BYTES, Layout
from runlane_contracts.subjects import RunAddress

COMMIT_BUDGET_S = 15.0
"""A leader election takes up to 6 s; until then a commit is tried again under the same id."""
PUBLISH_TIMEOUT_S = 5.0
_BACKOFF_S = (0.02, 1.0)


class NatsEventLog:
    """`EventLog` on the LOG streams of a layout. Shares the connection; `close()` gives back what it made."""

    def __init__(
        self,
        connection: Connection,
        layout: Layout,
        *,
        publisher: Publisher | None = None,
        direct: DirectReader | None = None,
        budget_s: float = COMMIT_BUDGET_S,
        publish_timeout_s: float = PUBLISH_TIMEOUT_S,
    ) -> None:
        self._own_publisher = WindowedPublisher(connection) if publisher is None else None
        self._own_direct = DirectReader(connection) if direct is None else None
        self._publisher: Publisher = publisher or self._own_publisher  # type: ignore[assignment]
        self._direct: DirectReader = direct or self._own_direct  # type: ignore[assignment]
        self._reader = CommitReader(connection, self._direct, layout, family="log")
        self._layout = layout
        self._budget_s = budget_s
        self._publish_timeout_s = publish_timeout_s
        self._highest: dict[str, int] = {}
        self._loop = asyncio.get_running_loop()

    @property
    def reader(self) -> CommitReader:
        """Reads the same log, also with facts as bytes."""
        return self._reader

    async def commit(self, commit: Commit, *, after: Position) -> Position:
        """See `EventLog.commit`."""
        data = _checked(commit, after)
        run = RunAddress(commit.tenant_id, commit.run_id)
        stream, subject = self._reader.stream(run), self._reader.subject(run)
        deadline = self._loop.time() + self._budget_s
        attempt = 0
        while True:
            try:
                return await self._attempt(stream, subject, data, commit, after)
            except Overloaded:
                raise
            except Retryable:
                pause_s = _backoff_s(attempt)
                if self._loop.time() + pause_s >= deadline:
                    raise
            await asyncio.sleep(pause_s)
            attempt += 1

    async def head(self, run: RunAddress) -> StoredCommit | None:
        """See `EventLog.head`."""
        return await self._reader.head(run)

    def read(self, run: RunAddress, *, after: Position = NOTHING) -> AsyncGenerator[StoredCommit, None]:
        """See `EventLog.read`."""
        return self._reader.read(run, after=after)

    def tail(self, run: RunAddress, *, after: Position = NOTHING) -> AsyncGenerator[StoredCommit, None]:
        """See `EventLog.tail`."""
        return self._reader.tail(run, after=after)

    async def close(self) -> None:
        """Stop; what is under way fails as Retryable."""
        if self._own_publisher is not None:
            await self._own_publisher.close()
        if self._own_direct is not None:
            await self._own_direct.close()

    async def _attempt(self, stream: str, subject: str, data: bytes, commit: Commit, after: Position) -> Position:
        await self._check_epoch(stream, after)
        headers = _headers(commit, after)
        try:
            ack = await self._publisher.publish(subject, data, headers, timeout_s=self._publish_timeout_s)
        except Conflict as conflict:
            stored = await self._settle(stream, subject, commit, after, conflict)
            if stored is None:
                raise Retryable(f"{subject}: another commit is on its way") from conflict
            return stored
        if not ack.duplicate:
            return await self._position(stream, ack.seq, commit)
        # The id is there already: by an attempt of ours, or by somebody who gave it to another commit.
        stored = await self._settle(stream, subject, commit, after, Conflict("duplicate"))
        if stored is None:
            raise Permanent(f"the commit id {commit.commit_id} belongs to another commit")
        return stored

    async def _settle(
        self, stream: str, subject: str, commit: Commit, after: Position, conflict: Conflict
    ) -> Position | None:
        """Who wrote right after `after`? We, in an attempt whose answer got lost; or somebody else: Conflict.

        None: nobody yet, so another publish of this run is still on its way (three replicas say so) and it has
        to be asked again. Exactly one message can follow `after`, however many came since: comparing it, and not
        the run's last one, is right even if others have written in the meantime.
        """
        await self._check_epoch(stream, after)
        page = await self._direct.page(stream, subject, after.stream_seq + 1, max_messages=1)
        if page.messages:
            message = page.messages[0]
            if message.headers.get(names.COMMIT_ID) == commit.commit_id:
                return Position(await self._direct.epoch(stream), message.seq, commit.last_sequence)
            raise Conflict(f"{subject}: another commit follows {after.stream_seq}", current_seq=message.seq)
        if conflict.current_seq is None:
            return None
        if conflict.current_seq > after.stream_seq:
            raise Retryable(f"{stream}: a replica is behind", retry_after_s=0.1)
        self._direct.forget_epoch(stream)  # the run is behind `after`: it is not that stream any more
        raise conflict

    async def _check_epoch(self, stream: str, after: Position) -> None:
        if after.epoch:
            epoch = await self._direct.epoch(stream)
            if after.epoch != epoch:
                raise Conflict(f"{stream}: {after.epoch} is now {epoch}")

    async def _position(self, stream: str, seq: int, commit: Commit) -> Position:
        if seq <= self._highest.get(stream, 0):
            self._direct.forget_epoch(stream)  # sequences only rise within one incarnation
        self._highest[stream] = seq
        return Position(await self._direct.epoch(stream), seq, commit.last_sequence)


def _checked(commit: Commit, after: Position) -> bytes:
    if not (is_tenant(commit.tenant_id) and is_id(commit.run_id)):
        raise Permanent(f"not the address of a run: {commit.tenant_id!r} {commit.run_id!r}")
    if not commit.facts or commit.first_sequence != after.sequence + 1:
        raise Permanent(f"a commit that begins at {commit.first_sequence} cannot follow {after.sequence}")
    data = encode(commit)
    if len(data) > MAX_COMMIT_BYTES:
        raise Permanent(f"{len(data)} bytes are more than a commit may have")
    return data


def _headers(commit: Commit, after: Position) -> dict[str, str]:
    headers = {
        names.COMMIT_ID: commit.commit_id,
        names.EXPECTED_LAST_SUBJECT_SEQUENCE: str(after.stream_seq),
        names.FIRST_SEQUENCE: str(commit.first_sequence),
        names.LAST_SEQUENCE: str(commit.last_sequence),
    }
    traceparent = commit.facts[0].traceparent
    if traceparent is not None and is_traceparent(traceparent):
        headers[names.TRACEPARENT] = traceparent
    return headers


def _backoff_s(attempt: int) -> float:
    first, most = _BACKOFF_S
    return min(most, first * float(2**attempt)) * random.uniform(0.5, 1.0)  # noqa: S311
