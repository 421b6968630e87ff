"""Objects by path, in a folder or behind a URL. Every call ends within a deadline, or raises `Retryable`.

obstore's blocking calls in threads: those it offers for asyncio abort the interpreter when it ends right after one.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from runlane.kernel.errors import Retryable

if TYPE_CHECKING:
    from obstore.store import ObjectStore

T = TypeVar("T")

TIMEOUT_S = 30.0
_CHUNK_BYTES = 1024 * 1024


class Objects:
    """One object store. Objects are written whole: a reader finds the old one or the new one, or none."""

    def __init__(self, open_store: "Callable[[], ObjectStore]", *, timeout_s: float = TIMEOUT_S) -> None:
        self._open_store = open_store
        self._store_: ObjectStore | None = None
        self._timeout_s = timeout_s

    @classmethod
    def at(cls, place: str, *, timeout_s: float = TIMEOUT_S) -> Self:
        """A folder, or what a URL names, such as ``s3://bucket/prefix``; credentials come from the environment.

        Opened when first used: a folder is made then.
        """
        return cls(lambda: _opened(place), timeout_s=timeout_s)

    async def put(self, path: str, data: bytes | Path) -> None:
        """Write an object, whatever was there: bytes, or what a file holds. Raises Retryable."""
        await self._ask(lambda: self._store().put(path, data), timeout_s=None if isinstance(data, Path) else 0)

    async def get(self, path: str) -> bytes | None:
        """The whole object, or None. Raises Retryable."""
        return await self._ask(lambda: bytes(self._store().get(path).bytes()))

    async def size(self, path: str) -> int | None:
        """How many bytes the object has, or None. Raises Retryable."""
        return await self._ask(lambda: int(self._store().head(path)["size"]))

    async def read(self, path: str, start: int, end: int) -> AsyncIterator[bytes]:
        """The bytes from `start` to before `end`, chunk by chunk. Raises Retryable, also in between."""
        while start < end:
            chunk = await self._ask(self._range(path, start, min(end, start + _CHUNK_BYTES)))
            if not chunk:
                raise Retryable("an object went away while it was read")
            yield chunk
            start += len(chunk)

    async def delete(self, path: str) -> None:
        """Delete an object. One that is not there is no error. Raises Retryable."""
        await self._ask(lambda: self._store().delete(path))

    async def list(self, folder: str) -> list[str]:
        """The paths of everything in a folder, sorted. Raises Retryable."""
        found = await self._ask(lambda: [str(one["path"]) for some in self._store().list(f"{folder}/") for one in some])
        return sorted(found or [])

    def _store(self) -> "ObjectStore":
        if self._store_ is None:
            self._store_ = self._open_store()
        return self._store_

    def _range(self, path: str, start: int, end: int) -> Callable[[], bytes]:
        return lambda: bytes(self._store().get_range(path, start=start, end=end))

    async def _ask(self, call: Callable[[], T], *, timeout_s: float | None = 0) -> T | None:
        """What a call answers; None where there is no such object. `timeout_s`: 0 is the usual one, None no bound."""
        from obstore.exceptions import BaseError  # noqa: PLC0415

        try:
            async with asyncio.timeout(self._timeout_s if timeout_s == 0 else timeout_s):
                return await asyncio.to_thread(call)
        except FileNotFoundError:
            return None
        except TimeoutError as exc:
            raise Retryable("the object store does not answer") from exc
        except (BaseError, OSError) as exc:
            raise Retryable(f"the object store fails: {type(exc).__name__}") from exc


def _opened(place: str) -> "ObjectStore":
    from obstore.store import LocalStore, from_url  # noqa: PLC0415 - loaded when there is something to store

    if "://" in place and not place.startswith("file://"):
        return from_url(place)
    folder = Path(place.removeprefix("file://")).absolute()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return LocalStore(folder)
