"""A key-value bucket in memory, with the compare-and-set and the watch of the real one."""

import asyncio
from collections.abc import AsyncGenerator

from runlane.kernel.errors import Conflict, Retryable
from runlane.kernel.kv import Changes, Entry


class MemoryBucket:
    """`refuse_next`: so many of the next writes fail as if the broker were away; nothing is written."""

    def __init__(self) -> None:
        self.refuse_next = 0
        self.writes = 0
        self._history: list[Entry] = []
        self._last: dict[str, Entry] = {}
        self._grown = asyncio.Event()

    def keys(self) -> list[str]:
        return sorted(key for key, entry in self._last.items() if not entry.deleted)

    def entries(self) -> list[Entry]:
        """The last of each key, deletions included, as its stream keeps them."""
        return list(self._last.values())

    async def get(self, key: str) -> Entry | None:
        await asyncio.sleep(0)
        entry = self._last.get(key)
        return None if entry is None or entry.deleted else entry

    async def create(self, key: str, value: bytes) -> int:
        there = await self.get(key)
        if there is not None:
            raise Conflict("it is there", current_seq=there.revision)
        return self._write(key, value)

    async def update(self, key: str, value: bytes, revision: int) -> int:
        await asyncio.sleep(0)
        self._expect(key, revision)
        return self._write(key, value)

    async def delete(self, key: str, revision: int | None = None) -> None:
        await asyncio.sleep(0)
        if revision is not None:
            self._expect(key, revision)
        self._write(key, b"", deleted=True)

    async def watch(self, keys: str = ">") -> AsyncGenerator[Changes, None]:
        assert keys == ">"
        seen = len(self._history)
        yield Changes([entry for entry in self._last.values() if not entry.deleted], True)
        while True:
            while seen < len(self._history):
                seen += 1
                yield Changes([self._history[seen - 1]], True)
            self._grown.clear()
            await self._grown.wait()

    def _expect(self, key: str, revision: int) -> None:
        last = self._last.get(key)
        if last is None or last.revision != revision:
            raise Conflict("another revision", current_seq=None if last is None else last.revision)

    def _write(self, key: str, value: bytes, *, deleted: bool = False) -> int:
        if self.refuse_next:
            self.refuse_next -= 1
            raise Retryable("away")
        self.writes += 1
        entry = Entry(key, value, len(self._history) + 1, 0, deleted)
        self._history.append(entry)
        self._last[key] = entry
        self._grown.set()
        return entry.revision
