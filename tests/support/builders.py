"""Small facts and commits for tests of whatever carries them."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count

import msgspec

from runlane.kernel.clock import NewId, Now
from runlane_contracts import events
from runlane_contracts.classification import Classification
from runlane_contracts.cursor import Position
from runlane_contracts.envelope import Actor, Commit, Fact
from runlane_contracts.lifecycle import FactDraft, draft
from runlane_contracts.subjects import RunAddress

AGENT = Actor(kind="agent", id="builder")
SYSTEM = Actor(kind="system", id="runlane")
START = datetime(2026, 3, 1, tzinfo=UTC)


def a_run(run_id: str = "run_1", tenant_id: str = "acme") -> RunAddress:
    """The address of a run."""
    return RunAddress(tenant_id, run_id)


def a_fact(run: RunAddress, sequence: int, *, event_id: str | None = None, text: str = "") -> Fact:
    """A completed message at a sequence."""
    payload = events.MessageCompleted(
        message_id=f"msg_{sequence}", role="assistant", content=text or f"text {sequence}"
    )
    return Fact(
        event_id=event_id or f"evt_{run.run_id}_{sequence}",
        type=payload.TYPE,
        schema_version=1,
        tenant_id=run.tenant_id,
        run_id=run.run_id,
        sequence=sequence,
        lease_epoch=1,
        actor=AGENT,
        occurred_at="2026-03-01T00:00:00.000000Z",
        classification=Classification.INTERNAL,
        payload=msgspec.Raw(msgspec.json.encode(payload)),
    )


def a_commit(
    run: RunAddress, after: Position, size: int = 1, *, commit_id: str | None = None, text: str = ""
) -> Commit:
    """The next `size` facts of a run, as one commit."""
    first = after.sequence + 1
    return Commit(
        commit_id=commit_id or f"cmt_{run.tenant_id}_{run.run_id}_{first}",
        tenant_id=run.tenant_id,
        run_id=run.run_id,
        first_sequence=first,
        facts=tuple(a_fact(run, sequence, text=text) for sequence in range(first, first + size)),
    )


def created(agent: str = "tester") -> FactDraft:
    """What brings a run into being."""
    return draft(events.RunCreated(agent=agent))


def leased(lease_epoch: int = 1, worker_id: str = "worker-1") -> FactDraft:
    """What gives it an owner."""
    return draft(events.RunLeased(lease_epoch=lease_epoch, worker_id=worker_id))


def said(text: str, *, event_id: str | None = None) -> FactDraft:
    """A message, as a producer states it."""
    return draft(
        events.MessageCompleted(message_id=f"msg_{abs(hash(text))}", role="assistant", content=text), event_id=event_id
    )


def completed() -> FactDraft:
    """The end of a run."""
    return draft(events.RunCompleted())


def sequences(commits: Iterable[Commit]) -> list[int]:
    """The sequences of all facts."""
    return [fact.sequence for commit in commits for fact in commit.facts]


def event_ids(facts: Sequence[Fact]) -> list[str]:
    """The ids of facts."""
    return [fact.event_id for fact in facts]


def ticking(start: datetime = START) -> Now:
    """A clock that moves by a millisecond each time it is read."""
    ticks = count()
    return lambda: start + timedelta(milliseconds=next(ticks))


def numbered() -> NewId:
    """Ids that count up."""
    numbers = count(1)
    return lambda prefix: f"{prefix}_{next(numbers)}"
