"""Where a reader keeps the cursor of what it has applied."""

import asyncio
import os
from pathlib import Path
from typing import Protocol

from runlane_contracts.ids import is_id


class CursorStore(Protocol):
    """One cursor per run."""

    async def load(self, run_id: str) -> str | None:
        """The cursor saved last, or None."""
        ...

    async def save(self, run_id: str, cursor: str) -> None:
        """Keep `cursor`. When this returns, a restarted process finds it."""
        ...


class MemoryCursorStore:
    """Lives as long as the process."""

    def __init__(self) -> None:
        self.cursors: dict[str, str] = {}

    async def load(self, run_id: str) -> str | None:
        """The cursor saved last, or None."""
        return self.cursors.get(run_id)

    async def save(self, run_id: str, cursor: str) -> None:
        """Keep `cursor`."""
        self.cursors[run_id] = cursor


class FileCursorStore:
    """One small file per run in `directory`, replaced atomically: after a crash it holds the old or the new.

    With `fsync` that also holds after a power cut, at the price of a disk flush per fact.
    """

    def __init__(self, directory: str | Path, *, fsync: bool = False) -> None:
        self._directory = Path(directory)
        self._fsync = fsync

    async def load(self, run_id: str) -> str | None:
        """The cursor saved last, or None."""
        return await asyncio.to_thread(self._read, self._path(run_id))

    async def save(self, run_id: str, cursor: str) -> None:
        """Keep `cursor`. When this returns, a restarted process finds it."""
        await asyncio.to_thread(self._write, self._path(run_id), cursor)

    def _path(self, run_id: str) -> Path:
        if not is_id(run_id):
            raise ValueError(f"not a run id: {run_id[:80]!r}")
        return self._directory / f"{run_id}.cursor"

    @staticmethod
    def _read(path: Path) -> str | None:
        try:
            return path.read_text(encoding="ascii").strip() or None
        except FileNotFoundError:
            return None

    def _write(self, path: Path, cursor: str) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(".new")
        with beside.open("w", encoding="ascii") as file:
            file.write(cursor)
            if self._fsync:
                file.flush()
                os.fsync(file.fileno())
        beside.replace(path)
