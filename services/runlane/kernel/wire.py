"""Many messages to the broker in one go: the protocol's own lines, written by the batch.

nats-py's `publish` takes most of its time to look at each header by itself; a writer of whole streams does
nothing else all day.
"""

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import nats.errors

from runlane.kernel.connection import Connection, as_kernel_error
from runlane.kernel.errors import Permanent, Retryable

_SUBJECT = re.compile(r"[!-~]+")
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_CHUNK_BYTES = 1024 * 1024


def frame(subject: str, data: bytes, reply: str, headers: Mapping[str, str] | None) -> bytes:
    """One message as the broker reads it.

    Raises:
        Permanent: the subject or a header cannot be written.
    """
    if not _is_subject(subject):
        raise Permanent(f"not a subject: {subject!r}")
    to = f"{subject} {reply}" if reply else subject
    if not headers:
        return b"PUB %s %d\r\n%s\r\n" % (to.encode(), len(data), data)
    _check_names(tuple(headers))
    lines = "\r\n".join([f"{name}: {value}" for name, value in headers.items()])
    if lines.count("\r") != len(headers) - 1 or lines.count("\n") != len(headers) - 1:
        raise Permanent(f"{subject}: a header value has a line break")
    block = f"NATS/1.0\r\n{lines}\r\n\r\n".encode()
    return b"HPUB %s %d %d\r\n%s%s\r\n" % (to.encode(), len(block), len(block) + len(data), block, data)


async def send_frames(connection: Connection, frames: Sequence[bytes]) -> None:
    """Hand frames to the client, in order. A cancellation that the client swallows under back-pressure is raised.

    Raises:
        Retryable: there is no connection.
    """
    if not connection.is_connected:
        raise Retryable("not connected", retry_after_s=0.2)
    task = asyncio.current_task()
    cancelled_before = task.cancelling() if task is not None else 0
    client = connection.nc
    try:
        for chunk in _chunks(frames):
            await client._send_command(chunk)  # noqa: SLF001
        if client._flush_queue is not None and client._flush_queue.empty():  # noqa: SLF001
            await client._flush_pending()  # noqa: SLF001
    except nats.errors.Error as exc:
        raise as_kernel_error(exc, "publish") from exc
    client.stats["out_msgs"] += len(frames)
    if task is not None and task.cancelling() > cancelled_before:
        raise asyncio.CancelledError


def _chunks(frames: Sequence[bytes]) -> Iterator[bytes]:
    start = size = 0
    for index, one in enumerate(frames):
        size += len(one)
        if size >= _CHUNK_BYTES:
            yield b"".join(frames[start : index + 1])
            start, size = index + 1, 0
    if start < len(frames):
        yield b"".join(frames[start:])


@lru_cache(maxsize=4096)
def _is_subject(subject: str) -> bool:
    return _SUBJECT.fullmatch(subject) is not None


@lru_cache(maxsize=1024)
def _check_names(names: tuple[str, ...]) -> None:
    for name in names:
        if _NAME.fullmatch(name) is None:
            raise Permanent(f"not a header name: {name!r}")
