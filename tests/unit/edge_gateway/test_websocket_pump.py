"""In which order a connection is written, and within which bounds: the pump on a socket that a test opens and shuts."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from runlane.edge_gateway.frames import Chunk
from runlane.edge_gateway.lanes import Gate, Lane, LaneBytes
from runlane.edge_gateway.outgoing import Piece, Want
from runlane.edge_gateway.websocket.frames import SubscriptionWire, text_frame
from runlane.edge_gateway.websocket.jsonrpc import notification
from runlane.edge_gateway.websocket.pump import Pump
from runlane_contracts.codec import decode_json
from runlane_contracts.resume import EndReason


@dataclass
class Shut:
    """A socket that takes so much before it is paused."""

    takes_bytes: int = 10_000
    is_open: bool = True
    written: list[bytes] = field(default_factory=list)
    taken: int = 0

    @property
    def backlog_bytes(self) -> int:
        return sum(map(len, self.written)) - self.taken

    @property
    def is_paused(self) -> bool:
        return self.backlog_bytes > self.takes_bytes

    def write_frames(self, frames: bytes) -> None:
        self.written.append(frames)

    def take_all(self) -> list[bytes]:
        found, self.written, self.taken = self.written, [], 0
        return found


class Source:
    """Has pieces of lanes, as a subscription would."""

    def __init__(self, *pieces: tuple[Lane, bytes], room: int = 100, then: Want = Want.NEWS) -> None:
        self.pieces = deque(pieces)
        self.room = room
        self.then = then
        self.asked: list[Lane | None] = []

    @property
    def lane(self) -> Lane | None:
        return self.pieces[0][0] if self.pieces else None

    @property
    def want(self) -> Want:
        return Want.ROOM if self.pieces else self.then

    def take(self, lowest: Lane | None, _now: float) -> Piece | None:
        self.asked.append(lowest)
        if lowest is None or not self.pieces or self.pieces[0][0] > lowest or not self.room:
            return None
        lane, frame = self.pieces.popleft()
        return Piece(lane, Chunk(frame))


def a_pump(socket: Shut, ended: list[Any] | None = None) -> Pump:
    found = [] if ended is None else ended
    gate = Gate(LaneBytes(previews=10_000, status=15_000, facts=20_000, critical=40_000))
    return Pump(socket, gate, clock=lambda: 0.0, on_end=lambda one, why: found.append((one, why)))


def wake(pump: Pump, socket: Shut, *sources: Any) -> None:
    """All of them at once: the socket is shut meanwhile."""
    socket.is_open = False
    for source in sources:
        pump.wake(source)
    socket.is_open = True
    pump.run()


def test_an_approval_of_one_run_goes_before_the_flood_of_another() -> None:
    """Take the order out of `_by_urgency` to see it fail."""
    socket = Shut()
    pump = a_pump(socket)
    flood = Source(*[(Lane.PREVIEWS, b"p" * 100)] * 20)
    facts = Source(*[(Lane.FACTS, b"f" * 100)] * 20)
    urgent = Source((Lane.CRITICAL, b"c" * 100))
    wake(pump, socket, flood, facts, urgent)
    order = [frame[:1] for frame in socket.take_all()]
    assert order == [b"c"] + [b"f"] * 20 + [b"p"] * 20


def test_of_the_same_lane_each_has_its_turn() -> None:
    socket = Shut()
    pump = a_pump(socket)
    sources = [Source(*[(Lane.FACTS, name * 10)] * 3) for name in (b"a", b"b", b"c")]
    wake(pump, socket, *sources)
    assert [frame[:1] for frame in socket.take_all()] == [b"a", b"b", b"c"] * 3


def test_a_socket_that_is_full_takes_only_what_is_urgent_and_then_nothing() -> None:
    """Take the gate out of `_allowed` to see it fail: everything is written, and waits in memory."""
    socket = Shut(takes_bytes=10_000)
    pump = a_pump(socket)
    flood = Source(*[(Lane.PREVIEWS, b"p" * 1_000)] * 100)
    facts = Source(*[(Lane.FACTS, b"f" * 1_000)] * 100)
    urgent = Source(*[(Lane.CRITICAL, b"c" * 1_000)] * 100)
    pump.wake(flood)  # type: ignore[arg-type]
    assert socket.backlog_bytes == 11_000
    pump.wake(facts)  # type: ignore[arg-type]
    assert socket.backlog_bytes == 20_000
    pump.wake(urgent)  # type: ignore[arg-type]
    assert socket.backlog_bytes == 40_000
    assert {frame[:1] for frame in socket.take_all()[20:]} == {b"c"}
    pump.run()  # there is room again
    assert {frame[:1] for frame in socket.take_all()} == {b"c"}
    assert flood.asked[0] is Lane.PREVIEWS
    assert None in flood.asked  # it is to know that nothing can be written, and merges meanwhile


def test_one_without_credit_holds_up_nobody_and_is_not_asked_again_before_it_has_some() -> None:
    socket = Shut()
    pump = a_pump(socket)
    poor = Source(*[(Lane.FACTS, b"a" * 10)] * 3, room=0)
    rich = Source(*[(Lane.FACTS, b"b" * 10)] * 3)
    wake(pump, socket, poor, rich)
    assert [frame[:1] for frame in socket.take_all()] == [b"b"] * 3
    asked = len(poor.asked)
    pump.wake(rich)  # type: ignore[arg-type]
    assert len(poor.asked) == asked
    poor.room = 5
    pump.wake(poor)  # type: ignore[arg-type]
    assert len(socket.take_all()) == 3


def test_who_is_at_the_end_is_said_so_once_and_after_everything_else() -> None:
    socket, ended = Shut(), []
    pump = a_pump(socket, ended)
    over, broken = Source((Lane.FACTS, b"f"), then=Want.END), Source(then=Want.NOTHING)
    wake(pump, socket, over, broken)
    assert socket.take_all() == [b"f"]
    assert sorted(why for _, why in ended) == [EndReason.RUN_TERMINAL, EndReason.SHUTDOWN]
    assert (over, EndReason.RUN_TERMINAL) in ended
    pump.run()
    assert len(ended) == 2


def test_nothing_is_written_to_a_socket_that_is_closed_nor_asked_of_anybody() -> None:
    socket = Shut(is_open=False)
    pump = a_pump(socket)
    source = Source((Lane.FACTS, b"f"))
    pump.wake(source)  # type: ignore[arg-type]
    assert (socket.written, source.asked) == ([], [])


def test_frames_are_those_of_a_server_at_every_length() -> None:
    for size in (0, 1, 125, 126, 65_535, 65_536, 70_000):
        frame = text_frame(b"x" * size)
        header = 2 if size < 126 else 4 if size < 65_536 else 10
        assert (frame[0], frame[header:]) == (0x81, b"x" * size)
        assert int.from_bytes(frame[2:header], "big") == (size if size >= 126 else 0)


def test_the_first_subscriptions_of_all_connections_share_their_frames() -> None:
    one, other = SubscriptionWire(1), SubscriptionWire(1)
    assert one.name == other.name != SubscriptionWire(2).name
    assert one.frame("fact", b'{"a":1}', "c") == other.frame("fact", b'{"a":1}', "c")
    note = decode_json(one.frame("fact", b'{\n"a":\r1}', "c")[2:])
    assert note["params"] == {"subscription": "sub_1", "cursor": "c", "fact": {"a": 1}}
    end = decode_json(notification("run/end", "sub_1", b'{"reason":"lifetime"}'))
    assert end == {"jsonrpc": "2.0", "method": "run/end", "params": {"subscription": "sub_1", "reason": "lifetime"}}
