"""The table status × command of the README, made by asking the machine. `python -m` prints it."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import Raw

from runlane.run_supervisor import machine
from runlane.run_supervisor.re_execution import Parent
from runlane_contracts import commands, events
from runlane_contracts.codec import timestamp
from runlane_contracts.commands import Command
from runlane_contracts.envelope import Actor, Fact
from runlane_contracts.lifecycle import Refused, RunLifecycle, draft, place

NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)

SAMPLES: Final[tuple[commands.CommandPayload, ...]] = (
    commands.StartRun(agent="a"),
    commands.CancelRun(),
    commands.PauseRun(),
    commands.ResumeRun(),
    commands.ResolveApproval(approval_id="a1", decision="approved"),
    commands.RevokeApproval(approval_id="a1", reason="r"),
    commands.RetryTool(tool_call_id="failed"),
    commands.ReconcileTool(tool_call_id="unknown", outcome="executed", note="n"),
    commands.ProvideInput(input_id="i1", value=1),
    commands.SendMessage(content="c"),
    commands.ReExecuteRun(parent_run_id="old"),
)
"""One command of each type, that applies to the items of the sample run."""

_ITEMS: Final[tuple[events.Payload, ...]] = (
    events.ApprovalRequested(approval_id="a1", description="d", risk="low", version=1, action_digest="d"),
    events.InputRequested(input_id="i1", prompt="p"),
    events.ToolRequested(tool_call_id="failed", name="t", arguments={}),
    events.ToolFailed(tool_call_id="failed", error=events.Problem(code="timeout", retryable=True)),
    events.ToolRequested(tool_call_id="unknown", name="t", arguments={}, side_effect="unsafe"),
    events.ToolOutcomeUnknown(tool_call_id="unknown", operation_id="o"),
)

_CREATED: Final = (events.RunCreated(agent="a"),)
_OWNED: Final = (*_CREATED, events.RunLeased(lease_epoch=1, worker_id="w"))
_RUNNING: Final = (*_OWNED, events.RunStarted(), *_ITEMS)
_CANCELLING: Final = (*_RUNNING, events.RunCancelRequested(deadline_at=timestamp(NOW)))

STATES: Final[dict[str, tuple[events.Payload, ...]]] = {
    "no run": (),
    "created": (*_CREATED, *_ITEMS),
    "created, owned": (*_OWNED, *_ITEMS),
    "running": _RUNNING,
    "waiting": (*_RUNNING, events.RunWaiting()),
    "paused": (*_RUNNING, events.RunPaused()),
    "cancelling": _CANCELLING,
    "lost while running": (*_RUNNING, events.RunLeaseLost(lease_epoch=1)),
    "lost while paused": (*_RUNNING, events.RunPaused(), events.RunLeaseLost(lease_epoch=1)),
    "completed": (*_RUNNING, events.RunCompleted()),
    "failed": (*_RUNNING, events.RunFailed(error=events.Problem(code="c"))),
    "cancelled": (*_RUNNING, events.RunCancelled()),
}


def run_in(state: str) -> RunLifecycle:
    """A run in one of `STATES`."""
    run = RunLifecycle(tenant_id="t", run_id="r")
    for payload in STATES[state]:
        run.evolve(_placed(run, payload))
    return run


def _placed(run: RunLifecycle, payload: events.Payload) -> Sequence[Fact]:
    return place(
        run,
        [draft(payload)],
        lease_epoch=run.lease_epoch,
        actor=Actor(kind="agent", id="a"),
        occurred_at=timestamp(NOW),
        event_ids=[f"evt_{run.sequence + 1}"],
    )


def cell(state: str, payload: commands.CommandPayload) -> tuple[str, ...]:
    """The types of the facts that a command leads to, or its rejection code. Nothing: it is so already."""
    command = Command(
        command_id="cmd_1",
        idempotency_key="k",
        type=payload.TYPE,
        tenant_id="t",
        run_id="r",
        issued_at=timestamp(NOW),
        issued_by=Actor(kind="user", id="u"),
        payload=Raw(msgspec.json.encode(payload)),
    )
    try:
        decided = machine.decide(run_in(state), command, now=NOW, parent=Parent(run=run_in("completed")))
        return tuple(one.type for one in decided)
    except Refused as exc:
        return (exc.code.value,)


def markdown() -> str:
    """The whole table."""
    rows = ["| | " + " | ".join(STATES) + " |", "|---" * (len(STATES) + 1) + "|"]
    for payload in SAMPLES:
        cells = (" + ".join(_briefly(cell(state, payload))) or "(so already)" for state in STATES)
        rows.append(f"| `{payload.TYPE}` | " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def _briefly(types: tuple[str, ...]) -> list[str]:
    """Several facts that close items are told in one word."""
    if len(types) < 3:
        return [f"`{one}`" for one in types]
    return ["closes items", f"`{types[-1]}`"]


if __name__ == "__main__":
    print(markdown(), end="")  # noqa: T201  its purpose
