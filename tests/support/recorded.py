"""Runs of real agents: recorded event streams, mapped and written as a lease holder writes them."""

from pathlib import Path

from runlane.adapters.mapping import Decided, Fragment
from runlane.adapters.recordings import mapping_for, statements
from runlane_contracts import events, lifecycle
from runlane_contracts.envelope import Fact
from support.runs import Story, recordings

RECORDINGS = Path(__file__).parents[1] / "fixtures" / "recordings"


def recorded_runs() -> dict[str, list[Fact]]:
    """The facts of every recording, by name."""
    mapped = {path.stem: _facts(path) for path in sorted(RECORDINGS.glob("*.jsonl")) if ".facts" not in path.name}
    return mapped | dict(recordings())


def _facts(path: Path) -> list[Fact]:
    story = Story(session_id="ses_1").then(
        events.RunCreated(agent=path.stem, input={"recording": path.name}),
        events.RunLeased(lease_epoch=1, worker_id="w1"),
    )
    for said in statements(path, mapping_for(path)):
        for one in said:
            match one:
                case Fragment():
                    continue
                case Decided():
                    asked = story.run.approvals[one.approval_id].request
                    story.then(
                        events.ApprovalResolved(
                            approval_id=one.approval_id, decision=one.decision, decided_by="user:u1",
                            version=asked.version,
                        )
                    )  # fmt: skip
                case _:
                    story.drafts(*lifecycle.admit(story.run, [one], lease_epoch=1))
    return story.facts
