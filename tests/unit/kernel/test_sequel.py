"""What lies in a run's log is read by those who write it as the view shows it, whoever put it there."""

from typing import Any

import msgspec
import pytest

from runlane.kernel.direct import StoredMessage
from runlane.kernel.errors import Compacted, Gap
from runlane.kernel.sequel import Sequel, raw_commit, typed_commit
from runlane.masking.masker import Masker
from runlane.masking.scanner import Scanner
from runlane.redaction_filter.derive import Deriver, LogMessage
from runlane_contracts import events
from runlane_contracts.codec import decode_commit, decode_json, encode
from runlane_contracts.envelope import Commit, Fact
from runlane_contracts.headers import EXPECTED_LAST_SUBJECT_SEQUENCE, FIRST_SEQUENCE, LAST_SEQUENCE
from runlane_contracts.subjects import RunAddress, Subjects
from support.runs import Story

RUN = RunAddress("acme", "run_1")
SUBJECTS = Subjects("rl")
STORY = Story().then(
    events.RunCreated(agent="a"), *(events.TurnStarted(turn_id=f"t{n}") for n in range(20))
)  # fmt: skip


def a_commit(first: int, count: int = 2) -> Commit:
    return Commit(commit_id=f"cmt_{first}", tenant_id="acme", run_id="run_1", first_sequence=first,
                  facts=tuple(STORY.facts[first - 1 : first - 1 + count]))  # fmt: skip


def changed(commit: Commit, index: int | None = None, **fields: Any) -> bytes:
    """Its JSON with some fields replaced, of one fact or of the commit; None removes."""
    plain = decode_json(encode(commit))
    target = plain if index is None else plain["facts"][index]
    target |= fields
    for key in [key for key, value in target.items() if value is None]:
        del target[key]
    return encode(plain)


def stored(seq: int, data: bytes, **headers: str) -> StoredMessage:
    return StoredMessage(SUBJECTS.log(*RUN), seq, 1_700_000_000_000_000_000 + seq, headers, data)


def a_claim(first: int, last: int) -> dict[str, str]:
    return {FIRST_SEQUENCE: str(first), LAST_SEQUENCE: str(last)}


BAD: dict[str, tuple[bytes, dict[str, str]]] = {
    "no JSON": (b"nonsense", {}),
    "nothing": (b"", {}),
    "no JSON, of three facts": (b"\xff", a_claim(3, 5)),
    "no commit": (b'{"hello": "world"}', {}),
    "of another run": (changed(a_commit(3), run_id="run_2"), {}),
    "without facts": (changed(a_commit(3), facts=[]), {}),
    "a fact without an actor": (changed(a_commit(3), 0, actor=None), {}),
    "a fact that is out of place": (changed(a_commit(3), 1, sequence=9), {}),
    "a fact of another tenant": (changed(a_commit(3), 1, tenant_id="other"), {}),
    "a payload that does not fit": (changed(a_commit(3), 0, payload={"turn_id": 7}), {}),
    "no text": (encode(a_commit(3)).replace(b'"t1"', b'"\xff"'), {}),
    "what was there before": (encode(a_commit(1)), {}),
    "half of it was there before": (encode(a_commit(2, 3)), {}),
    "it counts from too far": (encode(a_commit(6)), {EXPECTED_LAST_SUBJECT_SEQUENCE: "10"}),
}


def a_sequel(make: Any = typed_commit) -> Sequel[Any]:
    sequel = Sequel(RUN, make, epoch="e1", is_judged=True)
    assert sequel.next(stored(10, encode(a_commit(1)))).commit == decode_commit(encode(a_commit(1)))
    return sequel


@pytest.mark.parametrize("name", BAD)
def test_writers_and_the_view_agree_on_a_bad_message_and_go_on_after_it(name: str) -> None:
    """To see it fail: let `_judged` return what it cannot read as it stands, or raise."""
    data, headers = BAD[name]
    sequel, raw = a_sequel(), a_sequel_raw()
    found = sequel.next(stored(11, data, **headers))
    view = Deriver(Masker(Scanner()), SUBJECTS, "e1").derive(
        LogMessage(SUBJECTS.log(*RUN), 11, 1_700_000_000_000_000_011, data, headers), RUN, 2
    )
    shown = decode_json(view.view.data)["facts"]
    assert [(one.sequence, one.type, one.event_id) for one in found.commit.facts] == [
        (one["sequence"], one["type"], one["event_id"]) for one in shown
    ]
    assert (found.position.stream_seq, found.position.sequence) == (11, view.last_sequence)
    kept = [
        msgspec.json.decode(fact, type=Fact).sequence for fact in raw.next(stored(11, data, **headers)).commit.facts
    ]
    assert kept == [one["sequence"] for one in shown]
    assert len(shown) == 0 or any(one["type"] == "log.quarantined" for one in shown) or "half" in name
    after = sequel.next(stored(12, encode(a_commit(sequel.sequence + 1))))
    assert after.position.sequence == view.last_sequence + 2
    assert sequel.again(stored(12, encode(after.commit))) is None


def a_sequel_raw() -> Sequel[Any]:
    sequel = Sequel(RUN, raw_commit, epoch="e1", is_judged=True)
    sequel.next(stored(10, encode(a_commit(1))))
    return sequel


@pytest.mark.parametrize("name", ["no JSON", "a fact without an actor"])
def test_who_stands_at_a_bad_message_goes_on_after_it(name: str) -> None:
    data, headers = BAD[name]
    sequel = Sequel(RUN, typed_commit, epoch="e1", sequence=4, seq=11, is_judged=True)
    assert sequel.again(stored(11, data, **headers)) is None
    assert sequel.next(stored(12, encode(a_commit(5)))).position.sequence == 6


def test_p2_facts_that_are_missing_are_a_hole_however_it_is_read() -> None:
    for headers in ({}, {EXPECTED_LAST_SUBJECT_SEQUENCE: "11"}):
        with pytest.raises(Gap):
            a_sequel().next(stored(12, encode(a_commit(6)), **headers))


def test_what_the_record_says_is_archived_is_no_hole() -> None:
    archived = events.LogCompacted(
        from_sequence=1, to_sequence=4, snapshot_ref="s", sha256="0", policy="p", status="completed", reason="retention"
    )
    gone = Story().then(*(events.TurnStarted(turn_id="t") for _ in range(4)), archived)
    commit = msgspec.structs.replace(a_commit(5), facts=tuple(gone.facts[4:]))
    assert Sequel(RUN, typed_commit, epoch="e1", is_judged=True).next(stored(30, encode(commit))).position.sequence == 5
    with pytest.raises(Compacted):
        a_sequel().next(stored(30, encode(commit)))


def test_the_view_is_not_judged_again() -> None:
    with pytest.raises(msgspec.MsgspecError):
        Sequel(RUN, typed_commit, epoch="e1", is_judged=False).next(stored(1, b"nonsense"))
