"""Executing a run again: a new run from what an old one was given, or from where it last stood.

The old run is over and its record does not change any more, so whoever repeats the command comes to the same facts.
"""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct, field

from runlane_contracts import events
from runlane_contracts.checkpoint import CHECKPOINT_TYPE, checkpoint_artifact_id
from runlane_contracts.commands import ReExecuteRun
from runlane_contracts.envelope import Fact
from runlane_contracts.lifecycle import FactDraft, Refused, RunLifecycle, draft
from runlane_contracts.problems import Code

MAX_NAMED = 20


class Parent(Struct, kw_only=True):
    """What executing a run again needs to know of it."""

    run: RunLifecycle
    unsafe: dict[str, str] = field(default_factory=dict)
    """Unsafe calls that may have had their effect: id → name."""
    checkpoint: events.ArtifactCompleted | None = None
    gone: bool = False
    """Whether part of its record was taken out."""

    def take(self, facts: Iterable[Fact]) -> None:
        """Take in facts, in order."""
        for fact in facts:
            self.run.evolve((fact,))
            try:
                payload = events.decode_payload(fact.type, fact.payload)
            except msgspec.MsgspecError:
                continue
            self._take(payload)

    def _take(self, payload: events.Payload | events.UnknownPayload) -> None:
        match payload:
            case events.LogCompacted():
                self.gone = True
            case events.ArtifactCompleted(media_type=media_type) if media_type == CHECKPOINT_TYPE:
                self.checkpoint = payload
            case events.ToolReconciled(tool_call_id=id_, outcome="not_executed"):
                self.unsafe.pop(id_, None)
            case (
                events.ToolRunning(tool_call_id=id_)
                | events.ToolCompleted(tool_call_id=id_)
                | events.ToolFailed(tool_call_id=id_)
                | events.ToolOutcomeUnknown(tool_call_id=id_)
                | events.ToolReconciled(tool_call_id=id_)
            ):
                tool = self.run.tools.get(id_)
                if tool is not None and tool.request.side_effect == "unsafe":
                    self.unsafe[id_] = tool.request.name
            case _:
                pass


def re_executed(run: RunLifecycle, payload: ReExecuteRun, parent: Parent) -> list[FactDraft]:
    """The beginning of a run that executes another one again.

    Raises:
        Refused: that run does not exist, is not over, is not all there, has no checkpoint, or did what must not be
            done twice.
    """
    created = _may_be_executed_again(payload, parent)
    again = events.RunCreated(
        agent=created.agent,
        input=created.input,
        pool=payload.pool or created.pool,
        dispatch=payload.dispatch or created.dispatch,
        deadline_at=payload.deadline_at,
        limits=payload.limits or created.limits,
        parent_run_id=parent.run.run_id,
    )
    begun = [draft(again, session_id=payload.session_id or parent.run.session_id)]
    if payload.from_ == "checkpoint":
        begun.append(_checkpoint(run, parent))
    return begun


def _may_be_executed_again(payload: ReExecuteRun, parent: Parent) -> events.RunCreated:
    if not parent.run.exists and not parent.gone:
        raise Refused(Code.RUN_NOT_FOUND, "no such run to execute again")
    if parent.gone or parent.run.created is None:
        raise Refused(Code.INVALID_STATE, "part of the run's record was archived or erased; start a new run instead")
    if not parent.run.is_terminal:
        raise Refused(Code.INVALID_STATE, f"only a run that is over is executed again; it is {parent.run.status}")
    if parent.unsafe and not payload.allow_unsafe:
        names = ", ".join(sorted(set(parent.unsafe.values()))[:MAX_NAMED])
        detail = f"the run executed tools that may not be executed twice: {names}; `allow_unsafe` does it all the same"
        raise Refused(Code.UNSAFE_TOOLS, detail, recorded=_recorded(parent))
    return parent.run.created


def _recorded(parent: Parent) -> dict[str, Any]:
    calls = [{"tool_call_id": id_, "name": name} for id_, name in parent.unsafe.items()]
    return {"tool_calls": calls[:MAX_NAMED]}


def _checkpoint(run: RunLifecycle, parent: Parent) -> FactDraft:
    known = parent.checkpoint
    if known is None:
        raise Refused(Code.INVALID_STATE, "the run has no checkpoint")
    return draft(
        events.ArtifactCompleted(
            artifact_id=checkpoint_artifact_id(run.run_id),
            name="checkpoint",
            media_type=CHECKPOINT_TYPE,
            content=known.content,
            content_ref=known.content_ref,
        )
    )
