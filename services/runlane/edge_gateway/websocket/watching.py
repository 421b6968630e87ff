"""`run/watch`: finds the run, decides how the watch continues, and makes the subscription."""

from collections.abc import Callable
from contextlib import AsyncExitStack

from runlane.edge_gateway.crowd import Crowd, OnRefusal
from runlane.edge_gateway.frames import FactFrames
from runlane.edge_gateway.hub import Hubs, RunHub
from runlane.edge_gateway.meters import Meters
from runlane.edge_gateway.outgoing import Outgoing, OutgoingLimits, Plan
from runlane.edge_gateway.planning import Planner
from runlane.edge_gateway.presence import Presence
from runlane.edge_gateway.queries import WatchRequest
from runlane.edge_gateway.type_filter import TypeFilter, TypeFilterInvalid, type_filter
from runlane.edge_gateway.websocket.frames import SubscriptionWire
from runlane.edge_gateway.websocket.subscription import OnStop, Subscription
from runlane.hosting.authorizer import Principal
from runlane.hosting.http import ProblemError
from runlane_contracts.cursor import CursorKeys
from runlane_contracts.problems import Code
from runlane_contracts.resume import Outcome
from runlane_contracts.subjects import RunAddress
from runlane_contracts.websocket import Watch


class RunWatches:
    """Opens watches for connections."""

    def __init__(
        self,
        hubs: Hubs,
        *,
        presence: Presence,
        planner: Planner,
        crowd: Crowd,
        keys: CursorKeys,
        limits: OutgoingLimits,
        meters: Meters,
    ) -> None:
        self.crowd = crowd
        self._hubs = hubs
        self._presence = presence
        self._planner = planner
        self._keys = keys
        self._limits = limits
        self._meters = meters

    async def open(
        self,
        asked: Watch,
        principal: Principal,
        wire: SubscriptionWire,
        *,
        credit: int,
        wake: Callable[["Subscription"], None],
        on_stop: OnStop,
        on_refusal: OnRefusal,
    ) -> Subscription:
        """A subscription that sends nothing yet. Whoever asks for it lets go of it.

        Raises:
            ProblemError: `run_not_found`, `not_yet_visible`, `invalid_request`, `cursor_invalid`, `cursor_foreign`,
                `cursor_expired`, `overloaded`, `quota_exceeded`.
            Retryable: the view does not answer.
        """
        run = RunAddress(principal.tenant_id, asked.run_id)
        async with self._presence.judging(run):
            request = _request(asked)
        self.crowd.check(principal.tenant_id)
        async with AsyncExitStack() as stack:
            hub = await stack.enter_async_context(self._presence.hub(run, min_sequence=request.min_sequence))
            plan = await self._planner.plan(hub, request, stack, wire=wire) or self._nothing_more(hub, request, wire)
            found: list[Subscription] = []
            out = Outgoing(
                hub, plan, notify=lambda: wake(found[0]), start=self._hubs.start, limits=self._limits,
                meters=self._meters,
            )  # fmt: skip
            subscription = Subscription(wire.subscription, asked.run_id, out, credit=credit, on_stop=on_stop)
            found.append(subscription)
            stack.enter_context(self.crowd.joined(subscription, principal, on_refusal))
            subscription.held = stack.pop_all()
        return subscription

    def _nothing_more(self, hub: RunHub, request: WatchRequest, wire: SubscriptionWire) -> Plan:
        """The client has everything there will ever be. SSE says so by 204; here `run/end` says so."""
        encoder = FactFrames(self._keys, hub.run, request.types, wire)
        return Plan(outcome=Outcome.RUN_TERMINAL, after=hub.head, encoder=encoder)


def _request(asked: Watch) -> WatchRequest:
    if asked.last is not None and asked.from_ is not None:
        raise ProblemError(Code.INVALID_REQUEST, "last, from: one of the two")
    return WatchRequest(
        types=_types(asked.types),
        previews=asked.previews,
        start=asked.from_,
        cursor=asked.cursor or None,
        sticky=bool(asked.cursor),
        min_sequence=asked.min_sequence,
        last=asked.last or 0,
    )


def _types(asked: list[str] | str | None) -> TypeFilter:
    try:
        return type_filter(",".join(asked) if isinstance(asked, list) else asked)
    except TypeFilterInvalid as exc:
        raise ProblemError(Code.INVALID_REQUEST, str(exc)) from exc
