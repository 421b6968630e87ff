"""Who follows: how many may, whether they still may, and how they are sent away."""

import asyncio
from contextlib import ExitStack

import pytest

from runlane.edge_gateway.crowd import Crowd, CrowdLimits
from runlane.edge_gateway.memory_view import MemoryView
from runlane.edge_gateway.meters import Meters
from runlane.hosting.authorizer import Principal
from runlane.hosting.http import ProblemError
from runlane_contracts import events
from runlane_contracts.problems import Code
from runlane_contracts.resume import EndReason
from runlane_contracts.subjects import RunAddress
from support.edge import edge
from support.eventually import eventually
from support.runs import Story

RUN = RunAddress("acme", "run_1")
OF_OTHERS = RunAddress("other", "run_1")


class Somebody:
    def __init__(self) -> None:
        self.ended: list[tuple[EndReason, int | None]] = []

    def tick(self, now: float) -> None: ...

    def stop(self, reason: EndReason, *, retry_after_ms: int | None = None) -> None:
        self.ended.append((reason, retry_after_ms))


def a_view() -> MemoryView:
    view = MemoryView()
    for run in (RUN, OF_OTHERS):
        story = Story(*run).then(events.RunCreated(agent="a"), events.RunStarted())
        view.store(run, story.facts)
    return view


async def test_a_tenant_has_a_bound_of_its_own_and_is_told_when_to_try_again() -> None:
    """Take `of_tenant` out of `Crowd.check` and one tenant takes every place."""
    async with edge(a_view(), of_tenant=2) as gateway:
        open_ = [gateway.watch(RUN) for _ in range(2)]
        for watching in open_:
            await watching.until("synced")
        third = gateway.watch(RUN)
        await third.over()
        assert third.problem is not None
        assert third.problem.code is Code.QUOTA_EXCEEDED
        assert third.problem.extra["retry_after_s"] > 0
        assert gateway.meters.quota_refusals == 1
        await gateway.watch(OF_OTHERS).until("synced")
        open_[0].leave()
        await open_[0].over()
        await gateway.watch(RUN).until("synced")


async def test_a_full_gateway_is_overloaded_and_says_when_to_try_again() -> None:
    async with edge(a_view(), max_watchers=1) as gateway:
        await gateway.watch(RUN).until("synced")
        second = gateway.watch(OF_OTHERS)
        await second.over()
        assert second.problem is not None
        assert second.problem.code is Code.OVERLOADED
        assert second.problem.extra["retry_after_s"] > 0


async def test_those_who_are_sent_away_are_asked_to_come_back_one_after_another() -> None:
    """With the same `retry_after_ms` for all, a thousand readers come back in one moment, and are a load themselves."""
    limits = CrowdLimits(goodbye_s=0.01, returns_per_s=100)
    crowd = Crowd(limits, lost=lambda _one: None, meters=Meters(), jitter=lambda: 0.5)
    everybody = [Somebody() for _ in range(200)]
    principal = Principal("acme", "ann")
    with ExitStack() as stack:
        for one in everybody:
            stack.enter_context(crowd.joined(one, principal))
        await crowd.shut_down()
    delays = [after for one in everybody for reason, after in one.ended if reason is EndReason.SHUTDOWN]
    assert len(delays) == 200
    assert max(delays) - min(delays) >= 1_900
    assert len(set(delays)) == 200
    with pytest.raises(ProblemError):
        crowd.check("acme")


async def test_a_right_is_asked_for_once_per_credentials_however_many_watch() -> None:
    asked: list[str] = []

    def lost(principal: Principal) -> Code | None:
        asked.append(principal.subject)
        return Code.FORBIDDEN if principal.subject == "bob" else None

    limits = CrowdLimits(reauthorize_s=0.02, goodbye_s=0.01)
    async with edge(a_view()) as gateway:
        crowd = Crowd(limits, lost=lost, meters=Meters(), jitter=lambda: 0.5)
        ann, bob = Principal("acme", "ann", credential="k1"), Principal("acme", "bob", credential="k2")
        of_ann, of_bob = [Somebody() for _ in range(50)], [Somebody() for _ in range(50)]
        refusals: list[Code] = []
        with ExitStack() as stack:
            for one, who in [*((one, ann) for one in of_ann), *((one, bob) for one in of_bob)]:
                stack.enter_context(crowd.joined(one, who, refusals.append))
            async with crowd.ticking(gateway.hubs):
                await eventually(lambda: asked.count("ann") >= 3)
        assert all(one.ended[0][0] is EndReason.UNAUTHORIZED for one in of_bob)
        assert all(one.ended[0][0] is EndReason.SHUTDOWN for one in of_ann)
        assert refusals == [Code.FORBIDDEN] * 50, "each is recorded once, not again every second"
        assert len(asked) < 2 * asked.count("ann") + 2


async def test_who_renews_its_credentials_stays() -> None:
    revoked = {"k1"}
    limits = CrowdLimits(reauthorize_s=0.02, goodbye_s=0.01)

    def lost(principal: Principal) -> Code | None:
        return Code.UNAUTHENTICATED if principal.credential in revoked else None

    async with edge(a_view()) as gateway:
        crowd = Crowd(limits, lost=lost, meters=Meters(), jitter=lambda: 0.5)
        one = Somebody()
        async with crowd.ticking(gateway.hubs):
            with crowd.joined(one, Principal("acme", "ann", credential="k1")):
                crowd.renew(one, Principal("acme", "ann", credential="k2"))
                await asyncio.sleep(0.1)
                assert one.ended == []


async def test_an_authorizer_that_fails_revokes_nothing() -> None:
    def lost(_principal: Principal) -> Code | None:
        raise OSError("the key server is away")

    async with edge(a_view()) as gateway:
        crowd = Crowd(CrowdLimits(reauthorize_s=0.01, goodbye_s=0.01), lost=lost, meters=Meters(), jitter=lambda: 0.5)
        one = Somebody()
        async with crowd.ticking(gateway.hubs):
            with crowd.joined(one, Principal("acme", "ann")):
                await asyncio.sleep(0.05)
                assert one.ended == []
