"""RL_AUDIT as its writer's only memory: where it ends, how far each source is sealed, the head of each chain.

Ends and heads are asked of the stream's leader, not of any replica: a head that is a moment old would fork a chain.
"""

import asyncio
import base64
import re
from collections.abc import AsyncIterator

from msgspec import Struct

from runlane.kernel.connection import Connection
from runlane.kernel.direct import DirectReader
from runlane.kernel.errors import Permanent, Retryable
from runlane.kernel.jetstream import MESSAGE_NOT_FOUND, STREAM_NOT_FOUND, ApiError, api
from runlane_contracts.audit import PROGRESS, AuditRecord
from runlane_contracts.codec import decode_audit_record, parse_timestamp

_HEADER = re.compile(rf"^{PROGRESS}: *(.*?)\r?$", re.MULTILINE)
_REPLICA_LAG_S = 0.1


class Sealed(Struct, frozen=True):
    """A record, where it lies, and when it was stored (seconds since 1970)."""

    seq: int
    record: AuditRecord
    progress: str
    stored_at: float


class _State(Struct, frozen=True):
    last_seq: int = 0


class _Info(Struct, frozen=True):
    state: _State


class _Message(Struct, frozen=True):
    seq: int
    time: str
    data: str = ""
    hdrs: str = ""


class _Got(Struct, frozen=True):
    message: _Message


class Output:
    """Reads the audit stream. Raises `Retryable` when there is no answer, `Permanent` for what is no record."""

    def __init__(self, connection: Connection, direct: DirectReader, stream: str, subjects: str) -> None:
        self._connection, self._direct = connection, direct
        self._stream, self._subjects = stream, subjects

    async def last_seq(self) -> int:
        """The stream's last sequence."""
        try:
            return (await api(self._connection, f"STREAM.INFO.{self._stream}", answer=_Info)).state.last_seq
        except ApiError as exc:
            if exc.err_code == STREAM_NOT_FOUND:
                raise Retryable(f"there is no stream {self._stream}") from exc
            raise

    async def at(self, seq: int) -> Sealed | None:
        """The record at a sequence."""
        return await self._get({"seq": seq})

    async def last_of(self, subject: str) -> Sealed | None:
        """The last record of a subject, which may have wildcards."""
        return await self._get({"last_by_subj": subject})

    async def between(self, first: int, last: int) -> AsyncIterator[Sealed]:
        """All records from one sequence to another, which is there."""
        while first <= last:
            page = await self._direct.page(self._stream, self._subjects, first)
            for message in page.messages:
                if message.seq <= last:
                    progress = message.headers.get(PROGRESS, "")
                    yield self._sealed(message.seq, message.data, progress, message.time_ns / 1e9)
                first = message.seq + 1
            if not page.messages:
                await asyncio.sleep(_REPLICA_LAG_S)

    async def _get(self, query: dict[str, object]) -> Sealed | None:
        try:
            got = (await api(self._connection, f"STREAM.MSG.GET.{self._stream}", query, answer=_Got)).message
        except ApiError as exc:
            if exc.err_code == MESSAGE_NOT_FOUND:
                return None
            raise
        progress = _HEADER.search(base64.b64decode(got.hdrs).decode(errors="replace"))
        stored_at = parse_timestamp(got.time[:19] + "+00:00").timestamp()
        return self._sealed(got.seq, base64.b64decode(got.data), progress[1] if progress else "", stored_at)

    def _sealed(self, seq: int, data: bytes, progress: str, stored_at: float) -> Sealed:
        try:
            return Sealed(seq, decode_audit_record(data), progress, stored_at)
        except ValueError as exc:
            raise Permanent(f"{self._stream}: message {seq} is no audit record") from exc
