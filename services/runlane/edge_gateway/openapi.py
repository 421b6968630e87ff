"""`/openapi.json`: every route of the public port, with the contract's own types. Built once."""

from functools import cache
from typing import Any

import msgspec

from runlane_contracts.commands import COMMANDS, STARTING, LedgerStatus
from runlane_contracts.envelope import Fact
from runlane_contracts.lifecycle import STATUSES
from runlane_contracts.previews import Preview, PreviewGap
from runlane_contracts.problems import MEANINGS, Code, ProblemDocument
from runlane_contracts.resume import End, Hello, SnapshotFrame, Synced
from runlane_contracts.timeline import TimelineRow

Json = dict[str, Any]
_TYPES = (Fact, Preview, PreviewGap, ProblemDocument, Hello, SnapshotFrame, Synced, End, TimelineRow)


@cache
def document() -> Json:
    """The whole document. Not to be changed by its readers."""
    _, components = msgspec.json.schema_components(_TYPES, ref_template="#/components/schemas/{name}")
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Runlane",
            "version": "1",
            "description": "The durable event backbone of an agent fleet: facts, commands, watching.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"bearer": []}],
        "paths": {**_runs(), **_commands(), **_producers(), **_service()},
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "schemas": {**components, "RunView": _RUN_VIEW, "LedgerEntry": _LEDGER_ENTRY, "FactDraft": _FACT_DRAFT},
            "responses": {"Problem": _problem("What went wrong; `code` is stable.")},
        },
    }


# --- parts ------------------------------------------------------------------------------------------------

_TEXT: Json = {"type": "string"}
_ID: Json = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_FLAG: Json = {"type": "boolean"}
_ANY: Json = {}
_RUN_STATUS: Json = {"type": "string", "enum": list(STATUSES)}


