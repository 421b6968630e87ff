"""Sealed exports: the stream copied into compressed segments, with a manifest that says what must be in them.

segments/<first>-<last>.jsonl.zst   one line a message: {"progress", "record", "seq", "subject"}
manifest.json                       ranges, chain heads, keys, the SHA-256 of each segment; and the sink's signature

A folder or anything else `obstore` knows by its URL, such as s3://bucket/prefix. The manifest follows from the
segments alone, so it is checked by making it again.
"""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping

import msgspec
from msgspec import Raw, Struct

from runlane.audit_sink.chain import BEGINNING, ChainFault, Chains, Fault, export_statement
from runlane.audit_sink.signing import from_hex, key_id_of, verifiers
from runlane.audit_sink.verify import UNKNOWN, Kept, StreamCheck
from runlane.kernel.errors import Permanent
from runlane.object_store.store import Objects
from runlane_contracts.audit import AuditRecord
from runlane_contracts.canonical import canonical_json

MANIFEST = "manifest.json"
FORMAT = "runlane-audit-export/1"
SEGMENT_RECORDS = 50_000
SEGMENT_BYTES = 32 * 1024 * 1024
_LEVEL = 10
_STEP_BYTES = 64 * 1024


class Segment(Struct, frozen=True, kw_only=True):
    """One file: which messages it has, and the SHA-256 of the file as it lies there."""

    name: str
    first_seq: int
    last_seq: int
    records: int
    sha256: str


class ChainRange(Struct, frozen=True, kw_only=True):
    """One tenant's chain: it begins at 1 and ends here; `signed_up_to` is covered by a checkpoint in it."""

    last_sequence: int
    hash: str
    signed_up_to: int


