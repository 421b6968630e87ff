"""JSON Schemas and AsyncAPI of the contract, generated from its structs: `python -m runlane_contracts.schema_export`.

The files under `contracts/schemas/v1` are committed; a test fails when they are not what this writes.
"""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, Struct

from runlane_contracts import events, headers, websocket
from runlane_contracts.audit import PROGRESS, AuditRecord, Refusal
from runlane_contracts.commands import COMMANDS, Command, LedgerEntry
from runlane_contracts.cursor import REDUCER_VERSION
from runlane_contracts.envelope import Commit, Fact
from runlane_contracts.events import Mark
from runlane_contracts.lifecycle import FactDraft
from runlane_contracts.previews import Preview, PreviewBatch, PreviewGap
from runlane_contracts.problems import ProblemDocument
from runlane_contracts.resume import End, Hello, SnapshotFrame, Synced
from runlane_contracts.streams import Layout, StreamSpec

DIALECT = "https://json-schema.org/draft/2020-12/schema"
DIRECTORY = Path(__file__).parents[1] / "schemas" / "v1"

Schema = dict[str, Any]


def documents() -> dict[str, Schema]:
    """Every generated document by file name."""
    return {
        "payloads.json": _payloads(),
        "fact.json": _typed("Fact", Fact, events.PAYLOADS, "One authoritative event."),
        "fact_draft.json": _typed("FactDraft", FactDraft, events.PAYLOADS, "A fact as its producer states it."),
        "commit.json": _commit(),
        "command.json": _typed("Command", Command, COMMANDS, "A command as it lies in the command stream."),
        "ledger_entry.json": _plain("LedgerEntry", [LedgerEntry]),
        "audit_record.json": _plain("AuditRecord", [AuditRecord]),
        "preview.json": _plain("Preview", [Preview]),
        "preview_batch.json": _plain("PreviewBatch", [PreviewBatch]),
        "problem.json": _plain("ProblemDocument", [ProblemDocument]),
        **{f"frame_{name}.json": _plain(cls.__name__, [cls]) for name, cls in _FRAMES.items()},
        "asyncapi.json": asyncapi(),
        "asyncapi_websocket.json": asyncapi_websocket(),
    }


_FRAMES: dict[str, type[Struct]] = {
    "hello": Hello, "snapshot": SnapshotFrame, "synced": Synced, "preview_gap": PreviewGap, "end": End,
}  # fmt: skip


def encoded(document: Schema) -> bytes:
    """The bytes of one file."""
    return msgspec.json.format(msgspec.json.encode(document, order="sorted"), indent=2) + b"\n"


