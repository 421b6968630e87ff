"""What goes into the read store and what comes out of it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct

from runlane_contracts.codec import decode_json, encode
from runlane_contracts.cursor import Position
from runlane_contracts.reducer import Quarantine, State
from runlane_contracts.subjects import RunAddress
from runlane_contracts.tracing import run_trace_id

PROJECTION = "runs"
"""The one fold that is kept: states of runs and the lists over them."""


class StreamPosition(Struct, frozen=True):
    """How far one VIEW stream is folded. Comparable only within one epoch."""

    epoch: str
    stream_seq: int


NOT_STARTED = StreamPosition("", 0)
"""Nothing of the stream is folded yet."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A run's state and the VIEW position it was folded through."""

    run: RunAddress
    state: State
    position: Position
    text_length: int
    """Of the stored JSON: about how large the state is."""
    quarantined: Quarantine | None = None
    """Why it is not folded any further."""


@dataclass(frozen=True, slots=True)
class RunChange:
    """A run's new state. `items` are the keys of the items that differ from what is stored."""

    run: RunAddress
    state: State
    position: Position
    items: frozenset[str]
    quarantined: Quarantine | None = None
    replaced: bool = False
    """Items that are stored and not in the state are deleted."""

    @property
    def is_erased(self) -> bool:
        """Whether an erasure took something out of it."""
        return any(mark.get("reason") == "erasure" for mark in self.state["marks"])


class RunRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run in a list: bounded, without input and output."""

    run_id: str
    status: str
    trace_id: str
    """That of `GET /v1/runs/{run_id}` and of the log lines about it."""
    created_at: str
    updated_at: str
    through_sequence: int
    agent: str | None = None
    session_id: str | None = None
    pool: str | None = None
    worker_id: str | None = None
    ended_at: str | None = None
    quarantined: Quarantine | None = None
    """The fact before which its view stands still."""


class FinishedRow(Struct, frozen=True, kw_only=True):
    """A run that is over and whole in the log. `retention`: the class it asked for."""

    tenant_id: str
    run_id: str
    ended_at: str
    retention: str | None = None


class ApprovalRow(Struct, frozen=True, kw_only=True):
    """One approval in a list, with the item as the reducer holds it."""

    run_id: str
    approval: dict[str, Any]


Row = dict[str, Any]


def run_row(generation: int, change: RunChange) -> Row:
    """The columns of a run."""
    run = change.state["run"]
    created_at = run.get("created_at") or run.get("updated_at") or ""
    return {
        "generation": generation,
        "tenant_id": change.run.tenant_id,
        "run_id": change.run.run_id,
        "status": run["status"],
        "agent": _column(run, "agent"),
        "session_id": _column(run, "session_id"),
        "pool": _column(run, "pool") or "default",
        "worker_id": _column(run, "worker_id"),
        "trace_id": _column(run, "trace_id") or run_trace_id(*change.run),
        "created_at": created_at,
        "updated_at": run.get("updated_at") or created_at,
        "ended_at": run.get("ended_at"),
        "epoch": change.position.epoch,
        "stream_seq": change.position.stream_seq,
        "through_sequence": change.state["through_sequence"],
        "run": _text(run),
        "marks": _text(change.state["marks"]),
        "quarantined": None if change.quarantined is None else _text(change.quarantined),
    }


def item_rows(generation: int, change: RunChange) -> Iterable[Row]:
    """The columns of the items that changed."""
    for key in change.items:
        item = change.state["items"][key]
        yield {
            "generation": generation,
            "tenant_id": change.run.tenant_id,
            "run_id": change.run.run_id,
            "item_key": key,
            "first_sequence": item["first_sequence"],
            "kind": item["kind"],
            "status": item["status"],
            "started_at": item["started_at"],
            "item": _text(item),
        }


def loaded(run: Mapping[str, Any], its_items: Sequence[tuple[str, str]]) -> Loaded:
    """The reducer's state, exactly as it was written. `its_items`: key and JSON, by first sequence."""
    state = {
        "run": decode_json(run["run"]),
        "items": {key: decode_json(text) for key, text in its_items},
        "marks": decode_json(run["marks"]),
        "through_sequence": run["through_sequence"],
    }
    length = len(run["run"]) + len(run["marks"]) + sum(len(text) for _, text in its_items)
    position = Position(run["epoch"], run["stream_seq"], run["through_sequence"])
    return Loaded(
        RunAddress(run["tenant_id"], run["run_id"]), state, position, length, _quarantine(run["quarantined"])
    )  # fmt: skip


def listed(row: Mapping[str, Any]) -> RunRow:
    """A row of a list."""
    return RunRow(**{**row, "quarantined": _quarantine(row["quarantined"])})


_decode_quarantine = msgspec.json.Decoder(Quarantine).decode


def _quarantine(text: str | None) -> Quarantine | None:
    return None if text is None else _decode_quarantine(text)


def _column(run: State, name: str) -> str | None:
    """Text a list filters by. PostgreSQL has no NUL in text; the JSON beside it keeps what was said."""
    value = run.get(name)
    return value.replace("\0", "\ufffd") if isinstance(value, str) else None


def _text(value: Any) -> str:
    return encode(value).decode()
