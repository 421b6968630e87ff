"""Bytes to messages and back. The only place that names a wire format.

Decoders are built once; an unknown fact type is still a `Fact` (its payload stays raw) and an unknown field
is ignored, so an old reader survives a newer writer.
"""

from datetime import UTC, datetime
from typing import Any

import msgspec

from runlane_contracts.audit import AuditRecord, Refusal
from runlane_contracts.commands import Command, LedgerEntry
from runlane_contracts.envelope import Commit, Fact, FactHead, RawCommit
from runlane_contracts.lifecycle import FactDraft
from runlane_contracts.previews import Preview, PreviewBatch

ENCODER = msgspec.json.Encoder()

encode = ENCODER.encode

decode_fact = msgspec.json.Decoder(Fact).decode
decode_commit = msgspec.json.Decoder(Commit).decode
decode_raw_commit = msgspec.json.Decoder(RawCommit).decode
decode_fact_head = msgspec.json.Decoder(FactHead).decode
decode_draft = msgspec.json.Decoder(FactDraft).decode
decode_preview = msgspec.json.Decoder(Preview).decode
decode_preview_batch = msgspec.json.Decoder(PreviewBatch).decode
decode_command = msgspec.json.Decoder(Command).decode
decode_ledger_entry = msgspec.json.Decoder(LedgerEntry).decode
decode_refusal = msgspec.json.Decoder(Refusal).decode
decode_audit_record = msgspec.json.Decoder(AuditRecord).decode
_decode_json = msgspec.json.Decoder().decode


def decode_json(raw: bytes | str | msgspec.Raw) -> Any:
    """Any JSON value.

    Raises:
        msgspec.DecodeError: not JSON.
    """
    return _decode_json(raw)


def timestamp(at: datetime) -> str:
    """RFC 3339 UTC with microseconds and ``Z``."""
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def timestamp_of_ns(ns: int) -> str:
    """RFC 3339 UTC with microseconds, of nanoseconds since 1970."""
    seconds, rest = divmod(ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()}.{rest // 1000:06d}Z"


def parse_timestamp(text: str) -> datetime:
    """The moment in an RFC 3339 text.

    Raises:
        ValueError: not one.
    """
    return datetime.fromisoformat(text)
