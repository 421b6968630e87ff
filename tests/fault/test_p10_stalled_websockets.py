"""P10 over WebSocket · Who does not read and who does not acknowledge cost a bounded amount; the others get all."""

from pathlib import Path

import pytest

from runlane_contracts import events
from runlane_contracts.streams import GIB, MIB, Layout
from support.edge_process import RawWatch, edge_process
from support.eventually import eventually
from support.raw_websocket import client_frame, open_ws
from support.view_writer import a_story, put

STALLED = 200
STEP_BYTES = 60 * 1024
STEPS = 350
BOUND_BYTES = 12 * MIB
"""Above what the gateway holds before. A connection may hold 48 KiB and one burst; most of it is the same frames, of
which each is held once."""

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(180)]


async def test_stalled_and_silent_readers_cost_a_bounded_amount_and_a_healthy_one_gets_all(tmp_path: Path) -> None:
    """Twenty megabytes of facts. A third do not read, a third do not acknowledge, a third do not read two watches.

    Let `Pump._allowed` always open the gate, and all that is unsent is in memory.
    """
    async with edge_process(tmp_path, layout=Layout(max_bytes=GIB), RUNLANE_EDGE_STALL_S="600") as edge:
        story = a_story("run_1", 2)
        await put(edge, story.facts)
        synced = 0

        def seen(data: bytes) -> None:
            nonlocal synced
            synced += data.count(b'"run/synced"')

        readers: list[RawWatch] = []
        for number in range(STALLED):
            one = await open_ws(edge, None, seen)
            for watch in range(1 + (number % 3 == 2)):
                wish = {"run_id": "run_1", "from": "now", "credit": 1 if number % 3 == 1 else 1000}
                one.transport.write(client_frame("run/watch", 2 + watch, **wish))
            readers.append(one)
        await eventually(lambda: synced == STALLED + STALLED // 3, within_s=60)
        for number, one in enumerate(readers):
            if number % 3 != 1:
                one.pause()
        before, highest, got = edge.rss_bytes, 0, 0

        def read(data: bytes) -> None:
            nonlocal got
            got += data.count(b'"run/fact"')

        await open_ws(edge, "run_1", read, **{"from": "start"})
        for step in range(STEPS):
            story.then(events.MessageCompleted(message_id=f"m{step}", role="assistant", content="x" * STEP_BYTES))
            await put(edge, story.facts[-1:])
            highest = max(highest, edge.rss_bytes)
        await eventually(lambda: got == len(story.facts), within_s=60)
        assert highest - before < BOUND_BYTES, f"{(highest - before) // MIB} MiB"
        assert not any(one.closed.done() for one in readers)
