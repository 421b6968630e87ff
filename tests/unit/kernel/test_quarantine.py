"""Whatever lies in the log, the view stays gapless, and good facts pass."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from runlane.kernel.quarantine import Examined, Fault, Origin, examine
from runlane.kernel.well_formed import is_good_payload
from runlane_contracts import events
from runlane_contracts.codec import decode_json, encode
from runlane_contracts.envelope import Commit, Fact
from runlane_contracts.headers import FIRST_SEQUENCE, LAST_SEQUENCE
from runlane_contracts.ids import is_moment
from runlane_contracts.subjects import RunAddress
from support.runs import Story

RUN = RunAddress("acme", "run_1")
ORIGIN = Origin("e1", 7, RUN, "2026-03-01T00:00:00.000001Z")


def a_commit(first: int = 4, count: int = 3) -> Commit:
    story = Story().then(*(events.TurnStarted(turn_id=f"t{n}") for n in range(first + count - 1)))
    return Commit(commit_id="cmt_1", tenant_id="acme", run_id="run_1", first_sequence=first,
                  facts=tuple(story.facts[first - 1 :]))  # fmt: skip


def changed(commit: Commit, index: int, **fields: Any) -> bytes:
    """The commit's JSON with some fields of one fact replaced; None removes."""
    plain = decode_json(encode(commit))
    plain["facts"][index] |= fields
    plain["facts"][index] = {key: value for key, value in plain["facts"][index].items() if value is not None}
    return encode(plain)


def _nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def judge(body: bytes, head: int | None = 3, headers: dict[str, str] | None = None) -> Examined:
    return examine(body, headers or {}, ORIGIN, head=head)


def faults(examined: Examined) -> list[tuple[int, Fault]]:
    return [(finding.sequence, finding.fault) for finding in examined.findings]


def reason(fact: Fact) -> str:
    payload = events.decode_payload(fact.type, fact.payload)
    assert isinstance(payload, events.LogQuarantined)
    return payload.reason


def test_a_valid_commit_passes_unchanged() -> None:
    commit = a_commit()
    examined = judge(encode(commit))
    assert encode(examined) == encode(Examined("cmt_1", 4, commit.facts))
    assert examined.last_sequence == 6


def test_an_unknown_type_is_no_fault() -> None:
    body = changed(a_commit(), 1, type="weather.changed", payload={"any": ["thing"]})
    assert judge(body).findings == ()


def test_unknown_fields_are_no_fault() -> None:
    body = changed(a_commit(), 1, new_field=1, payload={"turn_id": "t", "new": 1})
    assert judge(body).findings == ()


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"payload": {}}, Fault.PAYLOAD),
        ({"payload": {"turn_id": "no id!"}}, Fault.PAYLOAD),
        ({"payload": [1]}, Fault.PAYLOAD),
        ({"tenant_id": "other"}, Fault.FOREIGN),
        ({"run_id": "run_2"}, Fault.FOREIGN),
        ({"sequence": 9}, Fault.SEQUENCE),
        ({"type": "no spaces"}, Fault.TYPE_NAME),
        ({"type": "x.>"}, Fault.TYPE_NAME),
        ({"type": "x." + "y" * 200}, Fault.TYPE_NAME),
        ({"event_id": "evt_x\n"}, Fault.ENVELOPE),
        ({"event_id": None}, Fault.ENVELOPE),
        ({"occurred_at": "yesterday"}, Fault.ENVELOPE),
        ({"occurred_at": "2026-02-30T00:00:00Z"}, Fault.ENVELOPE),
        ({"session_id": "no id!"}, Fault.ENVELOPE),
        ({"task_id": "no id!"}, Fault.ENVELOPE),
        ({"turn_id": "no id!"}, Fault.ENVELOPE),
        ({"parent_id": ""}, Fault.ENVELOPE),
        ({"causation_ids": ["evt_1", "no id!"]}, Fault.ENVELOPE),
        ({"payload": {"turn_id": "t", "x": [[[[]]]] * 40}, "type": "weather.changed"}, None),
        ({"payload": {"x": _nested(200)}, "type": "weather.changed"}, Fault.PAYLOAD),
        ({"classification": "secret"}, Fault.ENVELOPE),
        ({"actor": "bob"}, Fault.ENVELOPE),
        ({"tenant_id": "No Tenant"}, Fault.FOREIGN),
    ],
)
def test_one_bad_fact_is_quarantined_and_its_neighbours_pass(fields: dict[str, Any], fault: Fault | None) -> None:
    commit = a_commit()
    examined = judge(changed(commit, 1, **fields))
    if fault is None:
        assert examined.findings == ()
        return
    assert faults(examined) == [(5, fault)]
    assert [fact.sequence for fact in examined.facts] == [4, 5, 6]
    assert encode(examined.facts[::2]) == encode(commit.facts[::2])
    stand_in = examined.facts[1]
    assert stand_in.type == "log.quarantined"
    assert reason(stand_in) == fault.value
    assert (stand_in.tenant_id, stand_in.run_id) == RUN


def test_a_quarantined_fact_names_the_event_it_stands_for() -> None:
    commit = a_commit()
    payload = events.decode_payload("log.quarantined", judge(changed(commit, 1, sequence=9)).facts[1].payload)
    assert payload.event_id == commit.facts[1].event_id  # type: ignore[union-attr]


def test_the_same_place_gives_the_same_stand_in() -> None:
    body = changed(a_commit(), 1, payload={})
    assert encode(judge(body).facts) == encode(judge(body).facts)
    elsewhere = examine(body, {}, msgspec.structs.replace(ORIGIN, stream_seq=8), head=3)
    assert elsewhere.facts[1].event_id != judge(body).facts[1].event_id


