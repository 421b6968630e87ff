"""When a run has to be looked at next: a small fold of its facts, pure.

It is kept in a bucket, so that a supervisor that starts knows every moment of every live run without reading the
log again. A run that waits for no moment has no entry: finished runs cost nothing.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec
from msgspec import Struct, field

from runlane.run_supervisor.answers import why_unanswerable
from runlane.run_supervisor.recovery import wait_s
from runlane_contracts import events
from runlane_contracts.codec import parse_timestamp, timestamp
from runlane_contracts.lifecycle import RunLifecycle

DEADLINE: Final = "deadline"
CANCEL: Final = "cancel"
RECOVER: Final = "recover"


class Moments(Struct, kw_only=True, omit_defaults=True):
    """What a run waits for: a name and a time each. `held`: it is handed out again once a person has spoken."""

    due: dict[str, str] = field(default_factory=dict)
    held: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether the run may be forgotten."""
        return not self.due and not self.held

    @property
    def next_at(self) -> datetime | None:
        """The earliest moment."""
        found = [parsed for text in self.due.values() if (parsed := _moment(text)) is not None]
        return min(found, default=None)

    def copy(self) -> "Moments":
        """One to try facts on."""
        return Moments(due=dict(self.due), held=self.held)


decode_moments = msgspec.json.Decoder(Moments).decode


def is_settled(run: RunLifecycle, name: str, moment: str) -> bool:
    """Whether nothing has to be done any more about a moment that came.

    False also where the run, as it was read, does not know of it: then it was read from behind.
    """
    if run.is_terminal:
        return True
    kind, _, id_ = name.partition(":")
    match kind:
        case "approval":
            approval = run.approvals.get(id_)
            return approval is not None and (approval.resolution is not None or approval.request.expires_at != moment)
        case "input":
            asked = run.inputs.get(id_)
            if asked is None:
                return False
            return asked.answer is not None or asked.cancelled is not None or asked.request.expires_at != moment
        case "recover":
            return run.owner is None
        case _:
            return False


def strike(moments: Moments, settled: Mapping[str, str]) -> None:
    """Take out what is settled, unless another moment stands there by now."""
    for name, moment in settled.items():
        if moments.due.get(name) == moment:
            del moments.due[name]


def hold(moments: Moments) -> None:
    """It is handed out once a person has spoken."""
    moments.held = True


def release(moments: Moments) -> None:
    """It waits for no person."""
    moments.held = False


def apply(moments: Moments, type_: str, payload: events.Payload, *, now: datetime) -> None:
    """Take in one fact of a type in `RELEVANT`."""
    due = moments.due
    match payload:
        case events.RunCreated():
            _set(due, DEADLINE, payload.deadline_at)
        case events.RunCancelRequested():
            _set(due, CANCEL, payload.deadline_at)
        case events.ApprovalRequested():
            _set(due, f"approval:{payload.approval_id}", payload.expires_at)
        case events.InputRequested():
            is_hopeless = payload.schema is not None and why_unanswerable(payload.schema) is not None
            _set(due, f"input:{payload.input_id}", timestamp(now) if is_hopeless else payload.expires_at)
        case events.ApprovalResolved():
            due.pop(f"approval:{payload.approval_id}", None)
        case events.InputProvided() | events.InputCancelled():
            due.pop(f"input:{payload.input_id}", None)
        case _:
            _apply_ownership(moments, type_, payload, now)
    if moments.held and type_ in SPEAKING:
        moments.held = False
        due[RECOVER] = timestamp(now)


def _apply_ownership(moments: Moments, type_: str, payload: events.Payload, now: datetime) -> None:
    match payload:
        case events.RunLeased():
            moments.due.pop(RECOVER, None)
            moments.held = False
        case events.RunLeaseLost():
            moments.due[RECOVER] = timestamp(now + timedelta(seconds=wait_s(payload.lease_epoch)))
        case _ if type_ in events.TERMINAL_RUN:
            moments.due.clear()
            moments.held = False
        case _:
            return


def _set(due: dict[str, str], name: str, moment: str | None) -> None:
    """A later fact of the same name replaces the earlier one, also by no moment at all."""
    if moment is None or _moment(moment) is None:
        due.pop(name, None)
    else:
        due[name] = moment


def _moment(text: str) -> datetime | None:
    try:
        return parse_timestamp(text)
    except ValueError:
        return None


SPEAKING: Final = frozenset({"approval.resolved", "input.provided", "input.cancelled", "run.resumed"})
"""After these a run that waited for a person may go on."""

RELEVANT: Final = SPEAKING | events.TERMINAL_RUN | {
    "run.created", "run.leased", "run.lease_lost", "run.cancel_requested", "approval.requested", "input.requested",
}  # fmt: skip
"""The types of facts that change the moments of a run."""
