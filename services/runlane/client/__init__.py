"""The Runlane SDK: write runs, follow runs, act on runs.

    from runlane.client import HttpTransport, RunReader, RunWriter

Importing this package is cheap: a name is loaded when it is first used. What each name promises is in its
docstring; `README.md` beside this file shows them at work.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runlane.client.backoff import BackoffPolicy
    from runlane.client.checkpoint import CheckpointRefused
    from runlane.client.checkpoint_stores import (
        CheckpointStore,
        FileCheckpointStore,
        MemoryCheckpointStore,
        SqliteCheckpointStore,
    )
    from runlane.client.client import Client
    from runlane.client.commands import (
        ActionOutcome,
        Applied,
        CommandFactory,
        Declined,
        Held,
        Intent,
        RunActions,
        Unknown,
    )
    from runlane.client.context import RunContext
    from runlane.client.cursor_store import CursorStore, FileCursorStore, MemoryCursorStore
    from runlane.client.effects import Effect, Executed, NotExecuted, Reconcile, UnknownCall
    from runlane.client.errors import (
        AlreadyRan,
        ContractViolation,
        LeaseLost,
        NonDeterministic,
        RequestRefused,
        RunCancelled,
        RunlaneError,
        ToolCallFailed,
        Unreachable,
    )
    from runlane.client.items import ToolInProgress
    from runlane.client.overlay import PreviewEntry, PreviewOverlay
    from runlane.client.reader import (
        Connection,
        ReadOutcome,
        Refused,
        ResetRequired,
        Resumed,
        RunReader,
        RunTerminal,
        SnapshotGiven,
    )
    from runlane.client.redact import Redactor, TokenRedactor
    from runlane.client.state import RunState
    from runlane.client.transports.http import HttpTransport
    from runlane.client.transports.nats import NatsTransport
    from runlane.client.transports.pools import NatsPools
    from runlane.client.transports.ws import WebSocketTransport
    from runlane.client.worker import Worker
    from runlane.client.writer import RunWriter
    from runlane_contracts.envelope import Fact
    from runlane_contracts.previews import Preview, PreviewGap
    from runlane_contracts.resume import End, Hello, SnapshotFrame, Synced

_HOME = {
    "BackoffPolicy": "runlane.client.backoff",
    "CheckpointRefused": "runlane.client.checkpoint",
    "CheckpointStore": "runlane.client.checkpoint_stores",
    "FileCheckpointStore": "runlane.client.checkpoint_stores",
    "MemoryCheckpointStore": "runlane.client.checkpoint_stores",
    "SqliteCheckpointStore": "runlane.client.checkpoint_stores",
    "Client": "runlane.client.client",
    "ActionOutcome": "runlane.client.commands",
    "Applied": "runlane.client.commands",
    "CommandFactory": "runlane.client.commands",
    "Declined": "runlane.client.commands",
    "Held": "runlane.client.commands",
    "Intent": "runlane.client.commands",
    "RunActions": "runlane.client.commands",
    "Unknown": "runlane.client.commands",
    "RunContext": "runlane.client.context",
    "ToolInProgress": "runlane.client.items",
    "Effect": "runlane.client.effects",
    "Executed": "runlane.client.effects",
    "NotExecuted": "runlane.client.effects",
    "Reconcile": "runlane.client.effects",
    "UnknownCall": "runlane.client.effects",
    "AlreadyRan": "runlane.client.errors",
    "CursorStore": "runlane.client.cursor_store",
    "FileCursorStore": "runlane.client.cursor_store",
    "MemoryCursorStore": "runlane.client.cursor_store",
    "ContractViolation": "runlane.client.errors",
    "LeaseLost": "runlane.client.errors",
    "NonDeterministic": "runlane.client.errors",
    "RequestRefused": "runlane.client.errors",
    "RunCancelled": "runlane.client.errors",
    "RunlaneError": "runlane.client.errors",
    "ToolCallFailed": "runlane.client.errors",
    "Unreachable": "runlane.client.errors",
    "PreviewEntry": "runlane.client.overlay",
    "PreviewOverlay": "runlane.client.overlay",
    "Connection": "runlane.client.reader",
    "ReadOutcome": "runlane.client.reader",
    "Refused": "runlane.client.reader",
    "ResetRequired": "runlane.client.reader",
    "Resumed": "runlane.client.reader",
    "RunReader": "runlane.client.reader",
    "RunTerminal": "runlane.client.reader",
    "SnapshotGiven": "runlane.client.reader",
    "Redactor": "runlane.client.redact",
    "TokenRedactor": "runlane.client.redact",
    "RunState": "runlane.client.state",
    "HttpTransport": "runlane.client.transports.http",
    "NatsPools": "runlane.client.transports.pools",
    "NatsTransport": "runlane.client.transports.nats",
    "WebSocketTransport": "runlane.client.transports.ws",
    "Worker": "runlane.client.worker",
    "RunWriter": "runlane.client.writer",
    "Fact": "runlane_contracts.envelope",
    "Preview": "runlane_contracts.previews",
    "PreviewGap": "runlane_contracts.previews",
    "End": "runlane_contracts.resume",
    "Hello": "runlane_contracts.resume",
    "SnapshotFrame": "runlane_contracts.resume",
    "Synced": "runlane_contracts.resume",
}

__all__ = [
    "ActionOutcome", "AlreadyRan", "Applied", "BackoffPolicy", "CheckpointRefused", "CheckpointStore", "Client",
    "CommandFactory", "Connection", "ContractViolation", "CursorStore", "Declined", "Effect", "End", "Executed",
    "Fact", "FileCheckpointStore", "FileCursorStore", "Held", "Hello", "HttpTransport", "Intent", "LeaseLost",
    "MemoryCheckpointStore", "MemoryCursorStore", "NatsPools", "NatsTransport", "NonDeterministic", "NotExecuted",
    "Preview", "PreviewEntry", "PreviewGap", "PreviewOverlay", "ReadOutcome", "Reconcile", "Redactor", "Refused",
    "RequestRefused", "ResetRequired", "Resumed", "RunActions", "RunCancelled", "RunContext", "RunReader",
    "RunState", "RunTerminal", "RunWriter", "RunlaneError", "SnapshotFrame", "SnapshotGiven",
    "SqliteCheckpointStore", "Synced", "TokenRedactor", "ToolCallFailed", "ToolInProgress", "Unknown",
    "UnknownCall", "Unreachable", "WebSocketTransport", "Worker",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return list(__all__)
