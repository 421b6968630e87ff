"""Filters, frames, parameters, the ring: the parts that do no I/O."""

import pytest
from hypothesis import given, strategies as st

from runlane.edge_gateway.frames import Chunk, FactFrames, frame, retry_hint, struct_frame
from runlane.edge_gateway.queries import choice, integer, limit_param, query_params, watch_request
from runlane.edge_gateway.ring import CommitRing
from runlane.edge_gateway.type_filter import EVERYTHING, MAX_TYPES, TypeFilterInvalid, type_filter
from runlane.edge_gateway.view import ViewCommit
from runlane.edge_gateway.websocket.frames import SubscriptionWire
from runlane.hosting.http import ProblemError
from runlane_contracts import events
from runlane_contracts.codec import encode
from runlane_contracts.cursor import Position, filter_hash
from runlane_contracts.problems import Code
from runlane_contracts.resume import Synced
from runlane_contracts.subjects import RunAddress
from support.edge import KEYS, FrameParser
from support.runs import Story

RUN = RunAddress("acme", "run_1")


# --- filters ----------------------------------------------------------------------------------------------


def test_a_filter_passes_exact_types_and_whole_families() -> None:
    types = type_filter("run.*, message.completed,run.*")
    assert types.types == ("message.completed", "run.*")
    assert types.hash == filter_hash(types.types)
    assert types.matches("run.created")
    assert types.matches("message.completed")
    assert not types.matches("message.started")
    assert not types.matches("runs.created")


def test_a_family_alone_is_all_of_it_and_its_cursors_are_the_same() -> None:
    assert type_filter("tool, run.created") == type_filter("tool.*,run.created")
    assert type_filter("tool").matches("tool.requested")
    assert not type_filter("tool").matches("toolbox.opened")


def test_no_filter_passes_everything_and_binds_nothing() -> None:
    for text in (None, "", " , "):
        assert type_filter(text) == EVERYTHING
    assert EVERYTHING.hash == ""
    assert EVERYTHING.matches("anything.at_all")


@pytest.mark.parametrize(
    "text", ["Run", "tolo", "*", "run.", ".*", "run.created.twice", "Run.created", "run.*x", "a\n.b", "r" * 99]
)
def test_what_is_no_type_is_refused(text: str) -> None:
    with pytest.raises(TypeFilterInvalid):
        type_filter(text)


def test_a_filter_has_a_bound() -> None:
    with pytest.raises(TypeFilterInvalid):
        type_filter(",".join(f"a.b{index}" for index in range(MAX_TYPES + 1)))


# --- frames -----------------------------------------------------------------------------------------------


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_a_frame_is_read_as_it_was_written_whatever_it_holds(value: object) -> None:
    (got,) = FrameParser().feed(frame("fact", encode(value), id_="c1.x.y"))
    assert (got.event, got.data, got.id) == ("fact", value, "c1.x.y")


def test_line_breaks_between_tokens_do_not_break_a_frame() -> None:
    (got,) = FrameParser().feed(frame("fact", b'{\r\n "a":\n"b\\n"\r}'))
    assert got.data == {"a": "b\n"}


def test_no_text_ends_a_line_for_readers_that_know_more_line_ends_than_the_standard() -> None:
    text = "a\x85b\u2028c\u2029d\x0be\x0cf\x1cg\x1eh é \U0001f389"
    data = encode({"text": text, text: 1})
    sent = frame("fact", data, id_="c1.x.y")
    assert len(sent.decode().splitlines()) == 4
    (got,) = FrameParser().feed(sent)
    assert got.data == {"text": text, text: 1}
    socket = SubscriptionWire(1).frame("fact", data, "c1.x.y").partition(b"{")[2]
    assert sent.partition(b"data: ")[2].strip() in socket


def test_frames_without_data_of_a_run_are_as_the_protocol_writes_them() -> None:
    assert struct_frame("synced", Synced(sequence=3)) == b'event: synced\ndata: {"sequence":3}\n\n'
    assert retry_hint(5) == b"retry: 5\n"


def test_frames_for_many_are_joined_once() -> None:
    chunk = Chunk(b"ab", b"c" * 14)
    assert (chunk.size_bytes, chunk.data) == (16, b"ab" + b"c" * 14)
    assert chunk.framed == b"10\r\nab" + b"c" * 14 + b"\r\n"
    assert chunk.framed is chunk.framed


def a_commit(first: int, count: int = 2, size: int = 10) -> ViewCommit:
    story = Story()
    for _ in range(first + count - 1):
        story.then(events.TaskCreated(task_id="t", title="x" * size))
    commit = story.commits(first + count - 1)[0]
    facts = commit.facts[first - 1 :]
    body = encode({
        "commit_id": "c", "tenant_id": "acme", "run_id": "run_1", "first_sequence": first, "facts": facts,
    })  # fmt: skip
    return ViewCommit("e1", first * 10, first, first + count - 1, body)


