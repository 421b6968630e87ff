"""A key-value bucket with compare-and-set, over our own publisher and reader; the same bucket NATS clients see.

A bucket is a stream `KV_<name>` that keeps the last message of each subject `$KV.<name>.<key>`; the revision of
an entry is its sequence in that stream.
"""

import asyncio
import random
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec import Struct

from runlane.kernel.clock import NewId, new_id
from runlane.kernel.direct import DirectReader, StoredMessage
from runlane.kernel.errors import Conflict, Overloaded, Permanent, Retryable
from runlane.kernel.publisher import Publisher
from runlane.kernel.tail import Tail

OPERATION = "KV-Operation"
EXPECTED_REVISION = "Nats-Expected-Last-Subject-Sequence"
BUDGET_S = 10.0
MARKER_TTL_S = 3600
"""How long a deletion stays visible to whoever watches; then it goes, so that dead keys cost nothing."""
_KEY = re.compile(r"[-/_=.a-zA-Z0-9]{1,200}")
_GONE = frozenset({"DEL", "PURGE"})
_BACKOFF_S = (0.02, 0.5)


class Entry(Struct, frozen=True):
    """A value and its revision, which a compare-and-set names."""

    key: str
    value: bytes
    revision: int
    time_ns: int
    deleted: bool = False
    """Only a watch shows deletions; their value is empty."""


class Changes(Struct, frozen=True):
    """What a watch saw. `caught_up`: everything that was there when it began has been given."""

    entries: list[Entry]
    caught_up: bool


class Bucket:
    """One bucket. Any replica may answer a read, so it may be a moment old: decide by compare-and-set.

    A write whose answer got lost is tried again under the same message id and settled before the call returns.
    All methods raise Retryable when the broker cannot be reached; a write is then not known to have happened.
    """

    def __init__(
        self,
        publisher: Publisher,
        direct: DirectReader,
        name: str,
        *,
        new_id: NewId = new_id,
        budget_s: float = BUDGET_S,
        marker_ttl_s: int | None = MARKER_TTL_S,
    ) -> None:
        self.name = name
        self.stream = f"KV_{name}"
        self._publisher = publisher
        self._direct = direct
        self._new_id = new_id
        self._budget_s = budget_s
        self._marker_ttl_s = marker_ttl_s
        self._prefix = f"$KV.{name}."

    async def get(self, key: str) -> Entry | None:
        """The entry, or None if there is none or it was deleted."""
        entry = await self._last(key)
        return None if entry is None or entry.deleted else entry

    async def create(self, key: str, value: bytes) -> int:
        """Make an entry; returns its revision.

        Raises:
            Conflict: there is one. `current_seq` is its revision.
        """
        expected = 0
        while True:
            try:
                return await self._write(key, value, {EXPECTED_REVISION: str(expected)})
            except Conflict as conflict:
                there = await self._last(key)
                if there is not None and not there.deleted:
                    raise Conflict(f"{self.name}: {key} is there", current_seq=there.revision) from conflict
                marker = 0 if there is None else there.revision
                if marker == expected:  # a replica is behind, or another write is on its way
                    await asyncio.sleep(_backoff_s(0))
                expected = marker

    async def update(self, key: str, value: bytes, revision: int) -> int:
        """Replace exactly that revision; returns the new one. Raises Conflict: it is another by now."""
        return await self._write(key, value, {EXPECTED_REVISION: str(revision)})

    async def put(self, key: str, value: bytes) -> int:
        """Set it, whatever is there; returns the revision."""
        return await self._write(key, value, {})

    async def delete(self, key: str, revision: int | None = None) -> None:
        """Delete it; only that revision, if one is named. Deleting what is not there does no harm.

        Raises:
            Conflict: it is another revision by now.
        """
        headers = {OPERATION: "DEL"}
        if revision is not None:
            headers[EXPECTED_REVISION] = str(revision)
        if self._marker_ttl_s is not None:
            headers["Nats-TTL"] = f"{self._marker_ttl_s}s"
        await self._write(key, b"", headers)

    async def watch(self, keys: str = ">") -> AsyncGenerator[Changes, None]:
        """All current entries (and recent deletions), then every change, for ever. `keys` may have wildcards.

        The first `Changes` with `caught_up` may be empty.

        Raises:
            StreamReplaced: the bucket was made anew; begin again.
        """
        tail = Tail(
            self._direct.connection, self._direct, stream=self.stream, subjects=[self._prefix + keys],
            start="last_per_subject",
        )  # fmt: skip
        async with aclosing(tail.batches()) as batches:
            async for batch in batches:
                yield Changes([self._entry(message) for message in batch], tail.caught_up)

    async def _last(self, key: str) -> Entry | None:
        message = await self._direct.last(self.stream, self._subject(key))
        return None if message is None else self._entry(message)

    async def _write(self, key: str, value: bytes, headers: dict[str, str]) -> int:
        subject = self._subject(key)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._budget_s
        marked = {**headers, "Nats-Msg-Id": self._new_id("kv")}
        attempt = 0
        while True:
            try:
                return (await self._publisher.publish(subject, value, marked)).seq
            except Conflict as conflict:
                if not attempt:
                    raise
                # An earlier attempt may have been the one that is there now.
                message = await self._direct.last(self.stream, subject)
                if message is not None and message.headers.get("Nats-Msg-Id") == marked["Nats-Msg-Id"]:
                    return message.seq
                raise Conflict(str(conflict), current_seq=conflict.current_seq) from conflict
            except Overloaded:
                raise
            except Retryable:
                pause_s = _backoff_s(attempt)
                if loop.time() + pause_s >= deadline:
                    raise
            await asyncio.sleep(pause_s)
            attempt += 1

    def _subject(self, key: str) -> str:
        if not _KEY.fullmatch(key) or key.startswith(".") or key.endswith(".") or ".." in key:
            raise Permanent(f"not a key: {key!r}")
        return self._prefix + key

    def _entry(self, message: StoredMessage) -> Entry:
        gone = message.headers.get(OPERATION) in _GONE or "Nats-Marker-Reason" in message.headers
        key = message.subject.removeprefix(self._prefix)
        return Entry(key, b"" if gone else message.data, message.seq, message.time_ns, gone)


def _backoff_s(attempt: int) -> float:
    first, most = _BACKOFF_S
    return min(most, first * float(2**attempt)) * random.uniform(0.5, 1.0)  # noqa: S311
