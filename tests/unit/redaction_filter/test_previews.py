"""Previews through the filter: masked, in order, every fragment accounted for."""

import base64
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from runlane.masking.masker import masked_id
from runlane.masking.scanner import Scanner
from runlane.redaction_filter.previews import LeaseEpochs, PreviewMasker
from runlane_contracts.codec import encode
from runlane_contracts.previews import Coalesced, Preview, PreviewBatch, PreviewSubject
from runlane_contracts.subjects import RunAddress
from support import secrets

RUN = RunAddress("acme", "run_1")
SCANNER = Scanner()
TOKEN = secrets.tokens()["github"][1]
MASK = "[masked:github-token]"


def masker(**limits: int) -> PreviewMasker:
    return PreviewMasker(SCANNER, LeaseEpochs(), **limits)


def a_preview(seq: int, data: Any, **fields: Any) -> Preview:
    fields = {"preview_id": "pvw_1", "subject": PreviewSubject(kind="message", id="m1"), **fields}
    return Preview(preview_seq=seq, data=data, **fields)


def show(one: PreviewMasker, *previews: Preview, run: RunAddress = RUN) -> list[Preview]:
    shown: list[Preview] = []
    for preview in previews:
        batch = one.batch(run, encode(PreviewBatch(tenant_id=run.tenant_id, run_id=run.run_id, previews=(preview,))))
        if batch is not None:
            assert (batch.tenant_id, batch.run_id) == run
            shown += batch.previews
    return shown


def test_a_fragment_without_a_secret_passes_unchanged() -> None:
    preview = a_preview(1, "hello ", offset=0, lease_epoch=2, base_revision=1)
    assert show(masker(), preview) == [preview]


def test_a_fragment_that_is_held_is_named_by_the_one_that_shows_it() -> None:
    shown = show(masker(), *(a_preview(seq, data) for seq, data in enumerate(["a ghp_", "ab", "cd", " b"], 1)))
    assert [(one.preview_seq, one.first_seq, one.data) for one in shown] == [(1, 1, "a ghp_"), (4, 2, "abcd b")]
    assert shown[1].coalesced == Coalesced(first_seq=2, last_seq=4, source_count=3)


def test_coalesced_fragments_keep_their_count() -> None:
    merged = Coalesced(first_seq=2, last_seq=5, source_count=4)
    shown = show(masker(), a_preview(1, "ghp_"), a_preview(5, "abc", coalesced=merged), a_preview(6, " x"))
    assert shown[1].coalesced == Coalesced(first_seq=2, last_seq=6, source_count=5)


def test_a_secret_over_fragments_is_masked() -> None:
    shown = show(masker(), *(a_preview(seq, part) for seq, part in enumerate(f"x {TOKEN} y", 1)))
    assert "".join(one.data for one in shown) == f"x ghp_{MASK} y"


def test_offsets_are_dropped_once_they_no_longer_hold() -> None:
    shown = show(
        masker(), a_preview(1, "ab", offset=0), a_preview(2, f" {TOKEN} ", offset=2), a_preview(3, "c", offset=9)
    )
    assert [one.offset for one in shown] == [0, None, None]


@pytest.mark.parametrize("operation", ["replace", "latest_value", "patch"])
def test_whole_values_are_searched_everywhere(operation: str) -> None:
    data = {"a": [f"x {TOKEN} y", {"password": "p"}], "half": "is ghp_abc"}
    assert show(masker(), a_preview(1, data, operation=operation))[0].data == {
        "a": [f"x {MASK} y", {"password": "[masked:secret-name]"}], "half": "is ghp_",
    }  # fmt: skip


def test_a_replacement_that_ends_in_half_a_secret_is_joined_with_what_is_appended() -> None:
    shown = show(masker(), a_preview(1, f"x {TOKEN[:10]}", operation="replace"), a_preview(2, TOKEN[10:] + " y"))
    assert [one.data for one in shown] == ["x ghp_", f"{MASK} y"]


def test_base64_output_is_masked_in_the_text_it_stands_for() -> None:
    text = f"x {TOKEN} y".encode()
    parts = [base64.b64encode(text[at : at + 5]).decode() for at in range(0, len(text), 5)]
    shown = show(masker(), *(a_preview(seq, part, encoding="base64") for seq, part in enumerate(parts, 1)))
    assert b"".join(base64.b64decode(one.data) for one in shown) == f"x ghp_{MASK} y".encode()
    assert show(masker(), a_preview(1, "not base64!", encoding="base64")) == []


def test_a_gap_is_passed_on_and_what_follows_it_is_shown_from_the_next_word() -> None:
    shown = show(masker(), a_preview(1, "all well "), a_preview(3, "rest-of-secret and on"))
    assert [(one.first_seq, one.data) for one in shown] == [(1, "all well "), (3, "and on")]
    assert shown[1].coalesced is not None
    assert shown[1].coalesced.truncated


