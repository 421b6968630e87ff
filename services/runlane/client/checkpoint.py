"""What a client keeps of its runs, so that a new process goes on where the old one was.

A checkpoint is a few named parts: `run/<run_id>` per run that is followed, and `commands`. Each part carries the
version of its shape and a hash over its body. A part that does not check out refuses the whole checkpoint, with the
reason: nothing of it is used, so no client ever shows half of what it knew.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from runlane.client.errors import RunlaneError
from runlane_contracts.codec import encode
from runlane_contracts.cursor import REDUCER_VERSION
from runlane_contracts.reducer import State

SCHEMA_VERSION = 1
COMMANDS = "commands"
_RUN = "run/"

B = TypeVar("B", bound=Struct)


class CheckpointRefused(RunlaneError):
    """A checkpoint cannot be used: damaged, of another version, or held by another process. Nothing was loaded."""

    code = "checkpoint_refused"

    def __init__(self, reason: str) -> None:
        super().__init__(f"the checkpoint cannot be used: {reason}")
        self.reason = reason


class RunCheckpoint(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run: the state, the cursor that continues it, and the input it was started with from here."""

    run_id: str
    cursor: str | None = None
    state: State | None = None
    reducer_version: int = REDUCER_VERSION
    input: Any = None


class PendingCommand(Struct, frozen=True, kw_only=True):
    """A wish that was sent, or was about to be, and whose outcome is not known."""

    run_id: str
    type: str
    payload: Any
    idempotency_key: str


class Checkpoint(Struct, frozen=True, kw_only=True):
    """Everything a client keeps."""

    runs: Mapping[str, RunCheckpoint]
    pending: tuple[PendingCommand, ...] = ()


class _Part(Struct, frozen=True):
    schema_version: int
    sha256: str
    body: Raw


class _Pending(Struct, frozen=True):
    pending: tuple[PendingCommand, ...]


_decode_part = msgspec.json.Decoder(_Part).decode


def part_of_run(run: RunCheckpoint) -> tuple[str, bytes]:
    """A run's name among the parts, and its bytes."""
    return run_part(run.run_id), _sealed(run)


def run_part(run_id: str) -> str:
    """A run's name among the parts."""
    return _RUN + run_id


def part_of_commands(pending: tuple[PendingCommand, ...]) -> tuple[str, bytes]:
    """The name and bytes of what is not settled."""
    return COMMANDS, _sealed(_Pending(pending))


def opened(parts: Mapping[str, bytes]) -> Checkpoint:
    """All parts, checked.

    Raises:
        CheckpointRefused: one of them is damaged, of a newer version, or folded by another reducer.
    """
    runs: dict[str, RunCheckpoint] = {}
    pending: tuple[PendingCommand, ...] = ()
    for name, raw in parts.items():
        if name == COMMANDS:
            pending = _unsealed(name, raw, _Pending).pending
        elif name.startswith(_RUN):
            run = _unsealed(name, raw, RunCheckpoint)
            _check_run(name, run)
            runs[run.run_id] = run
        else:
            raise CheckpointRefused(f"{name[:80]!r} is no part of a checkpoint")
    return Checkpoint(runs=runs, pending=pending)


def _check_run(name: str, run: RunCheckpoint) -> None:
    if name != run_part(run.run_id):
        raise CheckpointRefused(f"{name} holds the run {run.run_id[:80]!r}")
    if run.state is not None and run.reducer_version != REDUCER_VERSION:
        raise CheckpointRefused(f"{name} was folded by version {run.reducer_version}, this is {REDUCER_VERSION}")


def _sealed(body: Struct) -> bytes:
    raw = encode(body)
    return encode(_Part(SCHEMA_VERSION, _hash(raw), Raw(raw)))


def _hash(raw: bytes) -> str:
    return f"sha256:{hashlib.sha256(raw).hexdigest()}"


def _unsealed(name: str, raw: bytes, kind: type[B]) -> B:
    try:
        part = _decode_part(raw)
    except msgspec.MsgspecError as exc:
        raise CheckpointRefused(f"{name} is damaged: {exc}") from exc
    if part.schema_version != SCHEMA_VERSION:
        raise CheckpointRefused(f"{name} has schema version {part.schema_version}, this client reads {SCHEMA_VERSION}")
    if part.sha256 != _hash(bytes(part.body)):
        raise CheckpointRefused(f"{name} is damaged: its hash differs")
    try:
        return msgspec.json.decode(part.body, type=kind)
    except msgspec.MsgspecError as exc:
        raise CheckpointRefused(f"{name}: {exc}") from exc
