"""What a terminal shows of runs that were archived or erased."""

import pytest

from runlane.cli.timeline import fact_line, footer
from runlane.client.state import RunState
from runlane_contracts import events
from support.runs import a_short_run


def compacted(reason: str, *erased: str) -> events.LogCompacted:
    return events.LogCompacted(
        from_sequence=1, to_sequence=9, snapshot_ref="s", sha256="0", policy="because", status="completed",
        reason=reason, erased=erased,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fact", "said"),
    [
        (compacted("retention"), "archived: #1–#9 (because)"),
        (compacted("erasure", "*"), "erased: all content of #1–#9 (because)"),
        (compacted("erasure", "tool:c1", "approval:a1"), "erased: tool:c1, approval:a1 of #1–#9 (because)"),
    ],
)
def test_a_run_says_what_was_taken_out_of_it(fact: events.LogCompacted, said: str) -> None:
    story = a_short_run().then(fact)
    state = RunState("run_1")
    for one in story.facts:
        state.apply(one)
    assert said in [line.plain for line in footer(state)]
    assert fact_line(story.facts[-1], None).endswith("log.compacted  " + said)


def test_an_erased_fact_says_so() -> None:
    story = a_short_run().erased(2)
    assert fact_line(story.facts[1], None).endswith("  (erased)")
