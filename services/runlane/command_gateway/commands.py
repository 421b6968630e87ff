"""Routes that ask something of a run: start it, send it a command, look a command up."""

import secrets
from typing import Any

import msgspec
from msgspec import Raw, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runlane.command_gateway.acceptance import Acceptance
from runlane.command_gateway.settings import CommandGatewaySettings
from runlane.hosting.authorizer import Authorizer, Principal, Right, require
from runlane.hosting.http import ProblemError, decode_body, json_response, prefer_wait, problem_response
from runlane.kernel.clock import Now
from runlane.kernel.run_log import RunLogs
from runlane_contracts import codec, commands
from runlane_contracts.commands import Command, IdempotencyKey, LedgerEntry, LedgerStatus, command_id_of, derived_id
from runlane_contracts.cursor import CursorKeys, Position, Scope
from runlane_contracts.envelope import Actor
from runlane_contracts.events import Limits
from runlane_contracts.ids import AgentName, PoolName, RunId, SessionId, Timestamp, is_id
from runlane_contracts.problems import Code
from runlane_contracts.subjects import RunAddress


class StartBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/runs`."""

    agent: AgentName
    input: Any = None
    run_id: RunId | None = None
    session_id: SessionId | None = None
    pool: PoolName = "default"
    dispatch: str = "pool"
    deadline_at: Timestamp | None = None
    limits: Limits | None = None
    parent_run_id: RunId | None = None
    idempotency_key: IdempotencyKey | None = None


class CommandBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/runs/{run_id}/commands`."""

    type: str
    payload: Raw = Raw(b"{}")
    idempotency_key: IdempotencyKey | None = None
    session_id: SessionId | None = None
    issued_at: Timestamp | None = None
    meta: dict[str, Any] | None = None


class CommandRoutes:
    """Commands over HTTP."""

    def __init__(
        self,
        *,
        settings: CommandGatewaySettings,
        authorizer: Authorizer,
        acceptance: Acceptance,
        run_logs: RunLogs,
        cursor_keys: CursorKeys,
        now: Now,
    ) -> None:
        self._settings, self._authorizer, self._acceptance = settings, authorizer, acceptance
        self._run_logs, self._cursor_keys, self._now = run_logs, cursor_keys, now

    def routes(self) -> list[Route]:
        """What this serves."""
        return [
            Route("/v1/runs", self.start, methods=["POST"]),
            Route("/v1/runs/{run_id}/commands", self.submit, methods=["POST"]),
            Route("/v1/commands", self.find_by_key, methods=["GET"]),
            Route("/v1/commands/{command_id}", self.find, methods=["GET"]),
        ]

    async def start(self, request: Request) -> Response:
        """201 once `run.created` is durable; 202 when that takes longer than the client waits."""
        who = await require(request, self._authorizer, Right.OPERATE)
        body = await decode_body(request, StartBody, max_bytes=self._settings.max_body_bytes)
        key = _idempotency_key(request, body.idempotency_key)
        command_id = command_id_of(who.tenant_id, key)
        run_id = body.run_id or derived_id("run", who.tenant_id, command_id)
        payload = _payload(
            commands.StartRun,
            agent=body.agent, input=body.input, pool=body.pool, dispatch=body.dispatch, deadline_at=body.deadline_at,
            limits=body.limits, parent_run_id=body.parent_run_id,
        )  # fmt: skip
        command = self._command(request, who, run_id, key, payload, session_id=body.session_id)
        wait_s = prefer_wait(request, default_s=self._settings.start_wait_s, maximum_s=self._settings.max_wait_s)
        entry = await self._acceptance.accept(command, wait_s=wait_s)
        if entry.status is LedgerStatus.REJECTED:
            return _rejection(entry)
        started: dict[str, Any] = {"run_id": entry.run_id, "command_id": entry.command_id}
        if entry.status is LedgerStatus.ACCEPTED:
            return json_response(started | {"status": "accepted"}, 202)
        sequence = entry.applied_sequence or 1
        return json_response(
            started | {"status": "created", "sequence": sequence, "cursor": self._cursor(entry, sequence)}, 201
        )

    async def submit(self, request: Request) -> Response:
        """202 with the ledger entry; with `Prefer: wait=N` the outcome, if it comes in time."""
        who = await require(request, self._authorizer, Right.OPERATE)
        run = run_address(request, who)
        body = await decode_body(request, CommandBody, max_bytes=self._settings.max_body_bytes)
        payload = _command_payload(body)
        if not (await self._run_logs.of(run).load()).exists:
            raise ProblemError(Code.RUN_NOT_FOUND)
        key = _idempotency_key(request, body.idempotency_key)
        command = self._command(
            request, who, run.run_id, key, payload, session_id=body.session_id, meta=body.meta, issued_at=body.issued_at
        )
        wait_s = prefer_wait(request, default_s=0.0, maximum_s=self._settings.max_wait_s)
        entry = await self._acceptance.accept(command, wait_s=wait_s)
        if wait_s <= 0 or entry.status is LedgerStatus.ACCEPTED:
            return json_response(self._shown(entry), 202)
        if entry.status is LedgerStatus.REJECTED:
            return _rejection(entry)
        return json_response(self._shown(entry))

    async def find(self, request: Request) -> Response:
        """A ledger entry by command id."""
        who = await require(request, self._authorizer, Right.VIEW)
        return await self._found(who, request.path_params["command_id"])

    async def find_by_key(self, request: Request) -> Response:
        """A ledger entry by idempotency key."""
        who = await require(request, self._authorizer, Right.VIEW)
        key = request.query_params.get("idempotency_key")
        if not key:
            raise ProblemError(Code.INVALID_REQUEST, "idempotency_key: missing")
        return await self._found(who, command_id_of(who.tenant_id, key))

    async def _found(self, who: Principal, command_id: str) -> Response:
        entry = await self._acceptance.find(who.tenant_id, command_id) if is_id(command_id) else None
        if entry is None:
            raise ProblemError(Code.COMMAND_NOT_FOUND)
        return json_response(self._shown(entry))

    def _command(
        self,
        request: Request,
        who: Principal,
        run_id: str,
        key: str,
        payload: commands.CommandPayload,
        *,
        session_id: str | None = None,
        meta: dict[str, Any] | None = None,
        issued_at: str | None = None,
    ) -> Command:
        return Command(
            command_id=command_id_of(who.tenant_id, key),
            idempotency_key=key,
            type=payload.TYPE,
            tenant_id=who.tenant_id,
            run_id=run_id,
            session_id=session_id,
            issued_at=issued_at or codec.timestamp(self._now()),
            issued_by=Actor(kind="user", id=who.subject),
            payload=Raw(codec.encode(payload)),
            meta=meta,
            traceparent=request.headers.get("traceparent"),
        )

    def _shown(self, entry: LedgerEntry) -> dict[str, Any]:
        shown: dict[str, Any] = msgspec.to_builtins(entry)
        shown.pop("fingerprint", None)
        shown.pop("log_stream_seq", None)
        if entry.status is LedgerStatus.APPLIED and entry.applied_sequence is not None:
            shown["applied_through"] = self._cursor(entry, entry.applied_sequence)
        return shown

    def _cursor(self, entry: LedgerEntry, sequence: int) -> str:
        # The view's place is not known here; the run's sequence is what counts.
        return self._cursor_keys.seal(Position("", 0, sequence), Scope(entry.tenant_id, entry.run_id))


def run_address(request: Request, who: Principal) -> RunAddress:
    """The run a path names, as this tenant's. Raises ProblemError: nothing of that name can exist."""
    run_id = request.path_params["run_id"]
    if not is_id(run_id):
        raise ProblemError(Code.RUN_NOT_FOUND)
    return RunAddress(who.tenant_id, run_id)