def test_a_gap_is_said_at_once_though_nothing_of_what_follows_may_be_shown_yet() -> None:
    shown = show(masker(), *(a_preview(seq, data) for seq, data in [(1, "one "), (3, "three"), (4, "4 "), (5, "x y")]))
    assert [(one.first_seq, one.preview_seq, one.data) for one in shown] == [(1, 1, "one "), (3, 3, ""), (4, 5, "x y")]
    assert [one.coalesced is not None and one.coalesced.truncated for one in shown] == [False, True, True]


def test_a_gap_within_a_secret_shows_nothing_more_until_its_end() -> None:
    one = masker()
    assert [p.data for p in show(one, a_preview(1, "ghp_abc"), a_preview(3, "def ghi"), a_preview(4, " more"))] == [
        "ghp_",
        "",
    ]
    end = show(one, a_preview(5, None, fate="abandoned"))
    assert (end[0].fate, end[0].first_seq, end[0].data) == ("abandoned", 4, None)


def test_the_end_of_a_preview_drops_what_was_held() -> None:
    one = masker()
    show(one, a_preview(1, "ghp_"), a_preview(2, "abc"))
    assert one.held == 1
    end = show(one, a_preview(3, "x", fate="abandoned"))[0]
    assert (end.first_seq, end.preview_seq, end.data) == (2, 3, None)
    assert one.held == 0


def test_repeats_are_dropped_and_counted() -> None:
    one = masker()
    assert len(show(one, a_preview(1, "a"), a_preview(1, "a"), a_preview(2, "b"), a_preview(1, "a"))) == 2
    assert one.counts.repeated == 2


def test_previews_below_the_lease_epoch_of_their_run_are_dropped_and_counted() -> None:
    leases = LeaseEpochs()
    one = PreviewMasker(SCANNER, leases)
    leases.note(RUN, 3)
    leases.note(RUN, 2)
    assert len(show(one, a_preview(1, "a", lease_epoch=2), a_preview(1, "b", lease_epoch=3))) == 1
    assert one.counts.fenced == 1
    other = RunAddress("acme", "run_2")
    assert len(show(one, a_preview(1, "a", lease_epoch=1), run=other)) == 1


def test_a_new_owner_begins_a_preview_anew() -> None:
    shown = show(
        masker(), a_preview(1, "a", lease_epoch=1), a_preview(2, "b", lease_epoch=1), a_preview(1, "c", lease_epoch=2)
    )
    assert [one.data for one in shown] == ["a", "b", "c"]


@pytest.mark.parametrize("fields", [{"tenant_id": "other"}, {"run_id": "run_2"}])
def test_an_id_inside_a_fragment_is_not_trusted(fields: dict[str, str]) -> None:
    one = masker()
    assert show(one, a_preview(1, "a", **fields)) == []
    assert (
        one.batch(RunAddress("acme", "run_2"), encode(PreviewBatch(tenant_id="acme", run_id="run_1", previews=())))
        is None
    )
    assert one.counts.invalid == 1


def test_what_cannot_be_decoded_is_counted() -> None:
    one = masker()
    assert one.batch(RUN, b"{") is None
    assert one.counts.invalid == 1


def test_ids_that_hold_a_secret_become_what_the_view_makes_of_them() -> None:
    preview = a_preview(1, "x", preview_id=TOKEN, subject=PreviewSubject(kind=TOKEN, id=TOKEN), encoding=TOKEN)
    shown = show(masker(), preview)[0]
    assert shown.preview_id == shown.subject.id == masked_id(TOKEN)
    assert TOKEN.encode() not in encode(shown)


def test_state_is_bounded_by_number_and_by_bytes() -> None:
    for limits in ({"max_previews": 3}, {"max_state_bytes": 3000}):
        one = masker(**limits)
        for number in range(10):
            show(one, a_preview(1, "ghp_", preview_id=f"p{number}"), a_preview(2, "ab", preview_id=f"p{number}"))
        assert one.held <= 5
        assert one.counts.forgotten == 10 - one.held
        # What was forgotten goes on after a gap, not in the middle of what might be a secret.
        shown = show(one, a_preview(3, "c", preview_id="p0"), a_preview(4, "d e f", preview_id="p0"))
        assert [preview.data for preview in shown] == ["", "e f"]


def test_lease_epochs_are_bounded() -> None:
    leases = LeaseEpochs(max_runs=2)
    for number in range(5):
        leases.note(RunAddress("acme", f"r{number}"), 1)
    assert leases.of(RunAddress("acme", "r0")) is None
    assert leases.of(RunAddress("acme", "r4")) == 1


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["a ", "ghp_", "abc", TOKEN, " ", "é"]), st.integers(1, 3)), max_size=30))
def test_every_fragment_is_shown_or_held_or_counted(parts: list[tuple[str, int]]) -> None:
    one = masker()
    shown: list[Preview] = []
    seq, sent = 0, 0
    for data, step in parts:
        seq += step  # more than one: a gap
        sent += 1
        shown += show(one, a_preview(seq, data))
    counts = one.counts
    held = sent - counts.shown
    assert counts.received == sent
    assert (counts.repeated, counts.invalid, counts.fenced) == (0, 0, 0)
    assert held >= 0
    last = 0
    for preview in shown:
        assert preview.first_seq > last
        last = preview.preview_seq
    assert TOKEN[4:] not in "".join(preview.data for preview in shown)
