"""`POST /v1/runs`, `POST /v1/runs/{run_id}/re-execute`: start a run, from nothing or from another one."""

from starlette.requests import Request
from starlette.responses import Response

from runlane.command_gateway.admission import Admission
from runlane.command_gateway.commands import cursor_after, problem_of_rejection
from runlane.command_gateway.door import Caller, Door, idempotency_key, traceparent, user
from runlane.command_gateway.intake import Intake, Intent
from runlane.command_gateway.wire import ReExecuteBody, StartBody, Started
from runlane.hosting.authorizer import Principal, Right
from runlane.hosting.http import ProblemError, decode_body, json_response, prefer_wait
from runlane.kernel.tenants import TenantBook
from runlane_contracts.commands import LedgerEntry, LedgerStatus, ReExecuteRun, StartRun, derived_id
from runlane_contracts.cursor import CursorKeys
from runlane_contracts.ids import is_moment
from runlane_contracts.problems import Code
from runlane_contracts.subjects import RunAddress


class RunsDesk:
    """Starts runs, unless that would harm those that run."""

    def __init__(
        self,
        door: Door,
        *,
        intake: Intake,
        admission: Admission,
        limits: TenantBook,
        cursors: CursorKeys,
        max_body_bytes: int,
        wait_s: float,
        max_wait_s: float,
    ) -> None:
        self._door, self._intake, self._admission, self._cursors = door, intake, admission, cursors
        self._limits = limits
        self._max_body_bytes, self._wait_s, self._max_wait_s = max_body_bytes, wait_s, max_wait_s

    async def post(self, request: Request) -> Response:
        """201 once `run.created` is durable, 202 when that takes longer than the client wants to wait."""
        principal = await self._door.principal(request, Right.OPERATE)
        body = await decode_body(request, StartBody, max_bytes=self._max_body_bytes)
        intent = self._intent(request, principal, body)
        return self._answer(await self._submit(request, intent, for_a_pool=body.dispatch == "pool"))

    async def re_execute(self, request: Request) -> Response:
        """As `post`: a new run from the one in the path, from its input or where its agent last stood."""
        caller = await self._door.caller(request, Right.OPERATE)
        body = await decode_body(request, ReExecuteBody, max_bytes=self._max_body_bytes)
        intent = self._intent_again(request, caller, body)
        created = caller.run_log.lifecycle.created
        dispatch = body.dispatch or ("pool" if created is None else created.dispatch)
        entry = await self._submit(request, intent, for_a_pool=dispatch == "pool")
        return self._answer(entry, parent_run_id=caller.run.run_id)

    async def _submit(self, request: Request, intent: Intent, *, for_a_pool: bool) -> LedgerEntry:
        tenant_id = intent.run.tenant_id
        max_waiting = (await self._limits.of(tenant_id)).max_waiting if for_a_pool else None
        with self._admission.starting(tenant_id, for_a_pool=for_a_pool, max_waiting=max_waiting):
            wait_s = prefer_wait(request, default_s=self._wait_s, maximum_s=self._max_wait_s)
            return await self._intake.submit(intent, wait_s=wait_s)

    def _intent_again(self, request: Request, caller: Caller, body: ReExecuteBody) -> Intent:
        _require_moment(body.deadline_at)
        tenant_id = caller.run.tenant_id
        key = idempotency_key(request, body.idempotency_key) or self._intake.new_id("key")
        again = ReExecuteRun(
            parent_run_id=caller.run.run_id,
            from_=body.from_,
            allow_unsafe=body.allow_unsafe,
            session_id=body.session_id,
            pool=body.pool,
            dispatch=body.dispatch,
            deadline_at=body.deadline_at,
            limits=body.limits,
        )
        return Intent(
            run=RunAddress(tenant_id, body.run_id or derived_id("run", tenant_id, key)),
            payload=again,
            by=user(caller.principal),
            idempotency_key=key,
            traceparent=traceparent(request),
        )

    def _intent(self, request: Request, principal: Principal, body: StartBody) -> Intent:
        _require_moment(body.deadline_at)
        key = idempotency_key(request, body.idempotency_key) or self._intake.new_id("key")
        # Who repeats the request without naming the run means the same run.
        run_id = body.run_id or derived_id("run", principal.tenant_id, key)
        start = StartRun(
            agent=body.agent,
            input=body.input,
            pool=body.pool,
            dispatch=body.dispatch,
            deadline_at=body.deadline_at,
            limits=body.limits,
            parent_run_id=body.parent_run_id,
        )
        return Intent(
            run=RunAddress(principal.tenant_id, run_id),
            payload=start,
            by=user(principal),
            idempotency_key=key,
            session_id=body.session_id,
            traceparent=traceparent(request),
        )

    def _answer(self, entry: LedgerEntry, *, parent_run_id: str | None = None) -> Response:
        match entry.status:
            case LedgerStatus.APPLIED:
                started = Started(
                    run_id=entry.run_id,
                    command_id=entry.command_id,
                    status="created",
                    sequence=entry.applied_sequence,
                    cursor=cursor_after(self._cursors, entry),
                    parent_run_id=parent_run_id,
                )
                return json_response(started, 201, headers={"Location": f"/v1/runs/{entry.run_id}"})
            case LedgerStatus.ACCEPTED:
                accepted = Started(
                    run_id=entry.run_id, command_id=entry.command_id, status="accepted", parent_run_id=parent_run_id
                )
                return json_response(accepted, 202, headers={"Location": f"/v1/commands/{entry.command_id}"})
            case LedgerStatus.REJECTED | LedgerStatus.EXPIRED:
                raise problem_of_rejection(entry.rejection)


def _require_moment(deadline_at: str | None) -> None:
    if deadline_at is not None and not is_moment(deadline_at):
        raise ProblemError(Code.INVALID_REQUEST, f"deadline_at is no moment: {deadline_at}")
