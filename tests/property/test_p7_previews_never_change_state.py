"""P7: a preview never changes state; each ends in a named fate; each loss is counted."""

from hypothesis import given, settings, strategies as st

from runlane.client import RunState
from runlane_contracts import events, reducer
from runlane_contracts.previews import Preview, PreviewGap, PreviewSubject
from support.runs import Story, runs

ITEMS = [(kind, id_) for kind in ("message", "tool", "task") for id_ in ("x1", "x2")]


@st.composite
def fragments(draw: st.DrawFn) -> list[Preview | PreviewGap]:
    """Fragments of a few previews: in any order, some repeated, some missing, with gaps told now and then."""
    made: list[Preview | PreviewGap] = []
    for number in range(draw(st.integers(0, 4))):
        kind, id_ = draw(st.sampled_from(ITEMS))
        made += [
            Preview(
                preview_id=f"pvw_{number}", subject=PreviewSubject(kind=kind, id=id_), preview_seq=seq,
                operation=draw(st.sampled_from(["append", "replace", "latest_value", "patch"])),
                data=draw(st.text(max_size=5)), fate=draw(st.sampled_from([None, None, None, "abandoned"])),
            )
            for seq in draw(st.lists(st.integers(1, 8), max_size=10))
        ]  # fmt: skip
        if draw(st.booleans()):
            made.append(PreviewGap(preview_id=f"pvw_{number}", from_=1, to=3, dropped=3, reason="dropped"))
    return draw(st.permutations(made))


@given(runs(), fragments(), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_p7_previews_in_any_order_leave_the_state_as_the_facts_alone_make_it(story: Story, shown, chance) -> None:
    plain = reducer.initial_state("acme", "run_1")
    for fact in story.facts:
        reducer.reduce(plain, fact)
    state = RunState("run_1", "acme")
    positions = sorted(chance.randrange(len(story.facts) + 1) for _ in shown)
    pairs = list(zip(positions, shown, strict=True))
    for index, fact in enumerate(story.facts):
        for at, fragment in pairs:
            if at == index:
                state.apply(fragment)
        if events.is_known(fact.type) or not events.must_understand(fact.type):
            state.apply(fact)
        else:
            reducer.reduce(state.data, fact)
    for at, fragment in pairs:
        if at == len(story.facts):
            state.apply(fragment)
    assert state.checksum() == reducer.checksum(plain)


@given(st.lists(st.integers(1, 30), unique=True, min_size=1, max_size=30).map(sorted))
def test_p7_each_fragment_that_is_missing_is_counted_and_nothing_is_joined_across_the_hole(kept: list[int]) -> None:
    state = RunState("run_1", "acme")
    for seq in kept:
        state.apply(
            Preview(preview_id="p", subject=PreviewSubject(kind="message", id="m"), preview_seq=seq, data=f"<{seq}>")
        )
    (entry,) = state.overlay.entries()
    missing = kept[-1] - len(kept)
    assert entry.lost_fragments == state.overlay.lost_fragments == missing
    assert entry.incomplete == (missing > 0)
    unbroken = [seq for seq in kept if set(range(seq, kept[-1] + 1)) <= set(kept)]
    assert entry.data == "".join(f"<{seq}>" for seq in unbroken)
