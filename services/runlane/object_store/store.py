"""Objects by path, in a folder or behind a URL. Every call ends within a deadline, or raises `Retryable`.

obstore's blocking calls in threads: those it offers for asyncio abort the interpreter when it ends right after one.
The threads are of the store alone, so that one which hangs keeps nobody else waiting; and what it asks ends by itself,
since a process that stops waits for its threads.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from runlane.kernel.errors import Retryable
from runlane.object_store.settings import client_options

if TYPE_CHECKING:
    from obstore.store import ObjectStore, RetryConfig

T = TypeVar("T")

TIMEOUT_S = 30.0
RETRY_TIMEOUT = timedelta(seconds=8)
"""After which a request that failed is not sent again: with the last one, less than a container has to stop."""
_THREADS = 16
_UPLOADS = 4
"""Parts of one file at once: each has to be through within the timeout of a request."""
_CHUNK_BYTES = 1024 * 1024
_NO_BUCKET = ("<Code>NoSuchBucket</Code>", "<Code>ContainerNotFound</Code>")
_STATUS = re.compile(r"status code: (\d{3}[A-Za-z ]*)")


class Objects:
    """One object store. Objects are written whole: a reader finds the old one or the new one, or none."""

    def __init__(self, open_store: "Callable[[], ObjectStore]", *, timeout_s: float = TIMEOUT_S) -> None:
        self._open_store = open_store
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="objects")
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
        put = lambda: self._store().put(path, data, max_concurrency=_UPLOADS)  # noqa: E731
        if await self._ask(put, is_bounded=not isinstance(data, Path)) is None:
            raise Retryable("the object store has no such bucket")

    async def get(self, path: str) -> bytes | None:
        """The whole object, or None. Raises Retryable."""
        return await self._ask(lambda: bytes(self._store().get(path).bytes()))

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

    async def _ask(self, call: Callable[[], T], *, is_bounded: bool = True) -> T | None:
        """What a call answers; None where there is no such object."""
        from obstore.exceptions import BaseError  # noqa: PLC0415

        try:
            async with asyncio.timeout(self._timeout_s if is_bounded else None):
                return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except FileNotFoundError as exc:
            # A bucket that is gone answers as an object that never was, but its objects are not gone for good.
            if any(code in str(exc) for code in _NO_BUCKET):
                raise Retryable("the object store has no such bucket") from exc
            return None
        except TimeoutError as exc:
            raise Retryable("the object store does not answer") from exc
        except (BaseError, OSError) as exc:
            raise Retryable(f"the object store fails: {_what(exc)}") from exc


def _what(exc: Exception) -> str:
    """Its kind and what the server answered; not the address, nor what else a library tells about its request."""
    answered = _STATUS.search(str(exc))
    return type(exc).__name__ if answered is None else f"{type(exc).__name__}, {answered[1].strip()}"


def _opened(place: str) -> "ObjectStore":
    from obstore.store import LocalStore, from_url  # noqa: PLC0415 - loaded when there is something to store

    if "://" in place and not place.startswith("file://"):
        options: Any = client_options(place)
        retries: RetryConfig = {"retry_timeout": RETRY_TIMEOUT}
        return from_url(place) if options is None else from_url(place, client_options=options, retry_config=retries)
    folder = Path(place.removeprefix("file://")).absolute()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return LocalStore(folder)
