"""P5 over WebSocket · Whatever is cut, acknowledged, held back or lost, the union of all visits is the log.

And never are more facts in flight than there is credit: take `max_facts` out of `Subscription.take` to see that fail.
"""

import asyncio
import random
from dataclasses import dataclass, field

from hypothesis import Phase, given, settings, strategies as st

from runlane.edge_gateway.hub import HubLimits
from runlane.edge_gateway.lanes import Gate, LaneBytes
from runlane.edge_gateway.memory_view import MemoryView
from runlane.edge_gateway.outgoing import OutgoingLimits
from runlane.edge_gateway.planning import Planner
from runlane.edge_gateway.websocket.frames import SubscriptionWire
from runlane.edge_gateway.websocket.pump import Pump
from runlane.edge_gateway.websocket.subscription import Subscription
from runlane.edge_gateway.websocket.watching import RunWatches
from runlane.hosting.authorizer import Principal
from runlane.kernel.errors import Retryable
from runlane_contracts import events
from runlane_contracts.codec import decode_json
from runlane_contracts.envelope import Fact
from runlane_contracts.resume import EndReason, Outcome
from runlane_contracts.subjects import RunAddress
from runlane_contracts.websocket import Watch
from support.edge import KEYS, Edge, edge
from support.runs import Story

RUN = RunAddress("acme", "run_1")
WHO = Principal("acme", "ann")


@dataclass
class Socket:
    """Takes frames as a client does that now and then looks away."""

    notes: list[dict] = field(default_factory=list)
    is_open: bool = True
    is_paused: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def backlog_bytes(self) -> int:
        return 40_000 if self.is_paused else 0  # open to what is critical only

    def write_frames(self, frames: bytes) -> None:
        while frames:
            size, header = frames[1], 2
            if size >= 126:
                header = 4 if size == 126 else 10
                size = int.from_bytes(frames[2:header], "big")
            self.notes.append(decode_json(frames[header : header + size]))
            frames = frames[header + size :]
        self.news.set()

    def facts(self) -> list[dict]:
        return [note["params"] for note in self.notes if note["method"] == "run/fact"]


def a_run(length: int) -> Story:
    story = Story().then(events.RunCreated(agent="a"), events.RunStarted())
    for index in range(length):
        story.then(events.TaskCreated(task_id=f"t{index}", title="x" * (index % 7 * 20)))
    return story.then(events.RunCompleted())


@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    length=st.integers(0, 25),
    size=st.integers(1, 7),
    written_before=st.integers(1, 8),
    ring_bytes=st.sampled_from([1, 700, 1_000_000]),
    page_bytes=st.sampled_from([1, 900, 100_000]),
    lost=st.sets(st.integers(1, 12)),
    types=st.sampled_from([None, "task.*", ["run.*", "task.created"]]),
    seed=st.integers(0, 1000),
)
def test_the_union_of_all_visits_is_the_log_and_credit_is_kept(
    length, size, written_before, ring_bytes, page_bytes, lost, types, seed
) -> None:
    story = a_run(length)
    batches = [story.facts[at : at + size] for at in range(0, len(story.facts), size)]
    view = MemoryView(deliver_live=lambda commit: commit.stream_seq not in lost)
    names = tuple(types) if isinstance(types, list) else (types or "",)
    wanted = [
        fact.sequence for fact in story.facts
        if types is None or any(fact.type.startswith(name.rstrip("*")) for name in names)
    ]  # fmt: skip
    hub_limits = HubLimits(ring_bytes=ring_bytes, page_bytes=page_bytes, sweep_s=0.01, linger_s=0.005, burst_bytes=500)
    sizes = OutgoingLimits(page_bytes=page_bytes, burst_bytes=500, stale_retry_s=0.001)
    got = asyncio.run(_read(view, batches, written_before, hub_limits, sizes, types, random.Random(seed)))
    assert got == wanted


async def _read(view, batches, written_before, hub_limits, sizes, types, chance) -> list[int]:
    for batch in batches[:written_before]:
        view.store(RUN, batch)
    got: list[int] = []
    cursor = None
    async with asyncio.timeout(30), edge(view, hub_limits=hub_limits) as gateway:
        watches = RunWatches(
            gateway.hubs, presence=gateway.presence, planner=Planner(gateway.hubs, KEYS, gateway.meters),
            crowd=gateway.crowd, keys=KEYS, limits=sizes, meters=gateway.meters,
        )  # fmt: skip
        writing = gateway.tasks.create_task(_write(view, batches[written_before:]))
        for visit in range(400):
            leave_after = chance.randint(1, 9) if visit < 100 else 10**6
            found, is_over = await _visit(gateway, watches, cursor, types, chance, leave_after, got)
            for params in found:
                got.append(params["fact"]["sequence"])
                cursor = params["cursor"]
            if is_over:
                break
        await writing
    return got


async def _visit(gateway: Edge, watches: RunWatches, cursor, types, chance, leave_after, got):
    socket, ended = Socket(), []

    def on_end(one: Subscription, reason: EndReason) -> None:
        ended.append(reason)
        socket.news.set()

    pump = Pump(socket, Gate(LaneBytes()), clock=asyncio.get_running_loop().time, on_end=on_end)
    asked = Watch(run_id="run_1", cursor=cursor, from_=None if cursor else "start", types=types)
    try:
        subscription = await watches.open(
            asked, WHO, SubscriptionWire(chance.randint(1, 3)), credit=chance.randint(1, 6), wake=pump.wake,
            on_stop=lambda one, why, _ms: on_end(one, why), on_refusal=lambda _code: None,
        )  # fmt: skip
    except Retryable:
        return [], False
    hello = subscription.out.hello()
    assert hello.outcome in {Outcome.RESUMED, Outcome.RUN_TERMINAL}
    assert hello.baseline.sequence >= (got[-1] if got else 0)
    subscription.out.open()
    pump.wake(subscription)
    acknowledged = 0
    while len(socket.facts()) < leave_after and not ended:
        facts = socket.facts()
        assert len(facts) - acknowledged <= subscription.credit
        if len(facts) > acknowledged and chance.random() < 0.7:
            acknowledged = chance.randint(acknowledged + 1, len(facts))
            subscription.ack(facts[acknowledged - 1]["cursor"])
            pump.wake(subscription)
            continue
        if chance.random() < 0.2:
            socket.is_paused = not socket.is_paused
            pump.run()
        elif acknowledged < len(facts):
            continue
        elif socket.is_paused:
            socket.is_paused = False
            pump.run()
        else:
            socket.news.clear()
            if len(socket.facts()) == len(facts) and not ended:
                await socket.news.wait()
        await asyncio.sleep(0)
    await subscription.release()
    return socket.facts()[:leave_after], EndReason.RUN_TERMINAL in ended and len(socket.facts()) <= leave_after


async def _write(view: MemoryView, batches: list[list[Fact]]) -> None:
    for batch in batches:
        await asyncio.sleep(0.0005)
        view.store(RUN, batch)