def main() -> int:
    """Write every document; remove those that are no longer generated."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    wanted = documents()
    for stale in {path.name for path in DIRECTORY.glob("*.json")} - set(wanted):
        (DIRECTORY / stale).unlink()
    for name, document in wanted.items():
        (DIRECTORY / name).write_bytes(encoded(document))
    sys.stderr.write(f"{len(wanted)} documents in {DIRECTORY}\n")
    return 0


# --- JSON Schema ------------------------------------------------------------------------------------------


def _components(types: Iterable[type[Struct]], template: str = "#/$defs/{name}") -> dict[str, Schema]:
    _, found = msgspec.json.schema_components(list(types), ref_template=template)
    return {name: dict(schema) for name, schema in found.items()}


def _plain(name: str, types: list[type[Struct]]) -> Schema:
    return {"$schema": DIALECT, "$ref": f"#/$defs/{name}", "$defs": _components(types)}


def _payloads() -> Schema:
    """Every payload by type. `x-runlane-content` and `x-runlane-secret` name the fields with that mark."""
    definitions = _components(events.PAYLOADS.values())
    for cls in events.PAYLOADS.values():
        definitions[cls.__name__] |= _marks(cls)
    return {
        "$schema": DIALECT,
        "title": "Payloads",
        "description": "The payload of each type of fact.",
        "properties": {type_: {"$ref": f"#/$defs/{cls.__name__}"} for type_, cls in events.PAYLOADS.items()},
        "$defs": definitions,
    }


def _marks(cls: type[events.Payload]) -> Schema:
    marks: Schema = {"x-runlane-type": cls.TYPE, "x-runlane-version": cls.VERSION}
    for mark in Mark:
        fields = events.marked_fields(cls, mark)
        if fields:
            marks[f"x-runlane-{mark.value}"] = list(fields)
    if cls.ITEM is not None:
        marks["x-runlane-item"] = {"kind": cls.ITEM[0], "id": cls.ITEM[1]}
    return marks


def _typed(name: str, envelope: type[Struct], payloads: Mapping[str, type[Struct]], description: str) -> Schema:
    """An envelope whose payload follows from its type; an unknown type may hold anything."""
    return {
        "$schema": DIALECT,
        "title": name,
        "description": description,
        "$ref": f"#/$defs/{name}",
        "allOf": _by_type(payloads),
        "$defs": _components([_with_object(envelope), *payloads.values()]),
    }


def _with_object(envelope: type[Struct]) -> type[Struct]:
    """The same struct with an object where it keeps raw bytes: what is on the wire."""
    fields: list[Any] = []
    for one in msgspec.structs.fields(envelope):
        kind = dict[str, Any] if one.type is Raw else one.type
        if one.required:
            fields.append((one.encode_name, kind))
        elif one.type is Raw:
            fields.append((one.encode_name, kind, msgspec.field(default_factory=dict)))
        else:
            fields.append((one.encode_name, kind, one.default))
    return msgspec.defstruct(envelope.__name__, fields, kw_only=True, namespace={"__doc__": envelope.__doc__})


def _by_type(payloads: Mapping[str, type[Struct]]) -> list[Schema]:
    return [
        {
            "if": {"properties": {"type": {"const": type_}}, "required": ["type"]},
            "then": {"properties": {"payload": {"$ref": f"#/$defs/{cls.__name__}"}}},
        }
        for type_, cls in payloads.items()
    ]


def _commit() -> Schema:
    document = _plain("Commit", [Commit, *events.PAYLOADS.values()])
    document["$defs"]["Fact"]["allOf"] = _by_type(events.PAYLOADS)
    return document


# --- AsyncAPI ---------------------------------------------------------------------------------------------


def asyncapi() -> Schema:
    """AsyncAPI 3.0 of what travels over NATS: channels from the subjects, with their streams, and who reads them."""
    layout = Layout()
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Runlane over NATS",
            "version": "1",
            "description": f"Subjects, streams and messages. Reducer version {REDUCER_VERSION}.",
        },
        "defaultContentType": "application/json",
        "channels": {name: _channel(name, layout) for name in _CHANNELS},
        "operations": _operations(layout),
        "components": {"messages": _messages(), "schemas": _components(_MESSAGE_TYPES, "#/components/schemas/{name}")},
    }


# Channel: subject family, parameters after it, message, what it is for.
_CHANNELS: dict[str, tuple[str, tuple[str, ...], str, str]] = {
    "log": ("log", ("partition", "tenant", "run"), "commit", "The authoritative record. Platform services only."),
    "view": ("view", ("partition", "tenant", "run"), "viewCommit", "The same commits as people may see them."),
    "live": ("live", ("tenant", "run"), "viewCommit", "View commits as they are stored. Core, live only."),
    "signal": ("signal", ("tenant", "family", "verb"), "signal", "One fact without its content."),
    "command": ("cmd", ("partition", "tenant", "run"), "command", "Commands on their way to the supervisor."),
    "audit": ("audit", ("tenant", "category"), "auditRecord", "Who did what: a hash chain for each tenant."),
    "intake": (
        "intake",
        ("tenant", "service"),
        "refusal",
        "Refusals of access, and changes of API keys, on their way into the audit.",
    ),
    "outcome": ("outcome", ("tenant", "command"), "wakeUp", "Core: look at the ledger, this command was settled."),
    "previewRaw": ("preview.raw", ("tenant", "run"), "previews", "Fragments as a worker states them. Core."),
    "previewView": ("preview.view", ("tenant", "run"), "previews", "Fragments as people may see them. Core."),
}

_PARAMETERS = {
    "partition": "Two hex digits: FNV-1a (32 bit) of the run id, modulo 256.",
    "tenant": "Isolation unit.",
    "run": "One durable execution of an agent.",
    "family": "First half of a fact's type.",
    "verb": "Second half of a fact's type.",
    "command": "Id of a command.",
    "category": "What kind of record it is.",
    "service": "Which service reports it.",
}

_MESSAGE_TYPES: list[type[Struct]] = [Commit, Fact, Command, PreviewBatch, AuditRecord, Refusal]


def _channel(name: str, layout: Layout) -> Schema:
    family, parameters, message, description = _CHANNELS[name]
    address = ".".join([layout.root, family, *(f"{{{parameter}}}" for parameter in parameters)])
    channel: Schema = {
        "address": address,
        "description": description,
        "parameters": {parameter: {"description": _PARAMETERS[parameter]} for parameter in parameters},
        "messages": {message: {"$ref": f"#/components/messages/{message}"}},
    }
    streams = [spec for spec in layout.streams() if layout.subjects.all_of(family) in spec.subjects]
    if streams:
        channel["x-runlane-streams"] = [_stream(spec) for spec in streams]
    return channel


def _stream(spec: StreamSpec) -> Schema:
    described: Schema = msgspec.to_builtins(spec)
    return {name: described[name] for name in ("name", "subjects", "retention", "discard", "fsync", "max_age_s")}


def _operations(layout: Layout) -> Schema:
    channel_of = {spec.name: name for name in _CHANNELS for spec in _streams_of(name, layout)}
    return {
        spec.durable: {
            "action": "receive",
            "channel": {"$ref": f"#/channels/{channel_of[spec.stream]}"},
            "summary": f"{spec.service} by the durable consumer {spec.durable}",
        }
        for spec in layout.consumers()
        if spec.stream in channel_of  # a bucket is no channel
    }


def _streams_of(name: str, layout: Layout) -> list[StreamSpec]:
    return [spec for spec in layout.streams() if layout.subjects.all_of(_CHANNELS[name][0]) in spec.subjects]


def _messages() -> Schema:
    def message(title: str, payload: Schema, *header_names: str) -> Schema:
        described: Schema = {"title": title, "contentType": "application/json", "payload": payload}
        if header_names:
            described["headers"] = {
                "type": "object",
                "properties": {header: {"type": "string"} for header in header_names},
            }
        return described

    def struct(cls: type[Struct]) -> Schema:
        return {"$ref": f"#/components/schemas/{cls.__name__}"}

    return {
        "commit": message(
            "1…N facts of one run", struct(Commit),
            headers.COMMIT_ID, headers.EXPECTED_LAST_SUBJECT_SEQUENCE, headers.TRACEPARENT,
        ),
        "viewCommit": message(
            "1…N facts of one run, as people may see them", struct(Commit),
            headers.FIRST_SEQUENCE, headers.LAST_SEQUENCE, headers.LOG_POSITION, headers.RULES, headers.TRACEPARENT,
        ),
        "signal": message(
            "One fact without its content", struct(Fact),
            headers.LOG_POSITION, headers.TRACEPARENT, headers.CE_ID, headers.CE_TYPE, headers.CE_SOURCE,
            headers.CE_TIME, headers.CE_SPECVERSION,
        ),
        "command": message("A command", struct(Command), headers.COMMIT_ID, headers.TRACEPARENT),
        "auditRecord": message("A sealed record", struct(AuditRecord), PROGRESS),
        "refusal": message("Somebody was not let in", struct(Refusal), headers.COMMIT_ID),
        "wakeUp": message("Nothing: only a wake-up", {}),
        "previews": message("Fragments of one run", struct(PreviewBatch)),
    }  # fmt: skip


# --- AsyncAPI of the WebSocket ------------------------------------------------------------------------------

_CALLS: dict[str, tuple[type[Struct] | None, type[Struct] | None, str]] = {
    "initialize": (websocket.Initialize, websocket.Initialized, "Always first."),
    "run/watch": (websocket.Watch, websocket.Watching, "Follow a run."),
    "run/ack": (websocket.Ack, websocket.Acked, "Everything up to the cursor was applied."),
    "run/unwatch": (websocket.Unwatch, websocket.Unwatched, "Follow it no more."),
    "command/submit": (websocket.Submit, LedgerEntry, "Ask something of a run."),
    "auth/renew": (websocket.Renew, websocket.Renewed, "Another token of the same tenant."),
    "ping": (None, None, "Is anybody there?"),
}
_NOTES: dict[str, tuple[type[Struct], str]] = {
    "run/snapshot": (websocket.SnapshotNotice, "State first; what follows starts after it."),
    "run/fact": (websocket.FactNotice, "One fact, as its bytes are over SSE."),
    "run/synced": (websocket.SyncedNotice, "Caught up; live from here."),
    "run/preview": (websocket.PreviewNotice, "Shown, never stored."),
    "run/preview_gap": (websocket.PreviewGapNotice, "Previews that were lost."),
    "run/end": (websocket.EndNotice, "The last of a subscription."),
    "auth/expiring": (websocket.Expiring, "Renew the token, or the connection ends."),
    "message/part": (websocket.Part, "A piece of a message that is larger than the client takes."),
}


def asyncapi_websocket() -> Schema:
    """AsyncAPI 3.0 of `GET /v1/ws`: the calls of a client with their results, and what the server says by itself."""
    types = {one for wish, result, _ in _CALLS.values() for one in (wish, result) if one is not None}
    types |= {kind for kind, _ in _NOTES.values()} | {ProblemDocument}
    schemas = _components(sorted(map(_with_object, types), key=lambda one: one.__name__), "#/components/schemas/{name}")
    messages = {_key(method): _call(method, wish, text) for method, (wish, _, text) in _CALLS.items()}
    messages |= {f"{_key(method)}Result": _result(method, found) for method, (_, found, _) in _CALLS.items()}
    messages |= {_key(method): _call(method, kind, text) for method, (kind, text) in _NOTES.items()}
    references = {name: {"$ref": f"#/components/messages/{name}"} for name in messages}
    said = [{"$ref": f"#/channels/ws/messages/{_key(method)}"} for method in _NOTES]
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "Runlane over WebSocket", "version": str(websocket.PROTOCOL_VERSION)},
        "defaultContentType": "application/json",
        "channels": {"ws": {
            "address": "/v1/ws", "messages": references,
            "bindings": {"ws": {"method": "GET"}},
            "x-runlane-close-codes": {str(code.value): code.name.lower() for code in websocket.CloseCode},
            "x-runlane-error-numbers": {str(code.value): code.name.lower() for code in websocket.RpcCode},
        }},
        "operations": {
            "say": {"action": "send", "channel": {"$ref": "#/channels/ws"}, "messages": said},
            **{_key(method): _operation(method, text) for method, (_, _, text) in _CALLS.items()},
        },
        "components": {"messages": messages, "schemas": schemas},
    }  # fmt: skip


def _operation(method: str, text: str) -> Schema:
    channel = {"$ref": "#/channels/ws"}
    return {
        "action": "receive", "channel": channel, "summary": text,
        "messages": [{"$ref": f"#/channels/ws/messages/{_key(method)}"}],
        "reply": {"channel": channel, "messages": [{"$ref": f"#/channels/ws/messages/{_key(method)}Result"}]},
    }  # fmt: skip


def _key(method: str) -> str:
    first, _, second = method.partition("/")
    return first + second.title().replace("_", "")


def _rpc(required: list[str], **properties: Schema) -> Schema:
    return {"type": "object", "properties": {"jsonrpc": {"const": "2.0"}, **properties}, "required": required}


def _of(kind: type[Struct] | None) -> Schema:
    return {"type": "object"} if kind is None else {"$ref": f"#/components/schemas/{kind.__name__}"}


def _call(method: str, kind: type[Struct] | None, text: str) -> Schema:
    payload = _rpc(["jsonrpc", "method"], id=_ID, method={"const": method}, params=_of(kind))
    return {"title": text, "contentType": "application/json", "payload": payload}


def _result(method: str, kind: type[Struct] | None) -> Schema:
    error = {"type": "object", "properties": {
        "code": {"type": "integer"}, "message": {"type": "string"}, "data": _of(ProblemDocument),
    }, "required": ["code", "message", "data"]}  # fmt: skip
    payload = _rpc(["jsonrpc", "id"], id=_ID, result=_of(kind), error=error)
    return {"title": f"The answer to {method}", "contentType": "application/json", "payload": payload}


_ID: Schema = {"type": ["string", "number", "null"]}


if __name__ == "__main__":
    sys.exit(main())
