"""`GET /v1/runs/{run_id}/timeline`: the record as rows, folded here from the view and kept for the next who asks."""

import asyncio
from collections import OrderedDict
from weakref import WeakValueDictionary

from msgspec import Struct, field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runlane.edge_gateway.frames import FactFrames
from runlane.edge_gateway.history import History, Hole
from runlane.edge_gateway.presence import Presence
from runlane.edge_gateway.queries import integer, limit_param, opened_cursor, query_params
from runlane.edge_gateway.run_state import FOLD_PAGE_BYTES, ViewQuarantined
from runlane.edge_gateway.type_filter import EVERYTHING
from runlane.edge_gateway.view import View
from runlane.hosting.authorizer import Authorizer, Right, require
from runlane.hosting.http import ProblemError, json_response
from runlane_contracts import events
from runlane_contracts.cursor import CursorKeys, Position
from runlane_contracts.envelope import Fact
from runlane_contracts.lean import decode_lean_commit
from runlane_contracts.problems import Code
from runlane_contracts.reducer import Quarantine, SequenceGap
from runlane_contracts.subjects import RunAddress
from runlane_contracts.timeline import TIMELINE_VERSION, Timeline

ROWS = 100
MAX_ROWS = 500
KEPT_FACTS = 100_000
"""Of how many facts rows are kept between two requests, over all runs; the least recently read run goes first."""


class Fold(Struct):
    """The rows of a run through a position of the view."""

    position: Position
    timeline: Timeline = field(default_factory=Timeline)


class Timelines:
    """Rows of runs, never behind what was asked for."""

    def __init__(self, view: View, *, kept_facts: int = KEPT_FACTS) -> None:
        self._view = view
        self._kept_facts = kept_facts
        self._kept: OrderedDict[RunAddress, Fold] = OrderedDict()
        self._facts = 0
        self._locks: WeakValueDictionary[RunAddress, asyncio.Lock] = WeakValueDictionary()

    async def at_least(self, run: RunAddress, head: Position) -> Timeline:
        """The rows through at least the head. They may go on growing: read them before you await anything.

        Raises:
            Hole: the view does not hold what it takes.
            Retryable: the broker does not answer.
        """
        lock = self._locks.setdefault(run, asyncio.Lock())  # goes with the last who asks
        async with lock:
            fold = self._take(run, head.epoch)
            was_kept = fold.timeline.through_sequence > 0
            if await self._fold(run, fold, head.sequence) and was_kept:
                # What was told before may be gone by now, and must not be told any more.
                fold = Fold(Position(head.epoch, 0, 0))
                await self._fold(run, fold, head.sequence)
            self._keep(run, fold)
            return fold.timeline

    async def at(self, run: RunAddress, sequence: int) -> Timeline:
        """The rows through exactly a sequence. Raises as `at_least` does."""
        fold = Fold(Position("", 0, 0))
        await self._fold(run, fold, sequence)
        return fold.timeline

    async def _fold(self, run: RunAddress, fold: Fold, through: int) -> bool:
        """Whether something was taken out of the record meanwhile."""
        history = History(self._view, run, fold.position)
        compacted = False
        while fold.timeline.through_sequence < through:
            for commit in await history.must_go_on(FOLD_PAGE_BYTES):
                for fact in decode_lean_commit(commit.body).facts:
                    if fact.sequence <= through:
                        _apply(run, fold.timeline, fact)
                        compacted = compacted or fact.type == events.LogCompacted.TYPE
                fold.position = Position(commit.epoch, commit.stream_seq, fold.timeline.through_sequence)
        return compacted

    def _take(self, run: RunAddress, epoch: str) -> Fold:
        fold = self._kept.pop(run, None)
        if fold is not None:
            self._facts -= fold.timeline.through_sequence
        return fold if fold is not None and fold.position.epoch == epoch else Fold(Position(epoch, 0, 0))

    def _keep(self, run: RunAddress, fold: Fold) -> None:
        self._kept[run] = fold
        self._facts += fold.timeline.through_sequence
        while self._facts > self._kept_facts and self._kept:
            _, given_up = self._kept.popitem(last=False)
            self._facts -= given_up.timeline.through_sequence


def _apply(run: RunAddress, timeline: Timeline, fact: Fact) -> None:
    try:
        timeline.apply(fact)
    except SequenceGap:
        raise
    except Exception as exc:
        quarantine = Quarantine(sequence=fact.sequence, event_id=fact.event_id, type=fact.type)
        raise ViewQuarantined(run, quarantine, fact.sequence - 1) from exc


class TimelineReads:
    """Answers with pages of rows."""

    def __init__(self, *, authorizer: Authorizer, presence: Presence, timelines: Timelines, keys: CursorKeys) -> None:
        self._authorizer, self._presence, self._timelines, self._keys = authorizer, presence, timelines, keys

    def routes(self) -> list[Route]:
        """One."""
        return [Route("/v1/runs/{run_id}/timeline", self.timeline)]

    async def timeline(self, request: Request) -> Response:
        """A page of rows: those that begin after the cursor, as they stand now, or stood at `at_sequence`."""
        principal = await require(request, self._authorizer, Right.VIEW)
        run = RunAddress(principal.tenant_id, request.path_params["run_id"])
        encoder = FactFrames(self._keys, run, EVERYTHING)
        async with self._presence.judging(run):
            params = query_params(request.scope["query_string"])
            limit = limit_param(params, default=ROWS, maximum=MAX_ROWS)
            at_sequence = integer(params, "at_sequence", default=0, minimum=1)
            min_sequence = integer(params, "min_sequence", default=0)
        head = await self._presence.head(run, min_sequence=max(min_sequence, at_sequence))
        after = opened_cursor(encoder, params.get("cursor") or None) or Position(head.epoch, 0, 0)
        timeline = await self._of(run, head, at_sequence)
        rows = timeline.rows(after=after.sequence, limit=limit + 1)
        page = rows[:limit]
        reached = Position(head.epoch, 0, page[-1].first_sequence) if page else after
        return json_response({
            "run_id": run.run_id,
            "rows": page,
            "through_sequence": timeline.through_sequence,
            "timeline_version": TIMELINE_VERSION,
            "cursor": encoder.cursor(reached),
            "has_more": len(rows) > limit,
        })  # fmt: skip

    async def _of(self, run: RunAddress, head: Position, at_sequence: int) -> Timeline:
        try:
            if at_sequence and at_sequence < head.sequence:
                return await self._timelines.at(run, at_sequence)
            return await self._timelines.at_least(run, head)
        except Hole as hole:
            raise ProblemError(
                Code.CURSOR_EXPIRED, str(hole), snapshot=f"/v1/runs/{run.run_id}/snapshot"
            ) from hole  # fmt: skip
