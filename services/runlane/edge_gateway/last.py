"""The last facts of a run, from where an item begins: never from inside a message that is half told."""

from contextlib import suppress

from runlane.edge_gateway.history import Hole
from runlane.edge_gateway.run_state import RunStates
from runlane.edge_gateway.view import StreamStart, View
from runlane_contracts.cursor import Position
from runlane_contracts.reducer import OPEN_ITEM_STATUS, State
from runlane_contracts.subjects import RunAddress

WHOLE = frozenset({"message", "reasoning", "tool", "approval", "input"})
"""Kinds of items that are told from their beginning. Turns, tasks and artifacts span others, and are not waited for."""
_STEP = 64


async def before_last(states: RunStates, view: View, run: RunAddress, head: Position, count: int) -> Position:
    """The place after which the last `count` facts follow, or some more. Raises Retryable."""
    start = max(1, head.sequence - count + 1)
    if start > 1:
        with suppress(Hole):  # the beginning is gone, and items that began there are out of reach anyway
            start = boundary((await states.at_least(run, head.sequence)).state, start)
    return await _place(view, run, head, start - 1)


def boundary(state: State, start: int) -> int:
    """The last sequence up to `start` at which no item is half told; one that is open is so to the end."""
    spans = []
    for item in state["items"].values():
        if item["kind"] in WHOLE and item["first_sequence"] < start:
            is_open = item["status"] in OPEN_ITEM_STATUS
            spans.append((state["through_sequence"] if is_open else item["last_sequence"], item["first_sequence"]))
    for last, first in sorted(spans, reverse=True):
        if last < start:
            break
        start = min(start, first)
    return start


async def _place(view: View, run: RunAddress, head: Position, sequence: int) -> Position:
    """A position from which reading on comes to what follows `sequence` soon, without reading all that was before."""
    distance = _STEP
    while sequence > 0 and distance < head.stream_seq:
        page = await view.page(run, start=StreamStart(head.epoch, head.stream_seq - distance), max_bytes=1)
        if not page.commits or page.commits[0].epoch != head.epoch:
            break
        if page.commits[0].first_sequence <= sequence:
            return Position(head.epoch, page.commits[0].stream_seq, sequence)
        distance *= 4
    return Position(head.epoch, 0, sequence)
