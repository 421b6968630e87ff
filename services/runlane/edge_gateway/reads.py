"""The JSON reads of `/v1`: never behind the view, never beyond the tenant."""

import logging

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runlane.edge_gateway.frames import FactFrames
from runlane.edge_gateway.history import History, Hole
from runlane.edge_gateway.lists import Freshness, Lists
from runlane.edge_gateway.presence import Presence
from runlane.edge_gateway.queries import Params, choice, integer, limit_param, opened_cursor, query_params, types_param
from runlane.edge_gateway.run_state import RunStates, StateAt, encoded_snapshot
from runlane.edge_gateway.type_filter import EVERYTHING
from runlane.edge_gateway.view import View, ViewCommit
from runlane.hosting.authorizer import Authorizer, Right, require
from runlane.hosting.http import ProblemError, json_response
from runlane.read_store import PageTokenInvalid
from runlane_contracts.cursor import CursorKeys, Position
from runlane_contracts.lifecycle import STATUSES
from runlane_contracts.problems import Code
from runlane_contracts.reducer import State, open_approvals
from runlane_contracts.subjects import RunAddress
from runlane_contracts.telemetry import LogEvent
from runlane_contracts.tracing import run_trace_id

_log = logging.getLogger("runlane.edge_gateway.reads")

MAX_PAGE_FACTS = 1000
PAGE_FACTS = 200
MAX_PAGE_BYTES = 4 * 1024 * 1024
MAX_SCANNED_FACTS = 50_000
"""A page with a filter that matches little ends here; the cursor goes on."""
_READ_BYTES = 512 * 1024
_MAX_LISTED = 500
_LISTED = 50
_APPROVAL_STATUSES = ("waiting", "approved", "rejected", "modified", "expired", "revoked")
_AHEAD_WAIT_S = 2.0


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
        self._lists = lists
        self._fresh = Freshness(view, lists, within_s=lists_wait_s)
        self._keys = keys

    def routes(self) -> list[Route]:
        """Everything that is read, but for the watch."""
        return [
            Route("/v1/runs", self.list_runs),
            Route("/v1/runs/{run_id}", self.run),
            Route("/v1/runs/{run_id}/events", self.events),
            Route("/v1/runs/{run_id}/snapshot", self.snapshot),
            Route("/v1/approvals", self.list_approvals),
            Route("/v1/content/{ref:path}", self.content),
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
        run, params = await self._run(request)
        head = await self._presence.head(run, min_sequence=integer(params, "min_sequence", default=0))
        at = await self._state(run, head.sequence, exact=False)
        view = _run_view(run, at, self._frames(run).cursor(at.position))
        if at.quarantined is not None:
            # The rest of the view stands still; how the run goes on is known all the same.
            status = await self._states.status(run, head.sequence)
            view |= {"status": status.status, "quarantined": at.quarantined}
        return json_response(view)

    async def snapshot(self, request: Request) -> Response:
        """`GET /v1/runs/{run_id}/snapshot`."""
        run, params = await self._run(request)
        min_sequence = integer(params, "min_sequence", default=0)
        at_sequence = integer(params, "at_sequence", default=0, minimum=1)
        head = await self._presence.head(run, min_sequence=max(min_sequence, at_sequence))
        at = await self._state(run, at_sequence or head.sequence, exact=at_sequence > 0)
        body = encoded_snapshot(run, at).with_cursor(self._frames(run).cursor(at.position))
        return Response(body, media_type="application/json")

    async def events(self, request: Request) -> Response:
        """`GET /v1/runs/{run_id}/events`."""
        run, params = await self._run(request)
        encoder = FactFrames(self._keys, run, types_param(params))
        limit = limit_param(params, default=PAGE_FACTS, maximum=MAX_PAGE_FACTS)
        min_sequence = integer(params, "min_sequence", default=0)
        head = await self._presence.head(run, min_sequence=min_sequence)
        after = opened_cursor(encoder, params.get("cursor") or None) or Position(head.epoch, 0, 0)
        if after.sequence > head.sequence:
            head = await self._caught_up(run, after)
        page = _PageOfFacts(encoder, limit)
        try:
            await page.fill(History(self._view, run, after), after, head)
        except Hole as hole:
            raise _not_there(run, hole) from hole
        return Response(page.body(head), media_type="application/json")

    async def content(self, request: Request) -> Response:
        """`GET /v1/content/{ref}`: nothing is kept beside the log here."""
        await require(request, self._authorizer, Right.VIEW)
        raise ProblemError(Code.NOT_FOUND, "no such content")

    # --- parts --------------------------------------------------------------------------------------------

    async def _run(self, request: Request) -> tuple[RunAddress, Params]:
        principal = await require(request, self._authorizer, Right.VIEW)
        return RunAddress(principal.tenant_id, request.path_params["run_id"]), _params(request)

    def _frames(self, run: RunAddress) -> FactFrames:
        return FactFrames(self._keys, run, EVERYTHING)

    async def _state(self, run: RunAddress, sequence: int, *, exact: bool) -> StateAt:
        try:
            return await (self._states.at(run, sequence) if exact else self._states.at_least(run, sequence))
        except Hole as hole:
            raise _not_there(run, hole, snapshot=False) from hole

    async def _caught_up(self, run: RunAddress, after: Position) -> Position:
        """The head once the view has caught up with a cursor. One that stays ahead cannot be continued."""
        async with self._presence.hub(run) as hub:
            if await hub.reached(after.sequence, within_s=_AHEAD_WAIT_S):
                return hub.head
        raise _expired(run, "the cursor is ahead of the view")


class _PageOfFacts:
    """Facts from after a cursor on, as far as limit and size allow."""

    def __init__(self, encoder: FactFrames, limit: int) -> None:
        self._encoder = encoder
        self._limit = limit
        self._facts: list[bytes] = []
        self._size = 0
        self._scanned = 0
        self._position = Position("", 0, 0)

    async def fill(self, history: History, after: Position, head: Position) -> None:
        """Read up to the head. A hole after the first facts ends the page; the next one reports it."""
        self._position = after
        while self._position.sequence < head.sequence and not self._full:
            try:
                commits = await history.next(min(_READ_BYTES, 4096 + 1024 * self._limit))
            except Hole:
                if self._position != after:
                    return
                raise
            if not commits:
                return
            for commit in commits:
                self._take(commit)

    @property
    def _full(self) -> bool:
        return len(self._facts) >= self._limit or self._size >= MAX_PAGE_BYTES or self._scanned >= MAX_SCANNED_FACTS

    def _take(self, commit: ViewCommit) -> None:
        for fact in commit.facts():
            if self._full:
                return
            if fact.sequence <= self._position.sequence:
                continue
            self._scanned += 1
            if self._encoder.types.matches(fact.type):
                self._facts.append(fact.raw)
                self._size += len(fact.raw)
            self._position = Position(commit.epoch, commit.stream_seq, fact.sequence)

    def body(self, head: Position) -> bytes:
        """The page as JSON, around facts that stay as they are."""
        has_more = b"true" if self._position.sequence < head.sequence else b"false"
        cursor = self._encoder.cursor(self._position).encode()
        return b'{"events":[%b],"cursor":"%b","has_more":%b}' % (b",".join(self._facts), cursor, has_more)


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


def _not_there(run: RunAddress, hole: Hole, *, snapshot: bool = True) -> ProblemError:
    if not hole.is_declared:
        _log.error("%s", hole, extra={"event": LogEvent.VIEW_HOLE, "tenant_id": run.tenant_id, "run_id": run.run_id})
    return _expired(run, str(hole)) if snapshot else ProblemError(Code.CURSOR_EXPIRED, str(hole))


def _expired(run: RunAddress, detail: str) -> ProblemError:
    return ProblemError(Code.CURSOR_EXPIRED, detail, snapshot=f"/v1/runs/{run.run_id}/snapshot")


def _params(request: Request) -> Params:
    return query_params(request.scope["query_string"])