def _object(*required: str, **properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": list(required)}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(items: Json, **bounds: int) -> Json:
    return {"type": "array", "items": items, **bounds}


_CURSOR: Json = {"type": "string", "maxLength": 255, "description": "Opaque and signed; stored by the client."}
_RUN_VIEW: Json = _object(
    "run_id", "status", "through_sequence", "cursor",
    run_id=_ID, status=_RUN_STATUS, agent=_TEXT, session_id=_ID, created_at=_TEXT, updated_at=_TEXT, ended_at=_TEXT,
    trace_id=_TEXT,
    through_sequence=_COUNT, cursor=_CURSOR, open_approvals=_COUNT, input=_ANY, output=_ANY, error=_ANY,
    quarantined=_object("sequence", "event_id", "type", sequence=_COUNT, event_id=_ID, type=_TEXT),
)  # fmt: skip
_LEDGER_ENTRY: Json = _object(
    "command_id", "status",
    command_id=_ID, run_id=_ID, type=_TEXT, status={"type": "string", "enum": [one.value for one in LedgerStatus]},
    accepted_at=_TEXT, settled_at=_TEXT, applied_through=_CURSOR, rejection=_ANY,
)  # fmt: skip

_FACT_DRAFT: Json = _object(
    "type",
    type=_TEXT, payload={"type": "object"}, event_id=_ID, occurred_at=_TEXT, classification=_TEXT,
    schema_version=_COUNT, actor={"type": "object"}, agent_id=_TEXT, task_id=_ID, turn_id=_ID, parent_id=_ID,
    correlation_id=_TEXT, causation_ids=_list(_ID), traceparent=_TEXT,
)  # fmt: skip


def _json(schema: Json, description: str = "Done.") -> Json:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _problem(description: str) -> Json:
    return {
        "description": description,
        "content": {"application/problem+json": {"schema": _ref("ProblemDocument")}},
    }


def _operation(
    summary: str, *parameters: Json, ok: dict[int, Json], codes: tuple[Code, ...], body: Json | None
) -> Json:
    problems: dict[int, list[str]] = {}
    for code in codes:
        problems.setdefault(MEANINGS[code].status, []).append(f"`{code.value}`")
    responses = {str(status): answer for status, answer in ok.items()}
    responses |= {str(status): _problem(", ".join(names)) for status, names in sorted(problems.items())}
    found: Json = {"summary": summary, "parameters": list(parameters), "responses": responses}
    if body is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return found


_ACCESS = (Code.UNAUTHENTICATED, Code.FORBIDDEN)
_READ = (*_ACCESS, Code.INVALID_REQUEST, Code.RUN_NOT_FOUND, Code.OVERLOADED, Code.NOT_YET_VISIBLE)
_WRITE = (*_ACCESS, Code.INVALID_REQUEST, Code.RUN_NOT_FOUND, Code.PAYLOAD_TOO_LARGE, Code.QUOTA_EXCEEDED,
          Code.OVERLOADED, Code.UPSTREAM_UNAVAILABLE)  # fmt: skip


def _get(summary: str, *parameters: Json, ok: Json, codes: tuple[Code, ...] = _READ, **more: Json) -> Json:
    others = {int(status.removeprefix("on_")): answer for status, answer in more.items()}
    return _operation(summary, *parameters, ok={200: ok, **others}, codes=codes, body=None)


def _write(summary: str, *parameters: Json, body: Json, ok: dict[int, Json], codes: tuple[Code, ...] = ()) -> Json:
    return _operation(summary, *parameters, ok=ok, codes=(*_WRITE, *codes), body=body)


def _query(name: str, schema: Json, description: str) -> Json:
    return {"name": name, "in": "query", "schema": schema, "description": description}


def _header(name: str, description: str) -> Json:
    return {"name": name, "in": "header", "schema": _TEXT, "description": description}


def _path(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": _ID}


_RUN_ID = _path("run_id")
_LIMIT = _query("limit", {"type": "integer", "minimum": 1}, "How many at most.")
_PAGE_TOKEN = _query("page_token", _TEXT, "From the page before.")
_MIN_SEQUENCE = _query("min_sequence", _COUNT, "Answer once the view has reached it; `not_yet_visible` after 5 s.")
_WAIT_S = _query(
    "wait_s", {"type": "number", "minimum": 0},
    "Answer once there is something after the cursor, or after so many seconds (at most 30) with none and the same "
    "cursor. `ended`: the run is over, nothing will follow.",
)  # fmt: skip
_TYPES_FILTER = _query("types", _TEXT, "Comma separated `family.verb` or `family`. A cursor is bound to its filter.")
_LAST = _query("last", {"type": "integer", "minimum": 1}, "From so many facts before the end, where an item begins.")
_CURSOR_PARAM = _query("cursor", _CURSOR, "Continue after it.")
_IDEMPOTENCY = _header("Idempotency-Key", "The client's name for this one intent.")
_PREFER = _header("Prefer", "`wait=N`: answer with the outcome, if it is there within N seconds.")


# --- routes -----------------------------------------------------------------------------------------------


def _runs() -> Json:
    start = _object(
        "agent",
        agent=_TEXT, input=_ANY, run_id=_ID, session_id=_ID, pool=_ID, deadline_at=_TEXT,
        dispatch={"type": "string", "enum": ["pool", "external"]}, limits={"type": "object"},
    )  # fmt: skip
    again = {
        "type": "object",
        "properties": {
            "from": {"type": "string", "enum": ["input", "checkpoint"]}, "allow_unsafe": _FLAG, "run_id": _ID,
            "session_id": _ID, "pool": _ID, "dispatch": {"type": "string", "enum": ["pool", "external"]},
            "deadline_at": _TEXT, "limits": {"type": "object"},
        },
    }  # fmt: skip
    started = _object(
        "run_id", "command_id",
        run_id=_ID, command_id=_ID, status=_TEXT, sequence=_COUNT, cursor=_CURSOR, parent_run_id=_ID,
    )  # fmt: skip
    snapshot = _object(
        "state", "through_sequence", "reducer_version", "checksum", "cursor",
        state={"type": "object"}, through_sequence=_COUNT, reducer_version=_COUNT, checksum=_TEXT, cursor=_CURSOR,
    )  # fmt: skip
    page = _object(
        "events", "cursor", "has_more", events=_list(_ref("Fact")), cursor=_CURSOR, has_more=_FLAG, ended=_FLAG
    )
    rows = _object(
        "run_id", "rows", "through_sequence", "cursor", "has_more",
        run_id=_ID, rows=_list(_ref("TimelineRow")), through_sequence=_COUNT, timeline_version=_COUNT, cursor=_CURSOR,
        has_more=_FLAG,
    )  # fmt: skip
    append = _object(
        "lease_epoch", "events",
        lease_epoch=_COUNT, expected_sequence=_COUNT, events=_list(_ref("FactDraft"), minItems=1, maxItems=1000),
    )  # fmt: skip
    appended = _object("events", events=_list(_object("event_id", "sequence", event_id=_ID, sequence=_COUNT)))
    cursor_codes = (*_READ, Code.CURSOR_INVALID, Code.CURSOR_FOREIGN, Code.CURSOR_EXPIRED)
    return {
        "/v1/runs": {
            "get": _get(
                "Runs, newest first.",
                _query("status", _RUN_STATUS, "Only these."), _query("agent", _TEXT, "Only its."),
                _query("session_id", _ID, "Only its."), _LIMIT, _PAGE_TOKEN,
                ok=_json(_object("runs", runs=_list(_ref("RunView")), page_token=_TEXT, behind=_FLAG)),
                codes=(*_ACCESS, Code.INVALID_REQUEST, Code.OVERLOADED),
            ),
            "post": _write(
                "Start a run.", _IDEMPOTENCY, _PREFER, body=start,
                ok={201: _json(started, "It exists."), 202: _json(started, "Accepted; it will exist.")},
                codes=(Code.ALREADY_EXISTS, Code.IDEMPOTENCY_CONFLICT),
            ),
        },
        "/v1/runs/{run_id}/re-execute": {
            "post": _write(
                "Execute a run that is over again: a new run from its input or its last checkpoint.", _RUN_ID,
                _IDEMPOTENCY, _PREFER, body=again,
                ok={201: _json(started, "It exists."), 202: _json(started, "Accepted; it will exist.")},
                codes=(Code.UNSAFE_TOOLS, Code.INVALID_STATE, Code.ALREADY_EXISTS, Code.IDEMPOTENCY_CONFLICT),
            )
        },
        "/v1/runs/{run_id}": {"get": _get("The run's view.", _RUN_ID, _MIN_SEQUENCE, ok=_json(_ref("RunView")))},
        "/v1/runs/{run_id}/watch": {"get": _watch(cursor_codes)},
        "/v1/ws": {"get": _websocket()},
        "/v1/runs/{run_id}/snapshot": {
            "get": _get(
                "The state, as the facts up to a sequence fold to.", _RUN_ID, _MIN_SEQUENCE,
                _query("at_sequence", _COUNT, "Of this moment in the run; default: now."), ok=_json(snapshot),
                codes=(*_READ, Code.CURSOR_EXPIRED, Code.VIEW_QUARANTINED),
            )
        },
        "/v1/runs/{run_id}/timeline": {
            "get": _get(
                "The record as rows: calls of one tool that stand alike are one, failures stand alone.", _RUN_ID,
                _CURSOR_PARAM, _LIMIT, _query("at_sequence", _COUNT, "As it stood then; default: now."), _MIN_SEQUENCE,
                ok=_json(rows), codes=cursor_codes,
            )
        },
        "/v1/runs/{run_id}/events": {
            "get": _get(
                "History in pages; with `wait_s` a long poll.", _RUN_ID, _CURSOR_PARAM, _LIMIT, _TYPES_FILTER, _LAST,
                _MIN_SEQUENCE, _WAIT_S,
                ok=_json(page), codes=(*cursor_codes, Code.QUOTA_EXCEEDED),
            ),
            "post": _write(
                "Producer: append facts, all or nothing.", _RUN_ID, body=append, ok={200: _json(appended)},
                codes=(Code.SEQUENCE_CONFLICT, Code.LEASE_FENCED, Code.RUN_TERMINAL, Code.IDEMPOTENCY_CONFLICT),
            ),
        },
        "/v1/approvals": {
            "get": _get(
                "Approvals over all runs, the longest asked first.", _query("status", _TEXT, "Default: waiting."),
                _LIMIT, _PAGE_TOKEN,
                ok=_json(_object("approvals", approvals=_list({"type": "object"}), page_token=_TEXT, behind=_FLAG)),
                codes=(*_ACCESS, Code.INVALID_REQUEST, Code.OVERLOADED),
            )
        },
    }  # fmt: skip


def _websocket() -> Json:
    answer = {
        "description": "A WebSocket: JSON-RPC 2.0, subprotocol `runlane.v1`. Its messages: asyncapi_websocket.json."
    }
    refusals = (*_ACCESS, Code.INVALID_REQUEST, Code.QUOTA_EXCEEDED, Code.OVERLOADED)
    return _operation("Watches and commands on one connection.", ok={101: answer}, codes=refusals, body=None)


def _watch(codes: tuple[Code, ...]) -> Json:
    stream = {
        "description": "Server-sent events: `hello` first, then `snapshot`, `fact`, `synced`, `preview` and "
        "`preview_gap`, then `end`. EOF without `end` is a lost connection. Only `fact` and `snapshot` carry an id.",
        "content": {
            "text/event-stream": {
                "schema": _TEXT,
                "x-events": {
                    "hello": _ref("Hello"), "snapshot": _ref("SnapshotFrame"), "fact": _ref("Fact"),
                    "synced": _ref("Synced"), "preview": _ref("Preview"), "preview_gap": _ref("PreviewGap"),
                    "end": _ref("End"),
                },
            }
        },
    }  # fmt: skip
    return _get(
        "Follow a run.", _RUN_ID, _header("Last-Event-ID", "Wins over `cursor`."), _CURSOR_PARAM, _TYPES_FILTER,
        _query("from", {"type": "string", "enum": ["start", "snapshot", "now"]}, "Without a cursor; else: snapshot."),
        _query("previews", _FLAG, "Also what is not a fact yet."), _LAST, _MIN_SEQUENCE,
        ok=stream, codes=codes, on_204={"description": "The run is over and the reader has all of it."},
    )  # fmt: skip


def _commands() -> Json:
    body = _object(
        "type", type={"type": "string", "enum": sorted(set(COMMANDS) - STARTING)}, payload={"type": "object"},
        idempotency_key=_TEXT, meta={"type": "object"},
    )  # fmt: skip
    refusals = (Code.IDEMPOTENCY_CONFLICT, Code.VERSION_CONFLICT, Code.ALREADY_RESOLVED, Code.RUN_TERMINAL,
                Code.INVALID_STATE, Code.NOT_RETRYABLE, Code.ALREADY_RETRIED, Code.APPROVAL_NOT_FOUND)  # fmt: skip
    entry = _json(_ref("LedgerEntry"))
    missing = (*_ACCESS, Code.COMMAND_NOT_FOUND, Code.UPSTREAM_UNAVAILABLE)
    return {
        "/v1/runs/{run_id}/commands": {
            "post": _write(
                "Ask something of a run.", _RUN_ID, _IDEMPOTENCY, _PREFER, body=body,
                ok={200: _json(_ref("LedgerEntry"), "Applied."), 202: _json(_ref("LedgerEntry"), "Accepted.")},
                codes=refusals,
            )
        },
        "/v1/commands": {
            "get": _get(
                "A command by its idempotency key.", _query("idempotency_key", _TEXT, "As it was given."), ok=entry,
                codes=missing,
            )
        },
        "/v1/commands/{command_id}": {
            "get": _get("What became of a command.", _path("command_id"), ok=entry, codes=missing)
        },
    }  # fmt: skip


def _producers() -> Json:
    held = _object("worker_id", "lease_epoch", worker_id=_ID, lease_epoch=_COUNT)
    wish = _object("worker_id", worker_id=_ID, ttl_s={"type": "number"})
    lease = _json(_object("lease_epoch", "expires_at", lease_epoch=_COUNT, expires_at=_TEXT))
    work = _object("run_id", "lease_epoch", run_id=_ID, lease_epoch=_COUNT, agent=_TEXT, input=_ANY, sequence=_COUNT)
    claim = _object("worker_id", worker_id=_ID, ttl_s={"type": "number"}, wait_s={"type": "number"})
    previews = _object("lease_epoch", "previews", lease_epoch=_COUNT, previews=_list(_ref("Preview")))
    fenced = (Code.LEASE_FENCED,)
    return {
        "/v1/runs/{run_id}/lease": {
            "post": _write(
                "Take the lease.", _RUN_ID, body=wish, ok={201: lease}, codes=(Code.LEASE_HELD, Code.RUN_TERMINAL)
            ),
            "put": _write("Keep the lease.", _RUN_ID, body=held, ok={200: lease}, codes=fenced),
            "delete": _write("Give the lease back.", _RUN_ID, body=held, ok={200: _json(_ANY)}, codes=fenced),
        },
        "/v1/runs/{run_id}/previews": {
            "post": _write(
                "Show what is not a fact yet.", _RUN_ID, body=previews,
                ok={202: {"description": "Taken; may be lost, then counted."}}, codes=fenced,
            )
        },
        "/v1/pools/{pool}/claim": {
            "post": _write(
                "Take a run to work on.", _path("pool"), body=claim,
                ok={200: _json(work), 204: {"description": "There is none."}},
            )
        },
    }  # fmt: skip


def _service() -> Json:
    content = _get(
        "Large content as people may see it, authorized again.", _path("ref"),
        _query("raw", {"type": "boolean"}, "As it came; takes the right to produce."),
        ok={"description": "The content; 206 for one range of it."}, codes=(*_ACCESS, Code.NOT_FOUND),
    )  # fmt: skip
    keep = _write(
        "Keep content that is too large for a fact.",
        _query("run_id", _TEXT, "Whose it is; it goes when the run is erased."),
        _query("classification", _TEXT, "Restricted content is shown to nobody without the right to produce."),
        _query("sha256", _TEXT, "Refused if another arrives."),
        ok={201: {"description": "`{uri, ref, sha256, size, media_type}`: what a fact states as its `content_ref`."}},
        body={},
    )  # fmt: skip
    keep["requestBody"] = {"required": True, "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}}}
    open_to_all = {"security": [], "responses": {"200": {"description": "Yes."}}}
    return {
        "/v1/content": {"post": keep},
        "/v1/content/{ref}": {"get": content},
        "/healthz": {"get": {"summary": "Is it alive?", **open_to_all}},
        "/readyz": {
            "get": {
                "summary": "May it get work?", "security": [],
                "responses": {"200": {"description": "Yes."}, "503": {"description": "Not now."}},
            }
        },
        "/metrics": {
            "get": {
                "summary": "What it measured, as Prometheus reads it. For operators: on the machine itself, or with "
                "their token.",
                "security": [{}, {"bearer": []}],
                "responses": {"200": {"description": "Yes."}, "401": _problem("`unauthenticated`")},
            }
        },
        "/openapi.json": {"get": {"summary": "This document.", **open_to_all}},
    }  # fmt: skip
