"""Archives of runs: written once, read back before anything relies on them, read part by part."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import msgspec
import zstandard

from runlane.kernel.errors import Gap, Permanent
from runlane.object_store.store import Objects
from runlane_contracts.archives import (
    FORMAT,
    MANIFEST,
    SNAPSHOT,
    ArchivedSnapshot,
    ArchivedState,
    ArchiveLine,
    ArchiveManifest,
    ArchivePart,
    Family,
    archive_folder,
    decode_archive_line,
    decode_archived_state,
    decode_manifest,
    runs_folder,
    sha256_hex,
)
from runlane_contracts.codec import decode_raw_commit, encode
from runlane_contracts.cursor import REDUCER_VERSION
from runlane_contracts.reducer import State, checksum
from runlane_contracts.subjects import RunAddress

PART_COMMITS = 1000
PART_BYTES = 4 * 1024 * 1024
MAX_PART_BYTES = 64 * 1024 * 1024
_LEVEL = 10


class ArchiveBroken(Permanent):
    """An archive is not what its manifest says: nothing is served from it, and nothing may be purged for it."""


@dataclass(slots=True)
class ArchiveWriter:
    """One archive in the making. `add` in order, then `finish`; what was begun and not finished is no archive."""

    objects: Objects
    run: RunAddress
    to_sequence: int
    parts: list[ArchivePart] = field(default_factory=list)
    _lines: list[bytes] = field(default_factory=list)
    _family: Family | None = None
    _first: int = 1
    _last: int = 0
    _size: int = 0

    async def add(self, family: Family, line: ArchiveLine) -> None:
        """The next commit of a family. Raises Gap: it is not the next; Retryable."""
        if family != self._family:
            if self._family is not None:
                await self._end_family()
            self._family, self._first, self._last = family, 1, 0
        commit = decode_raw_commit(line.commit)
        if commit.first_sequence != self._last + 1:
            raise Gap(f"{'/'.join(self.run)}: {commit.first_sequence} follows {self._last} in the {family}")
        text = _one_line(line)
        self._lines.append(text)
        self._size += len(text)
        self._last = commit.last_sequence
        if len(self._lines) >= PART_COMMITS or self._size >= PART_BYTES:
            await self._write_part()

    async def finish(
        self, state: State, status: str, *, erased: tuple[str, ...] = (), erased_content: tuple[str, ...] = ()
    ) -> str:
        """Write the rest, the state and the manifest; the SHA-256 of the manifest. Raises Gap, Retryable."""
        await self._end_family()
        body = encode(
            ArchivedState(
                state=state,
                through_sequence=state["through_sequence"],
                reducer_version=REDUCER_VERSION,
                checksum=checksum(state),
            )
        )
        await self.objects.put(self._path(SNAPSHOT), body)
        manifest = ArchiveManifest(
            format=FORMAT, tenant_id=self.run.tenant_id, run_id=self.run.run_id, from_sequence=1,
            to_sequence=self.to_sequence, status=status, parts=tuple(self.parts), erased=erased,
            erased_content=erased_content,
            snapshot=ArchivedSnapshot(
                name=SNAPSHOT, sha256=sha256_hex(body), checksum=checksum(state), reducer_version=REDUCER_VERSION,
                through_sequence=state["through_sequence"],
            ),
        )  # fmt: skip
        text = encode(manifest)
        await self.objects.put(self._path(MANIFEST), text)
        return sha256_hex(text)

    async def _end_family(self) -> None:
        if self._lines:
            await self._write_part()
        if self._last != self.to_sequence:
            raise Gap(f"{'/'.join(self.run)}: the {self._family} ends at {self._last}, not at {self.to_sequence}")

    async def _write_part(self) -> None:
        assert self._family is not None  # noqa: S101 - there are lines, so they are of a family
        number = 1 + sum(part.family == self._family for part in self.parts)
        name = f"{self._family}-{number:05d}.jsonl.zst"
        data = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(b"".join(self._lines))
        await self.objects.put(self._path(name), data)
        self.parts.append(
            ArchivePart(
                name=name, family=self._family, first_sequence=self._first, last_sequence=self._last,
                commits=len(self._lines), bytes=len(data), sha256=sha256_hex(data),
            )
        )  # fmt: skip
        self._lines, self._size, self._first = [], 0, self._last + 1

    def _path(self, name: str) -> str:
        return f"{archive_folder(self.run, self.to_sequence)}/{name}"


class Archives:
    """Reads archives. Every call raises `Retryable`, and `ArchiveBroken` where something is not what it was."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects

    def writer(self, run: RunAddress, to_sequence: int) -> ArchiveWriter:
        """Begin an archive of everything up to a sequence."""
        return ArchiveWriter(self.objects, run, to_sequence)

    async def manifest(self, run: RunAddress, to_sequence: int, *, sha256: str | None = None) -> ArchiveManifest | None:
        """What an archive holds; None: there is none. `sha256`: what the log says of it."""
        text = await self.objects.get(f"{archive_folder(run, to_sequence)}/{MANIFEST}")
        if text is None:
            return None
        if sha256 is not None and sha256_hex(text) != sha256:
            raise ArchiveBroken(f"the manifest of {'/'.join(run)}/{to_sequence} is not what the log says")
        try:
            manifest = decode_manifest(text)
        except msgspec.MsgspecError as exc:
            raise ArchiveBroken(f"the manifest of {'/'.join(run)}/{to_sequence} cannot be read") from exc
        if (manifest.tenant_id, manifest.run_id, manifest.to_sequence) != (*run, to_sequence):
            raise ArchiveBroken(f"the manifest of {'/'.join(run)}/{to_sequence} is another run's")
        return manifest

    async def state(self, manifest: ArchiveManifest) -> ArchivedState:
        """The state at the end of the archive."""
        body = await self._file(manifest, manifest.snapshot.name, manifest.snapshot.sha256)
        return decode_archived_state(body)

    async def lines(self, manifest: ArchiveManifest, part: ArchivePart) -> list[ArchiveLine]:
        """The commits of one part, in order, without a gap."""
        data = await self._file(manifest, part.name, part.sha256)
        try:
            lines = list(_lines(zstandard.ZstdDecompressor().decompress(data, max_output_size=MAX_PART_BYTES)))
            expected = part.first_sequence
            for line in lines:
                commit = decode_raw_commit(line.commit)
                if commit.first_sequence != expected:
                    raise ArchiveBroken(f"{part.name}: {commit.first_sequence} stands where {expected} should")
                expected = commit.last_sequence + 1
        except (msgspec.MsgspecError, zstandard.ZstdError) as exc:
            raise ArchiveBroken(f"{part.name} of {_name(manifest)} cannot be read") from exc
        if (len(lines), expected) != (part.commits, part.last_sequence + 1):
            raise ArchiveBroken(f"{part.name} of {_name(manifest)} is not whole")
        return lines

    async def all_lines(self, manifest: ArchiveManifest, family: Family) -> AsyncIterator[ArchiveLine]:
        """Every commit of a family, in order."""
        for part in manifest.of(family):
            for line in await self.lines(manifest, part):
                yield line

    async def verify(self, manifest: ArchiveManifest) -> None:
        """Read all of it back. Returns if every byte is what the manifest says, and it is the whole record."""
        families: tuple[Family, ...] = ("log", "view")
        for family in families:
            expected = 1
            for part in manifest.of(family):
                if part.first_sequence != expected:
                    raise ArchiveBroken(f"{_name(manifest)}: {part.name} does not follow what is before it")
                await self.lines(manifest, part)
                expected = part.last_sequence + 1
            if expected != manifest.to_sequence + 1:
                raise ArchiveBroken(f"{_name(manifest)} lacks what is after {expected - 1} of the {family}")
        found = await self.state(manifest)
        if checksum(found.state) != manifest.snapshot.checksum:
            raise ArchiveBroken(f"the state of {_name(manifest)} is not what it was")

    async def known(self, run: RunAddress) -> list[int]:
        """The ends of the archives of a run, also of those that were begun only."""
        folder = runs_folder(run)
        ends = {path.removeprefix(f"{folder}/").partition("/")[0] for path in await self.objects.list(folder)}
        return sorted(int(end) for end in ends if end.isdigit())

    async def delete(self, run: RunAddress, to_sequence: int) -> None:
        """Delete an archive, its manifest first. Again: nothing."""
        folder = archive_folder(run, to_sequence)
        await self.objects.delete(f"{folder}/{MANIFEST}")
        for path in await self.objects.list(folder):
            await self.objects.delete(path)

    async def _file(self, manifest: ArchiveManifest, name: str, sha256: str) -> bytes:
        folder = archive_folder(RunAddress(manifest.tenant_id, manifest.run_id), manifest.to_sequence)
        data = await self.objects.get(f"{folder}/{name}")
        if data is None:
            raise ArchiveBroken(f"{name} of {_name(manifest)} is gone")
        if sha256_hex(data) != sha256:
            raise ArchiveBroken(f"{name} of {_name(manifest)} was changed")
        return data


async def opened(archives: Archives, run: RunAddress, to_sequence: int, *, sha256: str) -> ArchiveManifest:
    """The archive that the log speaks of. Raises ArchiveBroken: it is not there; Retryable."""
    manifest = await archives.manifest(run, to_sequence, sha256=sha256)
    if manifest is None:
        raise ArchiveBroken(f"the archive of {'/'.join(run)} up to {to_sequence} is gone")
    return manifest


def _one_line(line: ArchiveLine) -> bytes:
    text = encode(line)
    if b"\n" in text:  # white space between the tokens of a commit that somebody else encoded
        commit = msgspec.Raw(encode(msgspec.json.decode(line.commit)))
        text = encode(ArchiveLine(recorded_at=line.recorded_at, commit=commit))
    return text + b"\n"


def _lines(data: bytes) -> Iterator[ArchiveLine]:
    return (decode_archive_line(text) for text in data.split(b"\n") if text)


def _name(manifest: ArchiveManifest) -> str:
    return f"{manifest.tenant_id}/{manifest.run_id}/{manifest.to_sequence}"
