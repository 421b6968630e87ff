"""Taking archived messages out of a stream. Only the user `retention` may; nothing is lost that was not read.

`purge` is one request, whatever it takes out; what it took out can be read by nobody, while its bytes stay in the
server's files until a block is rewritten. `erase` overwrites them, message by message, where the stream allows it.
"""

import asyncio
from typing import Any

from msgspec import Struct

from runlane.kernel.connection import Connection
from runlane.kernel.direct import DirectReader
from runlane.kernel.jetstream import MESSAGE_NOT_FOUND, ApiError, api

ERASED_AT_ONCE = 32
DELETE_NOT_PERMITTED = 10057
_TIMEOUT_S = 20.0


class _Purged(Struct, frozen=True):
    purged: int = 0


class _Deleted(Struct, frozen=True):
    success: bool = False


class _Floor(Struct, frozen=True):
    stream_seq: int = 0


class _Consumer(Struct, frozen=True):
    name: str
    config: dict[str, Any]
    ack_floor: _Floor = _Floor()
    num_pending: int = 0
    num_ack_pending: int = 0


class _Consumers(Struct, frozen=True):
    total: int = 0
    consumers: list[_Consumer] | None = None


async def purge(connection: Connection, stream: str, subject: str, *, before_seq: int) -> int:
    """Take out every message of a subject before a sequence; how many there were. Again: none. Raises Retryable."""
    query = {"filter": subject, "seq": before_seq}
    return (await api(connection, f"STREAM.PURGE.{stream}", query, answer=_Purged, timeout_s=_TIMEOUT_S)).purged


async def erase(connection: Connection, direct: DirectReader, stream: str, subject: str, *, before_seq: int) -> int:
    """Overwrite and take out every message of a subject before a sequence; how many there were. Again: none.

    A stream that was made when deleting was denied is purged instead. Raises Retryable.
    """
    erased = 0
    while True:
        page = await direct.page(stream, subject, max_messages=ERASED_AT_ONCE)
        seqs = [message.seq for message in page.messages if message.seq < before_seq]
        if not seqs:
            return erased
        # Of the first one it is seen whether the stream allows it.
        if not await erase_message(connection, stream, seqs[0]):
            return erased + await purge(connection, stream, subject, before_seq=before_seq)
        await asyncio.gather(*(erase_message(connection, stream, seq) for seq in seqs[1:]))
        erased += len(seqs)


async def erase_message(connection: Connection, stream: str, seq: int) -> bool:
    """Overwrite and take out one message; one that is not there is none. False: the stream does not allow it."""
    try:
        query = {"seq": seq, "no_erase": False}
        await api(connection, f"STREAM.MSG.DELETE.{stream}", query, answer=_Deleted, timeout_s=_TIMEOUT_S)
    except ApiError as exc:
        if exc.err_code == DELETE_NOT_PERMITTED:
            return False
        if exc.err_code != MESSAGE_NOT_FOUND:
            raise
    return True


async def read_by_all(connection: Connection, stream: str) -> tuple[int, str]:
    """Up to which sequence every durable of a stream has acknowledged, and which is the last. Raises Retryable.

    A durable that has nothing left to read holds nobody back.
    """
    floor, slowest, offset = 2**63, "", 0
    while True:
        answer = await api(connection, f"CONSUMER.LIST.{stream}", {"offset": offset}, answer=_Consumers)
        for one in answer.consumers or ():
            is_durable = bool(one.config.get("durable_name"))
            if is_durable and (one.num_pending or one.num_ack_pending) and one.ack_floor.stream_seq < floor:
                floor, slowest = one.ack_floor.stream_seq, one.name
        offset += len(answer.consumers or ())
        if not answer.consumers or offset >= answer.total:
            return floor, slowest
