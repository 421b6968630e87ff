import pytest
from hypothesis import given, strategies as st

from runlane.client.transports import sse
from runlane.client.transports.sse import SseFrame, SseOverflow, SseParser

STREAM = (
    b": heartbeat\n\n"
    b"event: hello\ndata: {}\n\n"
    b'event: fact\nid: c1.a.b\ndata: {"a":1}\n\n'
    b"event:fact\r\nid:c1.a.c\r\ndata:line one\r\ndata: line two\r\n\r\n"
    b"id: alone\n\n"
    b"retry: 3\ndata: \xc3\xa9\n\n"
)
FRAMES = [
    SseFrame("hello", b"{}", None),
    SseFrame("fact", b'{"a":1}', "c1.a.b"),
    SseFrame("fact", b"line one\nline two", "c1.a.c"),
    SseFrame("message", "é".encode(), None),
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_frames_are_the_same_however_the_bytes_are_cut(cuts: list[int]):
    parser, frames, at = SseParser(), [], 0
    for cut in [*sorted(cuts), len(STREAM)]:
        frames += parser.feed(STREAM[at:cut])
        at = cut
    assert frames == FRAMES
    assert parser.comments == 1


def test_a_frame_that_is_cut_off_is_not_given():
    parser = SseParser()
    assert parser.feed(b"event: end\ndata: {}\n") == []


def test_an_id_belongs_to_its_frame_only():
    parser = SseParser()
    first, second = parser.feed(b"id: 1\ndata: a\n\ndata: b\n\n")
    assert (first.id, second.id) == ("1", None)


def test_a_frame_without_end_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sse, "MAX_FRAME_BYTES", 1000)
    parser = SseParser()
    assert parser.feed(b"data: " + b"x" * 900 + b"\n") == []
    with pytest.raises(SseOverflow):
        parser.feed(b"data: " + b"x" * 101)