class Body(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the export holds. Follows from the segments, but for the keys."""

    format: str
    last_seq: int
    last_time: str
    segments: tuple[Segment, ...]
    chains: dict[str, ChainRange]
    keys: dict[str, str]
    """Public keys by id, in hex."""


class Seal(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sink's signature over the SHA-256 of the body's canonical JSON."""

    key_id: str
    signature: str


class Manifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file. Without a seal it proves only that the export is whole, not who made it."""

    body: Body
    seal: Seal | None = None


class _Line(Struct, frozen=True, forbid_unknown_fields=True):
    progress: str
    record: Raw
    seq: int
    subject: str


_LINE = msgspec.json.Decoder(_Line)

SignBody = Callable[[str], Awaitable[Seal | None]]
"""Asks the sink for its signature over a SHA-256 in hex; None: there is nobody to ask."""


def body_sha256(body: Body) -> str:
    """What the seal signs."""
    return hashlib.sha256(canonical_json(body)).hexdigest()


class Exporter:
    """Writes one export."""

    def __init__(self, store: Objects, keys: Mapping[str, bytes], *, segment_records: int = SEGMENT_RECORDS) -> None:
        self._store = store
        self._segment_records = segment_records
        self._writer = _BodyWriter(keys)

    async def export(self, messages: AsyncIterator[Kept], sign: SignBody) -> Manifest:
        """Copy all messages, checking them on the way.

        Raises:
            Permanent: there is an export already.
            Retryable: the object store fails, or does not answer.
            ChainFault: the stream is not what was written; there is no manifest then.
        """
        if await self._store.get(MANIFEST) is not None:
            raise Permanent("there is an export here already; choose another place")
        lines: list[bytes] = []
        size = 0
        async for message in messages:
            self._writer.take(message)
            lines.append(_line(message))
            size += len(lines[-1])
            if len(lines) >= self._segment_records or size >= SEGMENT_BYTES:
                await self._put_segment(lines)
                lines, size = [], 0
        if lines:
            await self._put_segment(lines)
        body = self._writer.body()
        self._writer.check.finish(body.last_seq)
        manifest = Manifest(body=body, seal=await sign(body_sha256(body)))
        await self._store.put(MANIFEST, canonical_json(manifest))
        return manifest

    async def _put_segment(self, lines: list[bytes]) -> None:
        import zstandard  # noqa: PLC0415

        compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
        data = compressor.compress(b"\n".join(lines) + b"\n")
        name = self._writer.segment(len(lines), data)
        await self._store.put(name, data)


class _BodyWriter:
    """Makes the body, message by message, for who writes an export and for who checks one."""

    def __init__(self, keys: Mapping[str, bytes], trusted: Mapping[str, bytes] | None = None) -> None:
        self.chains = Chains(verifiers((trusted or keys).values()))
        self.check = StreamCheck(self.chains)
        self._keys = keys
        self._segments: list[Segment] = []
        self._last_seq = 0
        self._last_time = ""

    def take(self, message: Kept) -> AuditRecord:
        """The next message. Raises ChainFault."""
        record = self.check.take(message)
        self._last_seq, self._last_time = message.seq, record.time
        return record

    def segment(self, records: int, data: bytes) -> str:
        """What was taken since the last one lies in a file with this content; returns its name."""
        first = self._segments[-1].last_seq + 1 if self._segments else 1
        name = f"segments/{first:012d}-{self._last_seq:012d}.jsonl.zst"
        self._segments.append(
            Segment(
                name=name,
                first_seq=first,
                last_seq=self._last_seq,
                records=records,
                sha256=hashlib.sha256(data).hexdigest(),
            )
        )
        return name

    def body(self) -> Body:
        """Of everything so far."""
        return Body(
            format=FORMAT,
            last_seq=self._last_seq,
            last_time=self._last_time,
            segments=tuple(self._segments),
            chains=chain_ranges(self.chains),
            keys={key_id: key.hex() for key_id, key in self._keys.items()},
        )


def chain_ranges(chains: Chains) -> dict[str, ChainRange]:
    """Where each chain ends, and how far it is signed."""
    return {
        tenant_id: ChainRange(
            last_sequence=head.sequence, hash=head.hash, signed_up_to=chains.covered.get(tenant_id, BEGINNING.sequence)
        )
        for tenant_id, head in chains.heads.items()
    }


class Checked(Struct, frozen=True):
    """What a check found to be whole. `trusted`: the keys were given, not taken from the export itself."""

    records: int
    chains: dict[str, ChainRange]
    sealed: bool
    trusted: bool


async def check_export(store: Objects, trusted: Mapping[str, bytes], tenant_id: str | None = None) -> Checked:
    """Check an export against its manifest and the keys.

    Raises:
        ChainFault: something is not as it was written; names the first bad record, or file.
        Permanent: there is no export.
        Retryable: the object store fails, or does not answer.
    """
    data = await store.get(MANIFEST)
    if data is None:
        raise Permanent(f"there is no {MANIFEST} here")
    manifest = _decoded(data)
    own = _keys_of(manifest.body)
    keys = trusted or own
    found = _BodyWriter(own, keys)
    for segment in manifest.body.segments:
        await _check_segment(store, segment, found)
    found.check.finish(manifest.body.last_seq)
    if found.body() != manifest.body:
        raise _bad(MANIFEST, "it does not say what the segments hold")
    _check_seal(manifest, keys)
    chains = manifest.body.chains
    return Checked(
        records=found.chains.records,
        chains=chains if tenant_id is None else {name: one for name, one in chains.items() if name == tenant_id},
        sealed=manifest.seal is not None,
        trusted=bool(trusted),
    )


async def _check_segment(store: Objects, segment: Segment, found: _BodyWriter) -> None:
    data = await store.get(segment.name)
    if data is None:
        raise _bad(segment.name, f"the file is missing, with records {segment.first_seq} to {segment.last_seq}")
    count = 0
    for message in messages_of(data, segment):
        found.take(message)
        count += 1
    found.segment(count, data)
    if missing := found.check.missing(segment.last_seq):
        raise _bad(f"{segment.name}, stream sequence {missing}", "it is missing")
    if hashlib.sha256(data).hexdigest() != segment.sha256:
        raise _bad(segment.name, "the file is not what the manifest says")


def messages_of(data: bytes, segment: Segment) -> Iterable[Kept]:
    """The messages in a segment, up to the first that cannot be read. Raises ChainFault, which names that one."""
    plain, is_whole = _decompressed(data)
    lines = plain.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if not is_whole and number == len(lines) - 1 and not line.endswith(b"\n"):
            break  # only the beginning of it is there
        try:
            one = _LINE.decode(line)
        except (msgspec.MsgspecError, RecursionError) as exc:
            raise _bad(f"{segment.name}, stream sequence {segment.first_seq + number}", "it is no message") from exc
        yield Kept(one.seq, one.subject, one.progress, bytes(one.record))
    if not is_whole:
        first = segment.first_seq + plain.count(b"\n")
        where = f"{segment.name}, stream sequence {first}" if first <= segment.last_seq else segment.name
        raise _bad(where, "the file cannot be decompressed from there on")


def _decompressed(data: bytes) -> tuple[bytes, bool]:
    """What can be had of a compressed file, and whether that is all of it."""
    import zstandard  # noqa: PLC0415

    plain, limit = bytearray(), SEGMENT_BYTES * 4
    try:
        frame = zstandard.ZstdDecompressor().decompressobj()
        for at in range(0, len(data), _STEP_BYTES):
            plain += frame.decompress(data[at : at + _STEP_BYTES])
            if len(plain) > limit:
                return bytes(plain), False
    except zstandard.ZstdError:
        return bytes(plain), False
    return bytes(plain), frame.eof


def _line(message: Kept) -> bytes:
    # Record and all as they were stored; the keys in order, so that the line is canonical JSON too.
    return b'{"progress":%b,"record":%b,"seq":%d,"subject":%b}' % (
        msgspec.json.encode(message.progress), message.data, message.seq, msgspec.json.encode(message.subject),
    )  # fmt: skip


def _decoded(data: bytes) -> Manifest:
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
        spelt = canonical_json(manifest)
    except (msgspec.MsgspecError, RecursionError, ValueError) as exc:
        raise _bad(MANIFEST, "it is no manifest") from exc
    if spelt != data or manifest.body.format != FORMAT:
        raise _bad(MANIFEST, "it is not spelt as it was written")
    return manifest


def _keys_of(body: Body) -> dict[str, bytes]:
    try:
        keys = {key_id: from_hex(key) for key_id, key in body.keys.items()}
    except ValueError as exc:
        raise _bad(MANIFEST, "a key in it is none") from exc
    if any(key_id_of(key) != key_id for key_id, key in keys.items()):
        raise _bad(MANIFEST, "a key in it is not the one that its id names")
    return keys


def _check_seal(manifest: Manifest, keys: Mapping[str, bytes]) -> None:
    seal = manifest.seal
    if seal is None:
        return
    verify = verifiers(keys.values()).get(seal.key_id)
    if verify is None:
        raise _bad(MANIFEST, f"it is sealed with key {seal.key_id}, which is not known")
    try:
        signature = from_hex(seal.signature)
    except ValueError as exc:
        raise _bad(MANIFEST, "its seal is no signature") from exc
    if not verify(export_statement(body_sha256(manifest.body)), signature):
        raise _bad(MANIFEST, "its seal is wrong")


def _bad(where: str, reason: str) -> ChainFault:
    return ChainFault(Fault(UNKNOWN, 0, where, reason))