@pytest.mark.parametrize("body", [b"", b"not json", b"[]", b"{}", b"\xff\xfe", b'{"facts": 1}', b"[" * 100_000])
def test_an_unreadable_message_takes_the_next_place(body: bytes) -> None:
    examined = judge(body)
    assert faults(examined) == [(4, Fault.UNDECODABLE)]
    assert [fact.sequence for fact in examined.facts] == [4]
    assert judge(body, head=None).facts[0].sequence == 1


def test_an_unreadable_message_takes_as_many_places_as_its_headers_say() -> None:
    headers = {FIRST_SEQUENCE: "4", LAST_SEQUENCE: "6"}
    assert [fact.sequence for fact in judge(b"x", headers=headers).facts] == [4, 5, 6]
    assert [fact.sequence for fact in judge(b"x", head=None, headers=headers).facts] == [4, 5, 6]


@pytest.mark.parametrize(("first", "last"), [("9", "11"), ("4", "3"), ("4", "99999999"), ("x", "6"), ("4", "-6")])
def test_headers_that_do_not_fit_are_not_believed(first: str, last: str) -> None:
    assert [fact.sequence for fact in judge(b"x", headers={FIRST_SEQUENCE: first, LAST_SEQUENCE: last}).facts] == [4]


def test_a_commit_of_another_run_is_quarantined_in_this_runs_next_places() -> None:
    commit = msgspec.structs.replace(a_commit(first=40), run_id="run_2")
    examined = judge(encode(commit))
    assert faults(examined) == [(4, Fault.FOREIGN), (5, Fault.FOREIGN), (6, Fault.FOREIGN)]
    assert examined.first_sequence == 4


def test_what_is_missing_from_the_log_is_said_in_its_place() -> None:
    examined = judge(encode(a_commit(first=6)), head=3)
    assert examined.first_sequence == 4
    assert [fact.sequence for fact in examined.facts] == [4, 5, 6, 7, 8]
    assert faults(examined) == [(4, Fault.MISSING), (5, Fault.MISSING)]


def test_a_hole_too_large_to_stand_in_for_stays_a_hole() -> None:
    examined = judge(encode(a_commit(first=1500)), head=3)
    assert examined.first_sequence == 1500
    assert faults(examined) == [(1500, Fault.MISSING)]


def test_what_was_written_before_is_not_shown_again() -> None:
    examined = judge(encode(a_commit(first=4)), head=4)
    assert [fact.sequence for fact in examined.facts] == [5, 6]
    assert faults(examined) == [(4, Fault.REPEATED)]
    nothing = judge(encode(a_commit(first=4)), head=6)
    assert nothing.facts == ()
    assert (nothing.first_sequence, nothing.last_sequence) == (7, 6)


def test_a_run_of_which_the_view_has_nothing_may_begin_anywhere() -> None:
    examined = judge(encode(a_commit(first=4)), head=None)
    assert encode(examined) == encode(Examined("cmt_1", 4, a_commit(first=4).facts))


def test_text_that_is_no_utf8_is_quarantined_alone() -> None:
    body = changed(a_commit(), 1, type="weather.changed", payload={"a": "XYZ"}).replace(b"XYZ", b"\xff\xff")
    examined = judge(body)
    assert faults(examined) == [(5, Fault.ENVELOPE)]
    assert [fact.type for fact in examined.facts] == ["turn.started", "log.quarantined", "turn.started"]


def test_reasons_never_quote_what_was_wrong() -> None:
    body = changed(a_commit(), 1, type="tool.reconciled",
                   payload={"tool_call_id": "c", "outcome": "the-canary-sings", "by": "x"})  # fmt: skip
    examined = judge(body)
    assert examined.findings
    assert b"canary" not in encode(examined.facts) + encode(examined.findings)


@pytest.mark.parametrize("type_", sorted(events.PAYLOADS))
@given(data=st.data())
def test_payloads_are_judged_as_the_contract_judges_them(type_: str, data: st.DataObject) -> None:
    good = st.sampled_from(["x", "evt_1", "2026-03-01T00:00:00.000000Z", "no id!", "x\n", "", "default", "none", 1, 1.5,
                            True, None, [], {}, {"code": "c"}, [{"kind": "input", "id": "i"}],
                            [{"kind": "input", "id": "no id!"}], {"uri": "u", "sha256": "s", "size": 1}])  # fmt: skip
    fields = events.PAYLOADS[type_].__struct_fields__
    payload = encode(data.draw(st.fixed_dictionaries({}, optional=dict.fromkeys(fields, good))))
    try:
        events.decode_payload(type_, payload)
        expected = all(is_moment(value) for value in _times(type_, payload))
    except msgspec.MsgspecError:
        expected = False
    try:
        found = is_good_payload(type_, msgspec.Raw(payload))
    except msgspec.MsgspecError:
        found = False
    assert found is expected


def _times(type_: str, payload: bytes) -> list[str]:
    return [value for name, value in decode_json(payload).items() if name.endswith("_at") and isinstance(value, str)]


@given(st.binary(max_size=200), st.none() | st.integers(0, 50))
def test_no_bytes_make_it_fail(body: bytes, head: int | None) -> None:
    _is_gapless(judge(body, head), head)


@given(st.data(), st.none() | st.integers(0, 50))
def test_no_change_to_a_commit_makes_it_fail(data: st.DataObject, head: int | None) -> None:
    body = bytearray(encode(a_commit()))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    _is_gapless(judge(bytes(body), head), head)


def _is_gapless(examined: Examined, head: int | None) -> None:
    sequences = [fact.sequence for fact in examined.facts]
    assert sequences == list(range(examined.first_sequence, examined.first_sequence + len(sequences)))
    hole = any(finding.fault is Fault.MISSING for finding in examined.findings)
    assert head is None or examined.first_sequence == head + 1 or hole
