"""Where checkpoints are kept: in memory, in a file, in SQLite. One process writes at a time, the others are refused."""

import asyncio
import fcntl
import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
from msgspec import Raw

from runlane.client.checkpoint import CheckpointRefused
from runlane_contracts.codec import encode

T = TypeVar("T")

IN_USE = "another process writes it"


class CheckpointStore(Protocol):
    """Named parts, saved all or nothing."""

    async def open(self) -> Mapping[str, bytes]:
        """Become the one writer, and load what was saved last.

        Raises:
            CheckpointRefused: another process is the writer, or what is there cannot be read. Then nothing is held.
        """
        ...

    async def save(self, parts: Mapping[str, bytes | None]) -> None:
        """Put these parts in place of those of the same names; None removes one. After a crash: all, or none."""
        ...

    async def set_aside(self) -> str:
        """Move what is there out of the way, unread, without becoming the writer; where it is now."""
        ...

    async def close(self) -> None:
        """Let another process write."""
        ...


class MemoryCheckpointStore:
    """Lives as long as the process: for tests, and for clients that only reconnect."""

    def __init__(self) -> None:
        self.parts: dict[str, bytes] = {}
        self._is_open = False

    async def open(self) -> Mapping[str, bytes]:
        """See `CheckpointStore.open`."""
        if self._is_open:
            raise CheckpointRefused(IN_USE)
        self._is_open = True
        return dict(self.parts)

    async def save(self, parts: Mapping[str, bytes | None]) -> None:
        """See `CheckpointStore.save`."""
        self.parts = _merged(self.parts, parts)

    async def set_aside(self) -> str:
        """See `CheckpointStore.set_aside`."""
        self.parts = {}
        return "nowhere"

    async def close(self) -> None:
        """See `CheckpointStore.close`."""
        self._is_open = False


class _OnDisk(ABC):
    """A store whose work is done in a thread, one piece at a time."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._turn = asyncio.Lock()

    async def open(self) -> Mapping[str, bytes]:
        """See `CheckpointStore.open`."""
        return await self._in_turn(self._open)

    async def save(self, parts: Mapping[str, bytes | None]) -> None:
        """See `CheckpointStore.save`."""
        await self._in_turn(lambda: self._save(parts))

    async def set_aside(self) -> str:
        """See `CheckpointStore.set_aside`."""
        return await self._in_turn(lambda: str(_moved_aside(self._path)))

    async def close(self) -> None:
        """See `CheckpointStore.close`."""
        await self._in_turn(self._release)

    async def _in_turn(self, work: Callable[[], T]) -> T:
        async with self._turn:
            return await asyncio.to_thread(work)

    @abstractmethod
    def _open(self) -> Mapping[str, bytes]: ...

    @abstractmethod
    def _save(self, changes: Mapping[str, bytes | None]) -> None: ...

    @abstractmethod
    def _release(self) -> None: ...


class FileCheckpointStore(_OnDisk):
    """One JSON file, replaced atomically and flushed to disk; beside it `<name>.lock`, held while it is open.

    Every save writes all of it: for a handful of runs. `SqliteCheckpointStore` writes what changed.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._parts: dict[str, bytes] = {}
        self._lock: int | None = None

    def _open(self) -> Mapping[str, bytes]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._path.with_name(self._path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._parts = self._read()
        except BlockingIOError as exc:
            os.close(lock)
            raise CheckpointRefused(IN_USE) from exc
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock
        return dict(self._parts)

    def _read(self) -> dict[str, bytes]:
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        try:
            return {name: bytes(part) for name, part in msgspec.json.decode(raw, type=dict[str, Raw]).items()}
        except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
            raise CheckpointRefused(f"{self._path} is damaged: {exc}") from exc

    def _save(self, changes: Mapping[str, bytes | None]) -> None:
        if self._lock is None:
            raise CheckpointRefused("it is not open")
        parts = _merged(self._parts, changes)
        beside = self._path.with_name(self._path.name + ".new")
        with beside.open("wb") as file:
            os.fchmod(file.fileno(), 0o600)  # states hold what runs said
            file.write(encode({name: Raw(part) for name, part in parts.items()}))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._path)
        self._parts = parts

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class SqliteCheckpointStore(_OnDisk):
    """One SQLite file, locked while it is open; a save writes only the parts that changed."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._database: sqlite3.Connection | None = None

    def _open(self) -> Mapping[str, bytes]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.touch(mode=0o600)
        database = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=0)
        try:
            database.execute("PRAGMA locking_mode = EXCLUSIVE")
            database.execute("PRAGMA synchronous = FULL")
            database.execute("BEGIN EXCLUSIVE")  # with that locking mode the lock outlives the transaction
            database.execute("CREATE TABLE IF NOT EXISTS parts (name TEXT PRIMARY KEY, body BLOB NOT NULL)")
            found = database.execute("SELECT name, body FROM parts").fetchall()
            database.execute("COMMIT")
        except sqlite3.Error as exc:
            database.close()
            busy = exc.sqlite_errorcode in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            raise CheckpointRefused(IN_USE if busy else f"{self._path} is damaged: {exc}") from exc
        self._database = database
        return {name: bytes(body) for name, body in found}

    def _save(self, changes: Mapping[str, bytes | None]) -> None:
        if self._database is None:
            raise CheckpointRefused("it is not open")
        put = [(name, body) for name, body in changes.items() if body is not None]
        gone = [(name,) for name, body in changes.items() if body is None]
        with self._database as database:
            database.execute("BEGIN")
            database.executemany("INSERT OR REPLACE INTO parts VALUES (?, ?)", put)
            database.executemany("DELETE FROM parts WHERE name = ?", gone)

    def _release(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None


def _merged(before: Mapping[str, bytes], changes: Mapping[str, bytes | None]) -> dict[str, bytes]:
    return {name: part for name, part in {**before, **changes}.items() if part is not None}


def _moved_aside(path: Path) -> Path:
    aside = path.with_name(path.name + ".refused")
    number = 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.refused-{number}")
    if path.exists():
        path.rename(aside)
    return aside
