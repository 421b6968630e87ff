"""The JSON reads of `/v1`: never behind the view, never beyond the tenant."""

from time import monotonic

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runlane.edge_gateway.frames import FactFrames
from runlane.edge_gateway.history import Hole
from runlane.edge_gateway.lists import Freshness, Lists
from runlane.edge_gateway.presence import Presence
from runlane.edge_gateway.queries import Params, choice, integer, limit_param, query_params
from runlane.edge_gateway.run_state import EncodedSnapshot, RunStates, StateAt, encoded_snapshot
from runlane.edge_gateway.snapshots import Snapshots
from runlane.edge_gateway.type_filter import EVERYTHING
from runlane.edge_gateway.view import View
from runlane.hosting.authorizer import Authorizer, Right, require
from runlane.hosting.http import ProblemError, json_response
from runlane.read_store import PageTokenInvalid
from runlane_contracts.cursor import CursorKeys, Position
from runlane_contracts.lifecycle import STATUSES
from runlane_contracts.problems import Code
from runlane_contracts.reducer import State, open_approvals
from runlane_contracts.subjects import RunAddress
from runlane_contracts.tracing import run_trace_id

_MAX_LISTED = 500
_LISTED = 50
_APPROVAL_STATUSES = ("waiting", "approved", "rejected", "modified", "expired", "revoked")


class Reads:
    """Answers `GET`."""

    def __init__(
        self,
        *,
        authorizer: Authorizer,
        presence: Presence,
        view: View,
        states: RunStates,
        lists: Lists,
        lists_wait_s: float,
        keys: CursorKeys,
    ) -> None:
        self._authorizer = authorizer
        self._presence = presence
        self._view = view
        self._states = states
        self._snapshots = Snapshots(states, monotonic=monotonic)
        self._lists = lists
        self._fresh = Freshness(view, lists, within_s=lists_wait_s)
        self._keys = keys

    def routes(self) -> list[Route]:
        """Everything that is read, but for the watch."""
        return [
            Route("/v1/runs", self.list_runs),
            Route("/v1/runs/{run_id}", self.run),
            Route("/v1/runs/{run_id}/snapshot", self.snapshot),
            Route("/v1/approvals", self.list_approvals),
        ]

    # --- lists --------------------------------------------------------------------------------------------

    async def list_runs(self, request: Request) -> Response:
        """`GET /v1/runs`."""
        principal = await require(request, self._authorizer, Right.VIEW)
        params = _params(request)
        status = choice(params, "status", STATUSES)
        fresh = await self._fresh.reached()
        try:
            rows, token = await self._lists.list_runs(
                principal.tenant_id, status=status, agent=params.get("agent") or None,
                session_id=params.get("session_id") or None,
                limit=limit_param(params, default=_LISTED, maximum=_MAX_LISTED),
                page_token=params.get("page_token") or None,
            )  # fmt: skip
        except PageTokenInvalid as exc:
            raise ProblemError(Code.INVALID_REQUEST, "page_token: not one of this list") from exc
        return _listed({"runs": rows}, token, fresh=fresh)

    async def list_approvals(self, request: Request) -> Response:
        """`GET /v1/approvals`."""
        principal = await require(request, self._authorizer, Right.VIEW)
        params = _params(request)
        status = choice(params, "status", _APPROVAL_STATUSES) or "waiting"
        fresh = await self._fresh.reached()
        try:
            rows, token = await self._lists.list_approvals(
                principal.tenant_id, status=status, limit=limit_param(params, default=_LISTED, maximum=_MAX_LISTED),
                page_token=params.get("page_token") or None,
            )  # fmt: skip
        except PageTokenInvalid as exc:
            raise ProblemError(Code.INVALID_REQUEST, "page_token: not one of this list") from exc
        approvals = [{**row.approval, "run_id": row.run_id} for row in rows]
        return _listed({"approvals": approvals}, token, fresh=fresh)

    # --- one run ------------------------------------------------------------------------------------------

    async def run(self, request: Request) -> Response:
        """`GET /v1/runs/{run_id}`."""
        run = await self._run(request)
        async with self._presence.judging(run):
            min_sequence = integer(_params(request), "min_sequence", default=0)
        head = await self._presence.head(run, min_sequence=min_sequence)
        at = await self._state(run, head.sequence)
        view = _run_view(run, at, self._frames(run).cursor(at.position))
        if at.quarantined is not None:
            # The rest of the view stands still; how the run goes on is known all the same.
            status = await self._states.status(run, head.sequence)
            view |= {"status": status.status, "quarantined": at.quarantined}
        return json_response(view)

    async def snapshot(self, request: Request) -> Response:
        """`GET /v1/runs/{run_id}/snapshot`."""
        run = await self._run(request)
        async with self._presence.judging(run):
            params = _params(request)
            min_sequence = integer(params, "min_sequence", default=0)
            at_sequence = integer(params, "at_sequence", default=0, minimum=1)
        head = await self._presence.head(run, min_sequence=max(min_sequence, at_sequence))
        if at_sequence:
            encoded = await self._snapshot_at(run, at_sequence, head)
        else:
            encoded = encoded_snapshot(run, await self._state(run, head.sequence))
        body = encoded.with_cursor(self._frames(run).cursor(encoded.position))
        return Response(body, media_type="application/json")

    # --- parts --------------------------------------------------------------------------------------------

    async def _run(self, request: Request) -> RunAddress:
        principal = await require(request, self._authorizer, Right.VIEW)
        return RunAddress(principal.tenant_id, request.path_params["run_id"])

    def _frames(self, run: RunAddress) -> FactFrames:
        return FactFrames(self._keys, run, EVERYTHING)

    async def _state(self, run: RunAddress, sequence: int) -> StateAt:
        try:
            return await self._states.at_least(run, sequence)
        except Hole as hole:
            raise ProblemError(Code.CURSOR_EXPIRED, str(hole)) from hole

    async def _snapshot_at(self, run: RunAddress, sequence: int, head: Position) -> EncodedSnapshot:
        try:
            return await self._snapshots.at(run, sequence, head)
        except Hole as hole:
            raise ProblemError(Code.CURSOR_EXPIRED, str(hole)) from hole


def _listed(rows: dict[str, object], token: str | None, *, fresh: bool) -> Response:
    """One page. Who reads a list that could not wait any longer is told that it may lack the newest."""
    return json_response(rows | ({"page_token": token} if token else {}) | ({} if fresh else {"behind": True}))


def _run_view(run: RunAddress, at: StateAt, cursor: str) -> State:
    state = at.state
    return {
        "trace_id": run_trace_id(*run),
        **state["run"],
        "run_id": run.run_id,
        "through_sequence": state["through_sequence"],
        "cursor": cursor,
        "open_approvals": len(open_approvals(state)),
    }


def _params(request: Request) -> Params:
    return query_params(request.scope["query_string"])
