"""`POST /v1/runs/{run_id}/commands`, `GET /v1/commands…`: ask that something happen, and learn what became of it."""

from contextlib import suppress

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from runlane.command_gateway.door import Caller, Door, idempotency_key, traceparent, user
from runlane.command_gateway.intake import Intake, Intent
from runlane.command_gateway.strays import Strays
from runlane.command_gateway.wire import CommandBody, command_view
from runlane.hosting.authorizer import Right
from runlane.hosting.http import ProblemError, decode_body, json_response, prefer_wait
from runlane.kernel.errors import Retryable
from runlane_contracts.commands import (
    CommandPayload,
    LedgerEntry,
    LedgerStatus,
    Rejection,
    command_id_of,
    decode_command_payload,
)
from runlane_contracts.cursor import CursorKeys, Position, Scope
from runlane_contracts.ids import is_id
from runlane_contracts.problems import Code


class CommandsDesk:
    """Takes commands and shows the ledger."""

    def __init__(
        self,
        door: Door,
        *,
        intake: Intake,
        strays: Strays,
        cursors: CursorKeys,
        max_body_bytes: int,
        max_wait_s: float,
    ) -> None:
        self._door, self._intake, self._strays, self._cursors = door, intake, strays, cursors
        self._max_body_bytes, self._max_wait_s = max_body_bytes, max_wait_s

    async def post(self, request: Request) -> Response:
        """Accept a command: 202, or within `Prefer: wait=N` its outcome."""
        caller = await self._door.caller(request, Right.OPERATE)
        body = await decode_body(request, CommandBody, max_bytes=self._max_body_bytes)
        intent = self._intent(request, caller, body)
        wait_s = prefer_wait(request, maximum_s=self._max_wait_s)
        entry = await self._intake.submit(intent, wait_s=wait_s)
        return self._shown(entry, 202) if wait_s <= 0 else self._outcome(entry)

    async def get(self, request: Request) -> Response:
        """One ledger entry by its id."""
        principal = await self._door.principal(request, Right.VIEW)
        return await self._look_up(principal.tenant_id, str(request.path_params["command_id"]))

    async def find(self, request: Request) -> Response:
        """One ledger entry by its idempotency key."""
        principal = await self._door.principal(request, Right.VIEW)
        key = request.query_params.get("idempotency_key", "")
        if not key:
            raise ProblemError(Code.INVALID_REQUEST, "idempotency_key is missing")
        return await self._look_up(principal.tenant_id, command_id_of(principal.tenant_id, key))

    async def _look_up(self, tenant_id: str, command_id: str) -> Response:
        entry = await self._intake.known(tenant_id, command_id) if is_id(command_id) else None
        if entry is None:
            raise ProblemError(Code.COMMAND_NOT_FOUND)
        with suppress(Retryable):  # the answer is the ledger's either way
            await self._strays.look(entry)
        return self._shown(entry, 200)

    def _intent(self, request: Request, caller: Caller, body: CommandBody) -> Intent:
        if body.run_id not in (None, caller.run.run_id):
            raise ProblemError(Code.INVALID_REQUEST, "run_id: the path names another run")
        return Intent(
            run=caller.run,
            payload=_payload(body),
            by=user(caller.principal),
            idempotency_key=idempotency_key(request, body.idempotency_key) or self._intake.new_id("key"),
            meta=body.meta,
            traceparent=traceparent(request),
        )

    def _outcome(self, entry: LedgerEntry) -> Response:
        match entry.status:
            case LedgerStatus.ACCEPTED:
                return self._shown(entry, 202)
            case LedgerStatus.APPLIED:
                return self._shown(entry, 200)
            case LedgerStatus.REJECTED | LedgerStatus.EXPIRED:
                raise problem_of_rejection(entry.rejection)

    def _shown(self, entry: LedgerEntry, status: int) -> Response:
        return json_response(command_view(entry, cursor_after(self._cursors, entry)), status)


def cursor_after(cursors: CursorKeys, entry: LedgerEntry) -> str | None:
    """The cursor that reads past what an applied command did.

    Where the view keeps it is not known here; the run's sequence is what counts.
    """
    if entry.applied_sequence is None:
        return None
    return cursors.seal(Position("", 0, entry.applied_sequence), Scope(entry.tenant_id, entry.run_id))


def problem_of_rejection(rejection: Rejection | None) -> ProblemError:
    """A rejection, as the answer to who asked."""
    if rejection is None:
        return ProblemError(Code.INTERNAL)
    return ProblemError(Code(rejection.code), rejection.detail, recorded=rejection.recorded)


def _payload(body: CommandBody) -> CommandPayload:
    try:
        return decode_command_payload(body.type, body.payload)
    except KeyError:
        raise ProblemError(Code.INVALID_REQUEST, f"type: no such command: {body.type[:80]!r}") from None
    except RecursionError as exc:
        raise ProblemError(Code.INVALID_REQUEST, "payload: nested too deeply") from exc
    except msgspec.MsgspecError as exc:
        raise ProblemError(Code.INVALID_REQUEST, f"payload: {exc}") from exc
