"""What was counted up to where, written down in a bucket, so that a restart goes on instead of beginning.

Two generations take turns: the parts of one are written first, then `head`, which names it. Whoever reads gets the
last one that was finished.
"""

from typing import Any

import msgspec
import zstandard
from msgspec import Struct

from runlane.kernel.kv import Bucket
from runlane.metrics_aggregator.rollup import Count
from runlane.metrics_aggregator.runs import OpenRun

FORMAT = 1
PART_BYTES = 1024 * 1024
MOST_BYTES = 512 * 1024 * 1024
"""Of a checkpoint when it is unpacked: what is larger is none of ours."""


class Checkpoint(Struct, kw_only=True):
    """Everything up to `signal_seq` of the signal stream that `epoch` names."""

    epoch: str
    signal_seq: int
    runs: list[OpenRun] = []
    counts: list[Count] = []
    labels: dict[str, list[str]] = {}
    format: int = FORMAT


class _Head(Struct, frozen=True):
    generation: int
    parts: int
    signal_seq: int


_HEAD = "head"
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Checkpoint).decode
_decode_head = msgspec.json.Decoder(_Head).decode


class CheckpointStore:
    """Reads and writes checkpoints. Every method raises Retryable when the broker cannot be reached."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._head: _Head | None = None

    async def load(self) -> Checkpoint | None:
        """The last one; None if there is none that this version can read."""
        entry = await self._bucket.get(_HEAD)
        if entry is None:
            return None
        self._head = _read(_decode_head, entry.value)
        if self._head is None:
            return None
        parts = []
        for number in range(self._head.parts):
            part = await self._bucket.get(_key(self._head.generation, number))
            if part is None:
                return None
            parts.append(part.value)
        found: Checkpoint | None = _read(_unpacked, b"".join(parts))
        whole = found is not None and found.format == FORMAT and found.signal_seq == self._head.signal_seq
        return found if whole else None

    @staticmethod
    def encoded(checkpoint: Checkpoint) -> bytes:
        """A copy that no longer changes."""
        return _encode(checkpoint)

    @staticmethod
    def packed(encoded: bytes) -> bytes:
        """As it is stored. May be called in a thread."""
        return zstandard.compress(encoded, 1)

    async def save(self, packed: bytes, signal_seq: int) -> None:
        """Write one down. Until it is whole, the one before counts."""
        generation = 0 if self._head is None else 1 - self._head.generation
        parts = [packed[at : at + PART_BYTES] for at in range(0, len(packed), PART_BYTES)]
        for number, part in enumerate(parts):
            await self._bucket.put(_key(generation, number), part)
        head = _Head(generation, len(parts), signal_seq)
        await self._bucket.put(_HEAD, msgspec.json.encode(head))
        self._head = head


def _key(generation: int, part: int) -> str:
    return f"checkpoint.{generation}.{part}"


def _unpacked(data: bytes) -> Checkpoint:
    return _decode(zstandard.ZstdDecompressor().decompress(data, max_output_size=MOST_BYTES))


def _read(decode: Any, data: bytes) -> Any:
    """What was written by another version is as if it were not there: the signals are counted anew."""
    try:
        return decode(data)
    except (msgspec.MsgspecError, zstandard.ZstdError):
        return None
