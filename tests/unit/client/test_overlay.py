from runlane.client import RunState
from runlane_contracts import events
from runlane_contracts.previews import Coalesced, Preview, PreviewGap, PreviewSubject
from runlane_contracts.resume import SnapshotFrame
from support.runs import Story


def shown(seq: int, data: object, *, preview_id: str = "p1", id_: str = "m1", **more) -> Preview:
    subject = PreviewSubject(kind="message", id=id_)
    return Preview(preview_id=preview_id, subject=subject, preview_seq=seq, data=data, **more)


def a_talking_run() -> tuple[RunState, Story]:
    story = Story().then(
        events.RunCreated(agent="a"), events.RunLeased(lease_epoch=1, worker_id="w"), events.RunStarted(),
        events.MessageStarted(message_id="m1", role="assistant"),
    )  # fmt: skip
    state = RunState("run_1", "acme")
    for fact in story.facts:
        state.apply(fact)
    return state, story


def texts(state: RunState) -> list[object]:
    return [entry.data for entry in state.overlay.entries()]


def test_fragments_that_are_appended_make_one_text():
    state, _ = a_talking_run()
    for seq, word in enumerate(["An ", "apple ", "and"], start=1):
        assert state.apply(shown(seq, word)) == "message:m1"
    assert texts(state) == ["An apple and"]


def test_a_repeated_or_overtaken_fragment_changes_nothing():
    state, _ = a_talking_run()
    for seq, word in [(1, "a"), (2, "b"), (2, "b"), (1, "a")]:
        state.apply(shown(seq, word))
    assert texts(state) == ["ab"]


def test_a_fact_with_the_preview_id_replaces_the_preview():
    state, story = a_talking_run()
    state.apply(shown(1, "An appl"))
    story.then(events.MessageCompleted(message_id="m1", role="assistant", content="One apple.", preview_id="p1"))
    state.apply(story.facts[-1])
    assert texts(state) == []
    assert state.overlay.fates["committed"] == 1
    assert state.data["items"]["message:m1"]["content"] == "One apple."


def test_an_item_that_ends_without_naming_its_preview_ends_it_too():
    state, story = a_talking_run()
    state.apply(shown(1, "An appl"))
    state.apply(story.then(events.MessageCancelled(message_id="m1")).facts[-1])
    assert texts(state) == []
    assert state.overlay.fates["superseded"] == 1


def test_a_fragment_that_comes_after_its_fact_is_ignored():
    state, story = a_talking_run()
    story.then(events.MessageCompleted(message_id="m1", role="assistant", content="done", preview_id="p1"))
    state.apply(story.facts[-1])
    assert state.apply(shown(1, "zombie")) is None
    assert state.apply(shown(1, "zombie", preview_id="p2")) is None
    assert texts(state) == []


def test_a_newer_preview_of_the_same_item_supersedes_the_older():
    state, _ = a_talking_run()
    state.apply(shown(1, "first"))
    state.apply(shown(1, "second", preview_id="p2"))
    assert texts(state) == ["second"]
    assert state.overlay.fates["superseded"] == 1


def test_an_abandoned_preview_goes_and_does_not_come_back():
    state, _ = a_talking_run()
    state.apply(shown(1, "first"))
    state.apply(shown(2, None, fate="abandoned"))
    state.apply(shown(3, "again"))
    assert texts(state) == []
    assert state.overlay.fates["abandoned"] == 1


def test_a_lost_lease_and_the_end_of_the_run_abandon_what_is_shown():
    for ending in (events.RunLeaseLost(lease_epoch=1), events.RunFailed(error=events.Problem(code="boom"))):
        state, story = a_talking_run()
        state.apply(shown(1, "half a sent"))
        state.apply(story.then(ending).facts[-1])
        assert texts(state) == []
        assert state.overlay.fates["abandoned"] == 1


def test_a_snapshot_abandons_what_is_shown():
    state, _ = a_talking_run()
    state.apply(shown(1, "half"))
    state.apply(SnapshotFrame(state=state.data, through_sequence=4, reducer_version=1, checksum=state.checksum()))
    assert texts(state) == []


def test_a_merged_fragment_counts_as_all_its_sources():
    state, _ = a_talking_run()
    state.apply(shown(3, "abc", coalesced=Coalesced(first_seq=1, last_seq=3, source_count=3)))
    state.apply(shown(5, "de", coalesced=Coalesced(first_seq=4, last_seq=5, source_count=2)))
    (entry,) = state.overlay.entries()
    assert (entry.data, entry.incomplete) == ("abcde", False)


def test_a_gap_that_is_told_marks_the_text_and_starts_it_again():
    state, _ = a_talking_run()
    state.apply(shown(1, "abc"))
    state.apply(PreviewGap(preview_id="p1", from_=2, to=4, dropped=3, reason="slow_reader"))
    (entry,) = state.overlay.entries()
    assert (entry.data, entry.incomplete, entry.lost_fragments) == ("abc", True, 3)
    state.apply(shown(5, "xyz"))
    assert entry.data == "xyz"
    assert entry.incomplete


def test_a_whole_value_makes_up_for_what_was_lost_before_it():
    state, _ = a_talking_run()
    state.apply(shown(4, {"percent": 40}, operation="latest_value"))
    (entry,) = state.overlay.entries()
    assert (entry.data, entry.incomplete, entry.lost_fragments) == ({"percent": 40}, False, 3)


def test_the_overlay_is_bounded():
    state, _ = a_talking_run()
    for number in range(1000):
        state.apply(shown(1, "x", preview_id=f"p{number}", id_=f"m{number}"))
    assert len(state.overlay.entries()) <= 256
    state.apply(shown(1, "y" * 300_000, preview_id="long", id_="long"))
    assert state.overlay.entries()[-1].incomplete