def _idempotency_key(request: Request, in_body: str | None) -> str:
    key = request.headers.get("idempotency-key") or in_body
    if key is None:
        return secrets.token_urlsafe(18)
    if len(key) > 200 or not key.isprintable():
        raise ProblemError(Code.INVALID_REQUEST, "Idempotency-Key: 1 to 200 printable characters")
    return key


def _payload(type_: type[commands.StartRun], **fields: Any) -> commands.StartRun:
    try:
        return msgspec.convert(fields, type_, from_attributes=True)
    except msgspec.ValidationError as exc:
        raise ProblemError(Code.INVALID_REQUEST, str(exc)) from exc


def _command_payload(body: CommandBody) -> commands.CommandPayload:
    if body.type not in commands.COMMANDS:
        raise ProblemError(Code.INVALID_REQUEST, f"unknown command type {body.type[:80]!r}")
    if body.type == commands.StartRun.TYPE:
        raise ProblemError(Code.INVALID_REQUEST, "a run is started by POST /v1/runs")
    try:
        return commands.decode_command_payload(body.type, body.payload)
    except RecursionError as exc:
        raise ProblemError(Code.INVALID_REQUEST, "nested too deeply") from exc
    except msgspec.MsgspecError as exc:
        raise ProblemError(Code.INVALID_REQUEST, f"{body.type}: {exc}") from exc


def _rejection(entry: LedgerEntry) -> Response:
    rejection = entry.rejection
    if rejection is None:
        return problem_response(Code.INTERNAL, "rejected for no recorded reason")
    return problem_response(Code(rejection.code), rejection.detail, recorded=rejection.recorded)