def test_each_fact_carries_the_cursor_after_it() -> None:
    encoder = FactFrames(KEYS, RUN, EVERYTHING)
    commit = a_commit(3, 3)
    encoded = encoder.encode(commit, after=3)
    assert encoded.sequences == (4, 5)
    assert encoded.after(4).sequences == encoded.after(3).after(4).sequences == (5,)
    assert encoded.first(1).sequences == (4,)
    frames = FrameParser().feed(b"".join(encoded.frames))
    assert [one.data["sequence"] for one in frames] == [4, 5]
    assert [encoder.position(str(one.id)) for one in frames] == [Position("e1", 30, 4), Position("e1", 30, 5)]


# --- parameters -------------------------------------------------------------------------------------------


def test_a_watch_is_read_from_query_and_headers() -> None:
    asked = watch_request(b"cursor=c1&from=now&previews=true&types=run.*&min_sequence=7", [(b"last-event-id", b" c2 ")])
    assert (asked.cursor, asked.sticky, asked.start, asked.previews) == ("c2", True, "now", True)
    assert (asked.types.types, asked.min_sequence) == (("run.*",), 7)
    plain = watch_request(b"cursor=&from=&previews=", [(b"last-event-id", b"")])
    assert (plain.cursor, plain.sticky, plain.start, plain.previews) == (None, False, None, False)


def test_types_may_be_given_one_by_one() -> None:
    asked = watch_request(b"types=tool.*&previews=true&types=run.created,message&limit=1&limit=2", [])
    assert asked.types.types == ("message.*", "run.created", "tool.*")


@pytest.mark.parametrize(
    "query",
    [b"from=end", b"previews=1", b"types=t", b"min_sequence=-1", b"min_sequence=x", b"min_sequence=9999999999999999999",
     b"\xff=1", b"a=%ff", b"&".join(b"a%d=1" % index for index in range(60))],
)  # fmt: skip
def test_a_watch_that_makes_no_sense_is_refused_by_name(query: bytes) -> None:
    with pytest.raises(ProblemError) as refused:
        watch_request(query, [])
    assert refused.value.code is Code.INVALID_REQUEST


def test_integers_and_words_are_bounded() -> None:
    params = query_params(b"limit=7&status=open&big=5000&odd=%C2%B2")
    assert integer(params, "limit", default=1) == 7
    assert integer(params, "absent", default=3) == 3
    assert limit_param(params | {"limit": "5000"}, default=1, maximum=100) == 100
    assert choice(params, "status", ["open", "shut"]) == "open"
    assert choice(params, "absent", ["open"]) is None
    for name, check in (("odd", integer), ("status", integer)):
        with pytest.raises(ProblemError):
            check(params, name, default=0)
    with pytest.raises(ProblemError):
        choice(params, "status", ["shut"])
    with pytest.raises(ProblemError):
        limit_param({"limit": "0"}, default=1, maximum=100)


# --- ring -------------------------------------------------------------------------------------------------


def test_a_ring_forgets_the_oldest_and_never_the_newest() -> None:
    ring = CommitRing(1)
    for first in (1, 3, 5):
        ring.append(a_commit(first))
    assert len(ring) == 1
    assert ring.holds(4)
    assert ring.holds(5)
    assert not ring.holds(3)
    with pytest.raises(ValueError, match="does not follow"):
        ring.append(a_commit(9))


def test_a_ring_knows_the_place_of_every_reader() -> None:
    ring = CommitRing(1_000_000)
    for first in range(1, 20, 2):
        ring.append(a_commit(first))
    for sequence in range(20):
        entries = list(ring.after(sequence))
        assert [one.commit.last_sequence for one in entries] == [last for last in range(2, 21, 2) if last > sequence]


def test_frames_are_encoded_once_per_filter_and_count_against_the_bound() -> None:
    ring = CommitRing(1_000_000)
    ring.append(a_commit(1, 4))
    everything, nothing = FactFrames(KEYS, RUN, EVERYTHING), FactFrames(KEYS, RUN, type_filter("run.created"))
    (entry,) = ring.after(0)
    before = ring.size_bytes
    first = ring.frames(entry, everything, after=0)
    assert ring.frames(entry, everything, after=0) is first
    assert ring.size_bytes == before + first.size_bytes
    assert ring.frames(entry, nothing, after=0).frames == ()
    assert ring.frames(entry, everything, after=2).frames == first.frames[2:]
    assert ring.size_bytes == before + first.size_bytes


def test_many_filters_do_not_make_a_ring_grow_without_bound() -> None:
    ring = CommitRing(20_000)
    for first in range(1, 9, 2):
        ring.append(a_commit(first, size=1000))
    for index in range(100):
        encoder = FactFrames(KEYS, RUN, type_filter(f"task.*,x.y{index}"))
        for entry in ring.after(0):
            ring.frames(entry, encoder, after=0)
    assert ring.size_bytes < 2 * 20_000 + 5_000
