"""The moments of all live runs: in a bucket, mirrored in memory, and on the timetable.

Whoever follows the log writes it; every supervisor mirrors it and may look at a run whose moment came: looking
changes nothing that is settled. Each write is a compare-and-set on the entry it was made from, so that the
successor of a follower that went away never overwrites what it had not seen.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import msgspec

from runlane.kernel.errors import Conflict
from runlane.kernel.kv import Changes, Entry
from runlane.kernel.lease import BucketEntry, run_of_key
from runlane.run_supervisor.following import follow
from runlane.run_supervisor.moments import Moments, decode_moments
from runlane.run_supervisor.timetable import Key, Timetable
from runlane_contracts.codec import encode
from runlane_contracts.subjects import RunAddress

LOOK = "run"

Change = Callable[[Moments], None]
"""Changes the moments of a run in place. Called again on what is there when somebody else wrote first."""


class MomentBucket(Protocol):
    """The few operations of a key-value bucket that the book needs."""

    async def get(self, key: str) -> BucketEntry | None: ...
    async def create(self, key: str, value: bytes) -> int: ...
    async def update(self, key: str, value: bytes, revision: int) -> int: ...
    async def delete(self, key: str, revision: int | None = None) -> None: ...
    def watch(self) -> AsyncGenerator[Changes, None]: ...


@dataclass(slots=True)
class _Page:
    moments: Moments
    revision: int  # 0: there is no entry


class MomentBook:
    """When to look at which run."""

    def __init__(self, bucket: MomentBucket, timetable: Timetable) -> None:
        self._bucket, self._timetable = bucket, timetable
        self._pages: dict[RunAddress, _Page] = {}

    def __len__(self) -> int:
        return len(self._pages)

    def due(self, run: RunAddress) -> dict[str, str]:
        """The moments of a run by name, as far as is known here."""
        page = self._pages.get(run)
        return {} if page is None else dict(page.moments.due)

    def next_at(self, run: RunAddress) -> datetime | None:
        """The earliest of them."""
        page = self._pages.get(run)
        return None if page is None else page.moments.next_at

    async def mirror(self, caught_up: asyncio.Event) -> None:
        """Follow the bucket, for ever: what is there now, then every change."""
        async for changes in follow(self._bucket.watch):
            for entry in changes.entries:
                self._learn(entry)
            if changes.caught_up:
                caught_up.set()

    def _learn(self, entry: Entry) -> None:
        run = run_of_key(entry.key)
        page = self._pages.get(run)
        if page is not None and page.revision >= entry.revision:
            return  # our own write, or older than it
        moments = Moments() if entry.deleted else _decode(entry.value)
        self._turn(run, moments, 0 if entry.deleted else entry.revision)

    async def change(self, run: RunAddress, change: Change) -> None:
        """Change the moments of a run; durable when this returns. Raises Retryable."""
        page = self._pages.get(run) or _Page(Moments(), 0)
        while True:
            moments = page.moments.copy()
            change(moments)
            if moments == page.moments:
                return
            try:
                revision = await self._write(run, moments, page.revision)
            except Conflict:
                page = await self._read(run)
                continue
            self._turn(run, moments, revision)
            return

    async def _write(self, run: RunAddress, moments: Moments, revision: int) -> int:
        key = _key(run)
        if moments.is_empty:
            if revision:
                await self._bucket.delete(key, revision)
            return 0
        value = encode(moments)
        return await self._bucket.update(key, value, revision) if revision else await self._bucket.create(key, value)

    async def _read(self, run: RunAddress) -> _Page:
        entry = await self._bucket.get(_key(run))
        return _Page(Moments(), 0) if entry is None else _Page(_decode(entry.value), entry.revision)

    def _turn(self, run: RunAddress, moments: Moments, revision: int) -> None:
        if moments.is_empty:
            self._pages.pop(run, None)
        else:
            self._pages[run] = _Page(moments, revision)
        self._timetable.set(Key(LOOK, run), moments.next_at)


def _key(run: RunAddress) -> str:
    return f"{run.tenant_id}.{run.run_id}"


def _decode(value: bytes) -> Moments:
    try:
        return decode_moments(value)
    except msgspec.MsgspecError:
        return Moments()  # of a later version; the next fact of the run writes it anew
