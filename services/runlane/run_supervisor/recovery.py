"""What becomes of a run that nobody drives: pure.

A run of a pool is handed out again, after a while that grows with each attempt, until it has lost as many owners
as its limits allow. What it did before stands in its log; who takes it goes on from there, and runs no unsafe call
again of which the log has the intent. So what it may have done does not keep it from being handed out.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

from runlane.run_supervisor.machine import SYSTEM, effective_status, limits_of
from runlane_contracts import events
from runlane_contracts.lifecycle import FactDraft, RunLifecycle, closers, draft
from runlane_contracts.subjects import RunAddress

FIRST_WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class HandOut:
    """Let it wait for a worker, as this attempt."""

    pool: str
    attempt: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """It lost too many owners: these facts end it."""

    drafts: tuple[FactDraft, ...]


@dataclass(frozen=True, slots=True)
class Hold:
    """It waits for a person: hand it out when that person has spoken."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Nothing to do: it is driven, over, or not handed out by us."""


Recovery: TypeAlias = HandOut | GiveUp | Hold | Leave


def recover(run: RunLifecycle) -> Recovery:
    """What to do with a run now."""
    if not run.exists or run.is_terminal or run.owner is not None:
        return Leave()
    if run.created is None or run.created.dispatch != "pool":
        return Leave()
    if _waits_for_a_person(run):
        return Hold()
    if run.losses >= limits_of(run).max_attempts:
        return GiveUp(tuple(_exhausted(run)))
    return HandOut(run.created.pool, run.attempt + 1)


def wait_s(lease_epoch: int) -> float:
    """How long a run rests before it is handed out again, after it lost the owner of that epoch."""
    return min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(max(0, lease_epoch - 1), 10))


def work_id(run: RunAddress, attempt: int) -> str:
    """The message id of an attempt: handing it out twice is recognised."""
    return f"work/{run.tenant_id}/{run.run_id}/{attempt}"


def _waits_for_a_person(run: RunLifecycle) -> bool:
    match effective_status(run):
        case "paused":
            return True
        case "waiting":
            approvals = any(one.resolution is None for one in run.approvals.values())
            return approvals or any(one.answer is None and one.cancelled is None for one in run.inputs.values())
        case _:
            return False


def _exhausted(run: RunLifecycle) -> list[FactDraft]:
    failed = events.RunFailed(
        error=events.Problem(code="attempts_exhausted", message=f"{run.losses} workers lost the run")
    )
    return [*closers(run, failed.TYPE), draft(failed, actor=SYSTEM)]
