"""Reading the commits of runs, from the LOG or from the VIEW: head, read, tail.

History is read by batched direct get: no consumer, no state in the broker. VIEW is republished after it is
stored, so a tail of it listens to that plain subject for the wake-up and reads what the stream then holds; a
slow sweep covers lost wake-ups. Ten thousand tails of VIEW cost the broker ten thousand subscriptions and not one
consumer. A tail of the LOG, for the few who may read it, has a consumer of its own.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Literal

import msgspec
import nats.errors
from nats.aio.msg import Msg

from runlane.kernel.connection import Connection, as_kernel_error
from runlane.kernel.direct import DirectReader, StoredMessage
from runlane.kernel.errors import AheadOfStream, Gap, Retryable, StreamReplaced
from runlane.kernel.event_log import NOTHING, StoredCommit, StoredRawCommit, compaction_in
from runlane.kernel.sequel import Make, Sequel, T, raw_commit, salvaged, typed_commit
from runlane.kernel.tail import Tail
from runlane_contracts.codec import decode_raw_commit
from runlane_contracts.cursor import Position
from runlane_contracts.headers import LAST_SEQUENCE
from runlane_contracts.streams import Layout
from runlane_contracts.subjects import RunAddress

Family = Literal["log", "view"]

SWEEP_S = 2.0
"""How long a tail may miss a commit whose wake-up got lost."""
_LOOK_AGAIN_S = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256)
_BACKOFF_S = (0.05, 2.0)
_LOOKS_AT_REPLICAS = 5
_REPLICA_LAG_S = 0.1


class CommitReader:
    """Reads one family. `read` and `tail` check that commits are gapless; see `EventLog` for their promises."""

    def __init__(self, connection: Connection, direct: DirectReader, layout: Layout, *, family: Family) -> None:
        self._connection = connection
        self._direct = direct
        self._layout = layout
        self._family = family

    def stream(self, run: RunAddress) -> str:
        """The stream that holds a run."""
        run_id = run.run_id
        return self._layout.log_stream(run_id) if self._family == "log" else self._layout.view_stream(run_id)

    def subject(self, run: RunAddress) -> str:
        """The subject of a run in its stream."""
        subjects = self._layout.subjects
        return subjects.log(*run) if self._family == "log" else subjects.view(*run)

    async def head(self, run: RunAddress) -> StoredCommit | None:
        """The run's last commit, or None. Raises Retryable."""
        return await self._head(run, typed_commit)

    async def head_raw(self, run: RunAddress) -> StoredRawCommit | None:
        """The run's last commit with its facts as bytes."""
        return await self._head(run, raw_commit)

    async def heads(self, runs: Iterable[RunAddress]) -> dict[RunAddress, StoredRawCommit]:
        """The last commit of each run that has one, in few requests."""
        by_stream: dict[str, list[RunAddress]] = {}
        for run in runs:
            by_stream.setdefault(self.stream(run), []).append(run)
        found: dict[RunAddress, StoredRawCommit] = {}
        for stream, some in by_stream.items():
            epoch = await self._direct.epoch(stream)
            messages = await self._direct.multi_last(stream, [self.subject(run) for run in some])
            for subject, message in messages.items():
                found[self._layout.subjects.run_of(subject)] = raw_commit(epoch, message, None)
        return found

    def read(self, run: RunAddress, *, after: Position = NOTHING) -> AsyncGenerator[StoredCommit, None]:
        """Every commit after a position, up to the end as it is now.

        Raises:
            Retryable: no answer.
            AheadOfStream: the stream has not reached that position (again).
            StreamReplaced: the position is one of an earlier incarnation of the stream.
            Compacted: what follows the position was archived.
            Gap: commits are missing.
        """
        return self._read(run, after, typed_commit)

    def read_raw(self, run: RunAddress, *, after: Position = NOTHING) -> AsyncGenerator[StoredRawCommit, None]:
        """The same with facts as bytes."""
        return self._read(run, after, raw_commit)

    def tail(self, run: RunAddress, *, after: Position = NOTHING) -> AsyncGenerator[StoredCommit, None]:
        """Every commit after a position, then new ones as they come, for ever.

        Raises:
            StreamReplaced: the stream was made anew.
            Gap: commits are missing.
        """
        return self._tail(run, after, typed_commit)

    def tail_raw(self, run: RunAddress, *, after: Position = NOTHING) -> AsyncGenerator[StoredRawCommit, None]:
        """The same with facts as bytes."""
        return self._tail(run, after, raw_commit)

    async def _head(self, run: RunAddress, make: Make[T]) -> T | None:
        stream = self.stream(run)
        epoch = await self._direct.epoch(stream)
        message = await self._direct.last(stream, self.subject(run))
        if message is None:
            return None
        try:
            return make(epoch, message, None)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            if self._family == "view":
                raise
            return make(epoch, message, salvaged(epoch, run, message, None))

    async def _read(self, run: RunAddress, after: Position, make: Make[T]) -> AsyncGenerator[T, None]:
        stream, subject = self.stream(run), self.subject(run)
        epoch = await self._direct.epoch(stream)
        if after.epoch and after.epoch != epoch:
            raise StreamReplaced(f"{stream}: {after.epoch} is now {epoch}")
        sequel = self._sequel(run, make, epoch, after)
        # Reading begins with the message that holds the position: it must be there, else the position is not
        # one of this stream's. It costs no further request.
        known = after.stream_seq
        async for page in self._direct.pages(stream, subject, known or 1):
            for message in page.messages:
                if known and message.seq == known:
                    known = 0
                    rest = sequel.again(message)
                    if rest is not None:
                        yield rest
                    continue
                if known:  # gone, unless the record says that it was archived
                    if not _declares_a_hole(message):
                        await self._explain_missing(stream, subject, after)
                    known = 0
                yield sequel.next(message)
        if known:
            await self._explain_missing(stream, subject, after)

    def _sequel(self, run: RunAddress, make: Make[T], epoch: str, after: Position) -> Sequel[T]:
        is_judged = self._family == "log"
        return Sequel(run, make, epoch=epoch, sequence=after.sequence, seq=after.stream_seq, is_judged=is_judged)

    async def _explain_missing(self, stream: str, subject: str, after: Position) -> None:
        self._direct.forget_epoch(stream)
        state = await self._direct.stream_state(stream)
        if state.epoch != after.epoch:
            raise StreamReplaced(f"{stream}: {after.epoch} is now {state.epoch}")
        if state.last_seq < after.stream_seq:
            raise AheadOfStream(f"{stream} ends at {state.last_seq}, the position is at {after.stream_seq}")
        for _ in range(_LOOKS_AT_REPLICAS):
            if await self._direct.get(stream, after.stream_seq) is not None:
                raise Retryable(f"{stream}: a replica was behind", retry_after_s=0.1)
            await asyncio.sleep(_REPLICA_LAG_S)
        raise Gap(f"{subject}: message {after.stream_seq} is gone")

    async def _tail(self, run: RunAddress, after: Position, make: Make[T]) -> AsyncGenerator[T, None]:
        follow = self._follow_by_consumer if self._family == "log" else self._follow_by_wake_up
        async with contextlib.aclosing(follow(run, after, make)) as commits:
            async for stored in commits:
                yield stored

    async def _follow_by_wake_up(self, run: RunAddress, after: Position, make: Make[T]) -> AsyncGenerator[T, None]:
        position = after
        wake_ups = _WakeUps(self._connection, self._layout.subjects.live(*run))
        failures = 0
        try:
            while True:
                try:
                    await wake_ups.listen()
                    async with contextlib.aclosing(self._read(run, position, make)) as commits:
                        async for stored in commits:
                            position = stored.position
                            yield stored
                    failures = 0
                except Retryable:
                    await asyncio.sleep(_backoff_s(failures))
                    failures += 1
                    continue
                await wake_ups.wait(position.sequence)
        finally:
            await wake_ups.close()

    async def _follow_by_consumer(self, run: RunAddress, after: Position, make: Make[T]) -> AsyncGenerator[T, None]:
        position = after
        failures = 0
        while True:  # history first: reading it checks that the position is one of this stream's
            try:
                async with contextlib.aclosing(self._read(run, position, make)) as commits:
                    async for stored in commits:
                        position = stored.position
                        yield stored
                break
            except Retryable:
                await asyncio.sleep(_backoff_s(failures))
                failures += 1
        tail = Tail(
            self._connection, self._direct, stream=self.stream(run), subjects=[self.subject(run)],
            after_seq=position.stream_seq, epoch=position.epoch, max_messages=256,
        )  # fmt: skip
        sequel = self._sequel(run, make, position.epoch, position)
        async with contextlib.aclosing(tail.batches()) as batches:
            async for batch in batches:
                sequel.epoch = tail.epoch
                for message in batch:
                    # A run that ended, and was archived between two deliveries, is read from where it begins now.
                    yield sequel.next(message)


