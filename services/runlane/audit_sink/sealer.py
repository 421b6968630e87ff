"""Entries of all sources into one stream: in order within a source, exactly once, whatever dies in between.

The output is the progress. Each write expects the stream's last sequence and is stored whole or not at all, so of two
sinks one is refused; it reads where the output is now, and goes on from there. Nothing else is remembered anywhere.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from runlane.audit_sink.book import Book, Draft, Out, Signs, Unsigned
from runlane.audit_sink.chain import BEGINNING, Head, encoded
from runlane.audit_sink.output import Sealed
from runlane.audit_sink.progress import Progress, Reached, progress_of
from runlane.audit_sink.records import SourceMessage, of_loss, of_replacement
from runlane.kernel.chain import ChainMessage
from runlane.kernel.clock import Now
from runlane.kernel.errors import Conflict, KernelError, Overloaded, Permanent, Retryable
from runlane_contracts.audit import PLATFORM, PROGRESS, AuditEntry
from runlane_contracts.codec import timestamp
from runlane_contracts.subjects import Subjects
from runlane_contracts.telemetry import LogEvent

log = logging.getLogger(__name__)

MAX_RECORDS = 500
"""Of one write."""
_ATTEMPTS = 5

Sourced = tuple[SourceMessage, Sequence[AuditEntry]]


class Output(Protocol):
    """The audit stream."""

    async def last_seq(self) -> int: ...
    async def at(self, seq: int) -> Sealed | None: ...
    async def last_of(self, subject: str) -> Sealed | None: ...
    def between(self, first: int, last: int) -> AsyncIterator[Sealed]: ...


class Store(Protocol):
    """Writes right after a sequence, all or nothing."""

    async def __call__(self, batch: Sequence[ChainMessage], *, last_seq: int) -> int: ...


@dataclass(slots=True)
class SealerStats:
    """Counts since the start, and what is wrong just now."""

    records: int = 0
    checkpoints: int = 0
    conflicts: int = 0
    lost: int = 0
    trouble: str = ""


class Sealer:
    """Writes the audit. One write at a time, whichever source it is for."""

    def __init__(
        self,
        output: Output,
        store: Store,
        *,
        subjects: Subjects,
        key: Signs,
        now: Now,
        clock: Callable[[], float],
        checkpoint_records: int,
    ) -> None:
        self.stats = SealerStats()
        self._output, self._store, self._subjects = output, store, subjects
        self._key, self._now, self._clock = key, now, clock
        self._checkpoint_records = checkpoint_records
        self._book: Book | None = None
        self._writing = asyncio.Lock()

    async def resume(self, stream: str, epoch: str, first_seq: int) -> int:
        """Up to where a source is sealed; what it lost meanwhile is recorded. Raises Retryable, Overloaded.

        `first_seq`: the oldest message that it holds. 0: messages of it vanish by design, none is missed.
        """

        def draft(book: Book, out: Draft) -> None:
            at = timestamp(self._now())
            place = book.progress.places.get(stream)
            if place is not None and place.epoch != epoch:
                out.entry(of_replacement(stream, epoch, at), stream, epoch, Reached())
            done = book.reached(stream, epoch).done_up_to
            if first_seq > done + 1:
                self.stats.lost += first_seq - 1 - done
                out.entry(of_loss(stream, done + 1, first_seq - 1, at), stream, epoch, Reached(first_seq - 1))

        async with self._writing:
            self._book = None  # another sink may have gone on meanwhile
            book = await self._write(draft, platform=True)
            return book.reached(stream, epoch).done_up_to

    async def seal(self, epoch: str, batch: Sequence[Sourced]) -> None:
        """Everything a batch of a source says is stored when this returns. Raises Retryable, Overloaded."""
        tenants = [entry.tenant_id for _, entries in batch for entry in entries]
        is_whole = False

        def draft(_: Book, out: Draft) -> None:
            nonlocal is_whole
            # What is stored of it already is passed over, so each round goes on where the last one had no more room.
            is_whole = all(out.message(message, epoch, entries, MAX_RECORDS) for message, entries in batch)

        while not is_whole:
            async with self._writing:
                await self._write(draft, tenants=tenants)

    async def checkpoint(self, waited_s: float) -> int:
        """Sign the chains whose records have waited that long for it; how many. Raises Retryable, Overloaded."""
        signed = 0
        async with self._writing:
            book = self._book or await self._open()
            while tenants := book.overdue(self._clock() - waited_s)[:MAX_RECORDS]:

                def draft(book: Book, out: Draft, due: Sequence[str] = tuple(tenants)) -> None:
                    for tenant_id in due:
                        if tenant_id in book.unsigned:  # else another sink signed it
                            out.checkpoint(tenant_id)

                book = await self._write(draft, tenants=tenants)
                signed += len(tenants)
        return signed

    # --- one write ------------------------------------------------------------------------------------------

    async def _write(
        self, fill: Callable[[Book, Draft], None], *, tenants: Sequence[str] = (), platform: bool = False
    ) -> Book:
        for _ in range(_ATTEMPTS):
            book = self._book or await self._open()
            await self._know([*tenants, PLATFORM] if platform else tenants, book)
            draft = self._draft(book)
            fill(book, draft)
            try:
                await self._put(draft.out, book.last_seq)
            except Conflict:
                self.stats.conflicts += 1
                self._book = None
                continue
            except KernelError as exc:
                self._book = None  # what is stored is unknown
                self._complain(exc)
                raise
            book.accept(draft)
            book.forget_old_heads()
            self._count(draft.out)
            return book
        raise Retryable("another sink writes", retry_after_s=1.0)

    def _draft(self, book: Book) -> Draft:
        return Draft(
            book, now_s=self._clock(), time=timestamp(self._now()), key=self._key,
            checkpoint_records=self._checkpoint_records,
        )  # fmt: skip

    async def _put(self, out: Sequence[Out], last_seq: int) -> None:
        if out:
            await self._store([self._message(one) for one in out], last_seq=last_seq)

    def _message(self, out: Out) -> ChainMessage:
        record = out.record
        subject = self._subjects.audit(record.tenant_id, record.category)
        return subject, encoded(record), {PROGRESS: out.progress}

    def _count(self, out: Sequence[Out]) -> None:
        if out and self.stats.trouble:
            log.info("the audit goes on", extra={"event": LogEvent.AUDIT_RESUMED})
        if out:
            self.stats.trouble = ""
        self.stats.records += len(out)
        self.stats.checkpoints += sum(one.record.checkpoint is not None for one in out)

    def _complain(self, exc: KernelError) -> None:
        if isinstance(exc, Overloaded) and self.stats.trouble != str(exc):
            log.error("the audit stream is full: nothing is lost, sealing waits", extra={"event": LogEvent.AUDIT_FULL})
        self.stats.trouble = str(exc)

    # --- what is stored -------------------------------------------------------------------------------------

    async def _open(self) -> Book:
        """Read where the output is."""
        last_seq = await self._output.last_seq()
        book = Book(last_seq=last_seq)
        if last_seq:
            last = await self._output.at(last_seq)
            if last is None:
                raise Retryable("the end of the audit cannot be read")
            book.progress = self._progress(last)
            await self._read_unsigned(book)
        self._book = book
        return book

    def _progress(self, last: Sealed) -> Progress:
        try:
            return progress_of(last.progress)
        except ValueError as exc:
            raise Permanent(f"message {last.seq} of the audit does not say how far its sources are") from exc

    async def _read_unsigned(self, book: Book) -> None:
        wall, clock = self._now().timestamp(), self._clock()
        async for one in self._output.between(book.progress.open_seq, book.last_seq):
            record = one.record
            book.note(record.tenant_id, Head(record.sequence, record.hash))
            if record.checkpoint is not None:
                book.unsigned.pop(record.tenant_id, None)
                continue
            since_s = clock - max(0.0, wall - one.stored_at)
            before = book.unsigned.get(record.tenant_id, Unsigned(one.seq, since_s, 0))
            book.unsigned[record.tenant_id] = before._replace(records=before.records + 1)

    async def _know(self, tenants: Sequence[str], book: Book) -> None:
        for tenant_id in book.unknown(tenants):
            last = await self._output.last_of(self._subjects.audit(tenant_id, "*"))
            book.note(tenant_id, BEGINNING if last is None else Head(last.record.sequence, last.record.hash))
