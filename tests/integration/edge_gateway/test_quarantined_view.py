"""A run whose view cannot be folded says so, on each door; its facts stay readable, and other runs are as ever."""

from pathlib import Path

import pytest

from runlane.edge_gateway.run_state import RunStatus
from runlane.edge_gateway.view import ViewFact
from runlane_contracts import reducer
from runlane_contracts.codec import decode_json, encode
from runlane_contracts.envelope import Fact
from support.edge_server import edge_server
from support.runs import Story, a_short_run

BAD = 7
WHOLE = reducer.reduce


@pytest.fixture(autouse=True)
def broken(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A fold that fails on the seventh fact of run_1, half-way; `undo` mends it."""

    def fails(state: reducer.State, fact: Fact) -> str | None:
        if (fact.run_id, fact.sequence) == ("run_1", BAD):
            state["run"]["half"] = "done"
            raise ZeroDivisionError
        return WHOLE(state, fact)

    monkeypatch.setattr(reducer, "reduce", fails)
    return monkeypatch


def checksum_of(story: Story, through: int) -> str:
    state = reducer.initial_state("acme", "run_1")
    for fact in story.facts[:through]:
        WHOLE(state, fact)
    return reducer.checksum(state)


async def test_it_says_so_and_the_facts_stay_readable(tmp_path: Path) -> None:
    """To see it fail: use `reduce` where `RunStates` folds, or show what a part of a commit made."""
    story = a_short_run()
    async with edge_server(tmp_path) as edge:
        for commit in story.commits(4):  # the bad fact is in the second commit
            await edge.commit(commit.facts)
        view = (await edge.get("/v1/runs/run_1")).json()
        assert view["quarantined"] == {
            "sequence": BAD, "event_id": story.facts[BAD - 1].event_id, "type": "tool.requested", "reducer_version": 1
        }  # fmt: skip
        assert (view["through_sequence"], view["status"]) == (4, "completed")
        assert "half" not in view
        for refused in (
            await edge.get("/v1/runs/run_1/snapshot"),
            await edge.get("/v1/runs/run_1/snapshot", at_sequence=BAD),
            await edge.get("/v1/runs/run_1/watch"),
        ):
            assert (refused.status_code, refused.json()["code"]) == (500, "view_quarantined")
            assert refused.json()["snapshot"] == "/v1/runs/run_1/snapshot?at_sequence=4"
        for good in range(1, BAD):
            snapshot = (await edge.get("/v1/runs/run_1/snapshot", at_sequence=good)).json()
            assert snapshot["checksum"] == checksum_of(story, good)
        page = (await edge.get("/v1/runs/run_1/events")).json()
        assert page["events"] == [decode_json(encode(fact)) for fact in story.facts]
        async with edge.watch("run_1", from_="start") as watch:
            await watch.over()
        assert watch.sequences == [fact.sequence for fact in story.facts]
        assert (await edge.get("/v1/runs/run_1/timeline")).json()["through_sequence"] == len(story.facts)


async def test_others_are_as_ever_and_a_mended_fold_lifts_it(tmp_path: Path, broken: pytest.MonkeyPatch) -> None:
    async with edge_server(tmp_path) as edge:
        await edge.commit(a_short_run("run_1").facts)
        await edge.commit(a_short_run("run_2").facts)
        assert (await edge.get("/v1/runs/run_1")).json()["through_sequence"] == 0
        assert "quarantined" not in (await edge.get("/v1/runs/run_2")).json()
        assert (await edge.get("/v1/runs/run_2/snapshot")).status_code == 200
        broken.undo()
        assert "quarantined" not in (await edge.get("/v1/runs/run_1")).json()
        assert (await edge.get("/v1/runs/run_1/snapshot")).json()["checksum"] == checksum_of(a_short_run(), 12)


def failing_on_a_start(state: reducer.State, fact: Fact) -> str | None:
    return 1 // 0 if fact.type == "run.started" else WHOLE(state, fact)  # type: ignore[return-value]


def test_the_status_goes_on_over_what_cannot_be_folded(broken: pytest.MonkeyPatch) -> None:
    """To see it fail: let `Poison` out of `RunStatus.apply`."""
    broken.setattr(reducer, "reduce", failing_on_a_start)
    story = a_short_run()
    status = RunStatus(reducer.initial_state("acme", "run_1"))
    for fact in story.facts:
        status.apply(ViewFact(fact.sequence, fact.type, encode(fact)))
    assert (status.through, status.status) == (12, "completed")


async def test_who_follows_the_run_live_gets_every_fact(tmp_path: Path, broken: pytest.MonkeyPatch) -> None:
    broken.setattr(reducer, "reduce", failing_on_a_start)
    story = a_short_run()
    async with edge_server(tmp_path) as edge:
        await edge.commit(story.facts[:2])
        async with edge.watch("run_1", from_="start") as watch:
            await watch.until("synced")
            for fact in story.facts[2:]:
                await edge.commit([fact])
            await watch.over()
        assert watch.sequences == [fact.sequence for fact in story.facts]
        assert watch.frames[-1].data["reason"] == "run_terminal"
