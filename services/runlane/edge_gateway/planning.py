"""How a reader continues, found out before anything is said, whatever it is said on."""

from contextlib import AsyncExitStack

from runlane.edge_gateway.frames import SSE, FactFrames, Wire
from runlane.edge_gateway.history import History, Hole
from runlane.edge_gateway.hub import Hubs, RunHub
from runlane.edge_gateway.last import before_last
from runlane.edge_gateway.meters import Meters
from runlane.edge_gateway.outgoing import Plan
from runlane.edge_gateway.queries import WatchRequest, opened_cursor
from runlane.edge_gateway.resume import (
    AheadOfView,
    AlreadyEnded,
    Asked,
    Decision,
    ResetRequired,
    Resumed,
    RunTerminal,
    Snapshot,
    decide,
    outcome_of,
)
from runlane.edge_gateway.run_state import EncodedSnapshot
from runlane.edge_gateway.type_filter import TypeFilter
from runlane.edge_gateway.view import ViewCommit
from runlane.hosting.http import ProblemError
from runlane_contracts.cursor import CursorKeys, Position
from runlane_contracts.problems import Code

AHEAD_WAIT_S = 2.0
FIRST_PAGE_BYTES = 512 * 1024


class Planner:
    """Decides, and reads what the decision needs."""

    def __init__(self, hubs: Hubs, keys: CursorKeys, meters: Meters, *, page_bytes: int = FIRST_PAGE_BYTES) -> None:
        self._hubs = hubs
        self._keys = keys
        self._meters = meters
        self._page_bytes = page_bytes

    async def plan(self, hub: RunHub, request: WatchRequest, stack: AsyncExitStack, *, wire: Wire = SSE) -> Plan | None:
        """How it continues; None: the reader has everything there will ever be. Previews stay open with the stack.

        Raises:
            ProblemError: `cursor_invalid`, `cursor_foreign`, `cursor_expired`.
            Retryable: the view does not answer.
        """
        encoder = FactFrames(self._keys, hub.run, request.types, wire)
        cursor = opened_cursor(encoder, request.cursor)
        if cursor is None and request.last:
            cursor = await before_last(self._hubs.states, self._hubs.view, hub.run, hub.head, request.last)
        asked = Asked(cursor, request.start, request.sticky)
        previews = await stack.enter_async_context(hub.with_previews()) if request.previews else None
        decision, history, first_page = await self._decide(hub, asked)
        if isinstance(decision, AlreadyEnded | AheadOfView):
            return None
        if request.cursor is not None and await self._nothing_left(hub, decision, encoder):
            return None
        snapshot = await self._snapshot(hub) if isinstance(decision, Snapshot | ResetRequired) else None
        if isinstance(decision, ResetRequired):
            self._meters.resets += 1
        return Plan(
            outcome=outcome_of(decision),
            after=decision.after if isinstance(decision, Resumed | RunTerminal) else hub.head,
            encoder=encoder, previews=previews, snapshot=snapshot,
            reason=decision.reason if isinstance(decision, ResetRequired) else None,
            history=history, first_page=first_page,
        )  # fmt: skip

    async def _snapshot(self, hub: RunHub) -> EncodedSnapshot:
        try:
            return await hub.snapshot()
        except Hole as hole:
            raise ProblemError(Code.CURSOR_EXPIRED, f"{hole}; there is no snapshot to start from") from hole

    async def _decide(self, hub: RunHub, asked: Asked) -> tuple[Decision, History | None, tuple[ViewCommit, ...]]:
        decision = decide(asked, hub.standing())
        if isinstance(decision, AheadOfView) and asked.cursor is not None:
            await hub.reached(asked.cursor.sequence, within_s=AHEAD_WAIT_S)
            decision = decide(asked, hub.standing(), settled=True)
        if not isinstance(decision, Resumed | RunTerminal) or hub.holds(decision.after.sequence):
            return decision, None, ()
        # Read before anything is said: what cannot be read must be a named outcome, not a stream that breaks off.
        history = History(self._hubs.view, hub.run, decision.after)
        try:
            async with self._hubs.history_slots:
                return decision, history, tuple(await history.next(hub.history_room.page_bytes(self._page_bytes)))
        except Hole as hole:
            if not hole.is_declared:
                hub.report(hole)
            return decide(asked, hub.standing(hole), settled=True), None, ()

    async def _nothing_left(self, hub: RunHub, decision: Decision, encoder: FactFrames) -> bool:
        if not isinstance(decision, RunTerminal) or not encoder.types.types:
            return False
        return not await _any_matches(self._hubs, hub, decision.after, encoder.types)


async def _any_matches(hubs: Hubs, hub: RunHub, after: Position, types: TypeFilter) -> bool:
    """Whether a filtered reader has anything to come. If not, telling it `end` again would loop for ever."""
    history = History(hubs.view, hub.run, after)
    while history.sequence < hub.head.sequence:
        commits: list[ViewCommit] = await history.next(hubs.limits.page_bytes)
        for commit in commits:
            if any(fact.sequence > after.sequence and types.matches(fact.type) for fact in commit.facts()):
                return True
        if not commits:
            return True
    return False
