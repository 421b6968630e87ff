"""What lies in object storage of a run whose beginning is no longer in the log.

archive/<tenant>/<run>/<to_sequence>/manifest.json    what there is, and the SHA-256 of each part as it lies there
                                     snapshot.json    the state after `to_sequence`, as the view's readers fold it
                                     view-<n>.jsonl.zst   commits of the view, a line each: {recorded_at, commit}
                                     log-<n>.jsonl.zst    the same of the log, unmasked: for the platform only

The same record gives the same bytes, so whoever archives a run again writes what is there already. The manifest is
written last: without it there is no archive. `log.compacted` names its SHA-256.
"""

import hashlib
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from runlane_contracts.ids import is_id, is_tenant
from runlane_contracts.subjects import RunAddress

FORMAT = "runlane-archive/1"
MANIFEST = "manifest.json"
SNAPSHOT = "snapshot.json"
ARCHIVE_EPOCH = "archive"
"""The stream epoch of positions in an archive: ``archive-<to_sequence>``."""

Family = Literal["view", "log"]


class ArchivePart(Struct, frozen=True, kw_only=True):
    """One file of commits, in order. `commits` of the parts before it and its own number its lines from 1."""

    name: str
    family: Family
    first_sequence: int
    last_sequence: int
    commits: int
    bytes: int
    sha256: str


class ArchivedSnapshot(Struct, frozen=True, kw_only=True):
    """The file of the state."""

    name: str
    sha256: str
    checksum: str
    reducer_version: int
    through_sequence: int


class ArchiveManifest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an archive holds. `erased`: item keys whose content is gone from it, or ``*``."""

    format: str
    tenant_id: str
    run_id: str
    from_sequence: int
    to_sequence: int
    status: str
    parts: tuple[ArchivePart, ...]
    snapshot: ArchivedSnapshot
    erased: tuple[str, ...] = ()
    erased_content: tuple[str, ...] = ()
    """Content that facts of it pointed to, and that goes with them."""

    def of(self, family: Family) -> list[ArchivePart]:
        """The parts of a family, in order."""
        return [part for part in self.parts if part.family == family]


class ArchivedState(Struct, frozen=True, kw_only=True):
    """`snapshot.json`."""

    state: dict[str, Any]
    through_sequence: int
    reducer_version: int
    checksum: str


class ArchiveLine(Struct, frozen=True, kw_only=True):
    """One commit and when the broker stored it."""

    recorded_at: str
    commit: Raw


decode_manifest = msgspec.json.Decoder(ArchiveManifest).decode
decode_archived_state = msgspec.json.Decoder(ArchivedState).decode
decode_archive_line = msgspec.json.Decoder(ArchiveLine).decode


def runs_folder(run: RunAddress) -> str:
    """Where everything archived of a run lies."""
    if not (is_tenant(run.tenant_id) and is_id(run.run_id)):
        raise ValueError(f"not the address of a run: {run!r}")
    return f"archive/{run.tenant_id}/{run.run_id}"


def pending_path(run: RunAddress) -> str:
    """A mark that somebody is about to take the run out, or died while doing so."""
    return f"pending/{run.tenant_id}/{run.run_id}"


def archive_folder(run: RunAddress, to_sequence: int) -> str:
    """Where one archive of a run lies."""
    return f"{runs_folder(run)}/{to_sequence}"


def snapshot_ref(run: RunAddress, to_sequence: int) -> str:
    """Where the state that replaces what was taken out is read."""
    return f"/v1/runs/{run.run_id}/snapshot?at_sequence={to_sequence}"


def sha256_hex(data: bytes) -> str:
    """As manifests and `log.compacted` state it."""
    return hashlib.sha256(data).hexdigest()
