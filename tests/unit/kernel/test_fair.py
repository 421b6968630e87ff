"""Fair turns: weights hold, nobody starves, who was away saved nothing up. Simulated; no server, no clock."""

import asyncio
import random
from collections import Counter, deque

import pytest
from hypothesis import given, settings, strategies as st

from runlane.kernel.fair import FairSlots, Turns


def serve(turns: Turns, weights: dict[str, float], count: int) -> Counter[str]:
    """So many turns while everybody wants one all the time."""
    had: Counter[str] = Counter()
    for _ in range(count):
        name = turns.order(weights.items())[0]
        turns.went(name, weights[name])
        had[name] += 1
    return had


def test_three_to_one():
    assert serve(Turns(), {"big": 3, "small": 1}, 400) == {"big": 300, "small": 100}


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.floats(0.1, 20), min_size=1), st.integers(1, 400))
def test_everybody_has_its_part_to_within_two_turns_at_every_moment(weights: dict[str, float], count: int):
    """Take `+ 1.0 / weight` out of `went` (pay 1.0 instead) to see it fail."""
    turns, had = Turns(), Counter[str]()
    for _ in range(count):
        had += serve(turns, weights, 1)
    paid = {name: had[name] / weight for name, weight in weights.items()}
    for name, weight in weights.items():
        for other, other_weight in weights.items():
            assert abs(paid[name] - paid[other]) <= 1 / weight + 1 / other_weight + 1e-6, (name, other)


@given(st.integers(1, 50), st.integers(0, 5_000))
def test_one_run_waits_for_one_turn_of_each_other_however_many_they_have_queued(others: int, before: int):
    """The newcomer comes after the others had `before` turns, and is served within one round. Start it in `order` some
    rounds behind the last (`max(self._paid.values()) + 60`) to see it fail."""
    turns = Turns()
    weights = {f"o{n}": 1.0 for n in range(others)}
    serve(turns, weights, before)
    waited = 0
    while (name := turns.order({**weights, "new": 1.0}.items())[0]) != "new":
        turns.went(name, 1.0)
        waited += 1
        assert waited <= others


def test_who_was_away_saved_nothing_up():
    """Take `max(…, self._now)` and the deletion in `order` out to see it fail: `back` has all 20 then."""
    turns = Turns()
    serve(turns, {"back": 1, "busy": 1}, 10)
    serve(turns, {"busy": 1}, 1_000)
    had = serve(turns, {"back": 1, "busy": 1}, 20)
    assert abs(had["back"] - had["busy"]) <= 2


def test_who_is_passed_over_because_it_is_at_its_bound_saves_nothing_up():
    """Take `max(…, self._now)` out of `went` to see it fail."""
    turns = Turns()
    weights = {"blocked": 1.0, "busy": 1.0}
    for _ in range(100):
        for name in turns.order(weights.items()):
            if name == "busy":
                turns.went(name, 1.0)
                break
    had = serve(turns, weights, 20)
    assert abs(had["blocked"] - had["busy"]) <= 2


def test_a_turn_of_no_use_costs_nothing():
    turns = Turns()
    for _ in range(50):
        turns.order([("idle", 1.0), ("busy", 1.0)])
        turns.went("idle", 1.0)
        turns.gave_back("idle", 1.0)
        turns.went("busy", 1.0)
    assert turns.order([("idle", 1.0), ("busy", 1.0)])[0] == "idle"


def test_many_schedulers_that_know_nothing_of_each_other_are_fair_together():
    """Leave the phase out to see it fail: each gives its only turn to the same one."""
    chance, had = random.Random(7), Counter[str]()
    for _ in range(2_000):
        had += serve(Turns(phase=lambda: chance.expovariate(1)), {"a": 3, "b": 1}, 1)
    assert 2.6 < had["a"] / had["b"] < 3.5


@settings(max_examples=60)
@given(
    st.dictionaries(st.sampled_from("abcd"), st.tuples(st.integers(1, 40), st.integers(1, 5)), min_size=1),
    st.integers(1, 6),
    st.randoms(use_true_random=False),
)
async def test_with_bounds_everything_is_served_and_no_bound_is_exceeded(
    tenants: dict[str, tuple[int, int]], workers: int, chance: random.Random
):
    """A simulated pool: queues, running bounds, runs that end or crash at random. It ends, and empties every queue."""
    queued = {name: runs for name, (runs, _) in tenants.items()}
    running: Counter[str] = Counter()
    turns, ends, served = Turns(), deque[str](), 0
    while any(queued.values()) or ends:
        taken = None
        waiting = [(name, 1.0) for name, left in queued.items() if left]
        for name in turns.order(waiting):
            if running[name] < tenants[name][1] and len(ends) < workers:
                taken = name
                break
        if taken is not None:
            turns.went(taken, 1.0)
            queued[taken] -= 1
            running[taken] += 1
            assert running[taken] <= tenants[taken][1]
            ends.append(taken)
            served += 1
        if ends and (taken is None or chance.random() < 0.4):
            ends.rotate(chance.randrange(len(ends)))
            running[ends.popleft()] -= 1
    assert served == sum(runs for runs, _ in tenants.values())


async def test_slots_are_bounded_and_go_round_by_weight():
    slots, order, inside = FairSlots(2), list[str](), 0

    async def work(name: str, weight: float) -> None:
        nonlocal inside
        async with slots.of(name, weight):
            inside += 1
            assert inside <= 2
            order.append(name)
            await asyncio.sleep(0)
            inside -= 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(60):
            tasks.create_task(work("big", 3))
        for _ in range(20):
            tasks.create_task(work("small", 1))
    had = Counter(order[:40])
    assert 27 <= had["big"] <= 32
    assert slots.waiting_count == 0


async def test_a_waiter_that_is_cancelled_leaves_its_slot_to_the_next():
    slots = FairSlots(1)
    entered = asyncio.Event()

    async def hold(until: asyncio.Event) -> None:
        async with slots.of("a"):
            entered.set()
            await until.wait()

    until = asyncio.Event()
    holder = asyncio.create_task(hold(until))
    await entered.wait()
    gone, stays = asyncio.create_task(hold(until)), asyncio.create_task(hold(until))
    await asyncio.sleep(0)
    until.set()  # the holder leaves, the slot is given to `gone` …
    await asyncio.sleep(0)
    gone.cancel()  # … which is cancelled in that very moment
    await asyncio.wait_for(asyncio.gather(holder, stays), 5)
    with pytest.raises(asyncio.CancelledError):
        await gone
    async with asyncio.timeout(5), slots.of("b"):
        pass