def _declares_a_hole(message: StoredMessage) -> bool:
    try:
        return compaction_in(decode_raw_commit(message.data)) is not None
    except msgspec.MsgspecError:
        return False


class _WakeUps:
    """Tells a tail when to read again. After a wake-up it looks a few times: a replica may be a moment behind."""

    def __init__(self, connection: Connection, subject: str) -> None:
        self._connection = connection
        self._subject = subject
        self._announced = 0
        self._looks = 0
        self._event = asyncio.Event()
        self._stop: Callable[[], object] | None = None
        self._forget_listener: Callable[[], None] = lambda: None

    async def listen(self) -> None:
        if self._stop is not None:
            return
        try:
            subscription = await self._connection.nc.subscribe(self._subject, cb=self._on_message)
        except nats.errors.Error as exc:
            raise as_kernel_error(exc, self._subject) from exc
        self._stop = subscription.unsubscribe
        self._forget_listener = self._connection.add_reconnect_listener(self._event.set)

    async def wait(self, sequence: int) -> None:
        """Return when there may be something after `sequence`."""
        pause_s = SWEEP_S * random.uniform(0.8, 1.2)  # noqa: S311 - many tails should not sweep at once
        if sequence < self._announced and self._looks < len(_LOOK_AGAIN_S):
            pause_s = _LOOK_AGAIN_S[self._looks]
            self._looks += 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._event.wait()
        self._event.clear()

    async def close(self) -> None:
        self._forget_listener()
        stop, self._stop = self._stop, None
        if stop is not None:
            with contextlib.suppress(nats.errors.Error):
                await stop()  # type: ignore[misc]

    async def _on_message(self, message: Msg) -> None:
        text = (message.headers or {}).get(LAST_SEQUENCE, "")
        announced = int(text) if text.isdigit() else self._announced + 1
        if announced > self._announced:
            self._announced, self._looks = announced, 0
        self._event.set()


def _backoff_s(failures: int) -> float:
    first, most = _BACKOFF_S
    return min(most, first * float(2 ** min(failures, 10))) * random.uniform(0.5, 1.0)  # noqa: S311
