"""Runs as lists of facts: told by hand, recorded, or made up by hypothesis."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import strategies as st

from runlane_contracts import events, lifecycle
from runlane_contracts.codec import decode_fact
from runlane_contracts.envelope import ERASURE_RULE, Actor, Commit, Fact, ItemRef, Redaction
from runlane_contracts.lifecycle import FactDraft, RunLifecycle

RECORDINGS = Path(__file__).parent.parent / "fixtures" / "recordings"


def at(second: int) -> str:
    """A moment, `second` seconds into the test's day."""
    return f"2026-03-01T{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}.000000Z"


class Story:
    """One run told fact by fact; each gets its place as a writer would give it."""

    def __init__(self, tenant_id: str = "acme", run_id: str = "run_1", session_id: str | None = None) -> None:
        self.run = RunLifecycle(tenant_id=tenant_id, run_id=run_id, session_id=session_id)
        self.facts: list[Fact] = []

    def then(self, *payloads: events.Payload, **envelope: Any) -> "Story":
        """Facts of known types."""
        return self.drafts(*(lifecycle.draft(payload, **envelope) for payload in payloads))

    def raw(self, type_: str, payload: bytes = b"{}", **envelope: Any) -> "Story":
        """A fact of any type, with any payload."""
        return self.drafts(FactDraft(type=type_, payload=msgspec.Raw(payload), **envelope))

    def erased(self, *sequences: int) -> "Story":
        """The facts of these sequences as an erasure leaves them."""
        mark = Redaction(path="", rule=ERASURE_RULE, action="removed", sha256="0" * 64)
        for sequence in sequences:
            self.facts[sequence - 1] = msgspec.structs.replace(
                self.facts[sequence - 1], payload=msgspec.Raw(b"{}"), redactions=(mark,)
            )
        return self

    def drafts(self, *drafts: FactDraft) -> "Story":
        """Facts as a producer states them."""
        for one in drafts:
            sequence = len(self.facts) + 1
            self.facts.append(self._placed(one, sequence))
            self.run.evolve(self.facts[-1:])
        return self

    def _placed(self, one: FactDraft, sequence: int) -> Fact:
        item = None
        if events.is_known(one.type):
            try:
                payload = events.decode_payload(one.type, one.payload)
            except msgspec.MsgspecError:
                payload = None
            item = None if payload is None else events.item_of(one.type, payload)  # type: ignore[arg-type]
        return _fact(self.run, one, sequence, item)

    def commits(self, size: int = 3) -> list[Commit]:
        """The facts, `size` a commit."""
        return commits_of(self.facts, size)


def _fact(run: RunLifecycle, one: FactDraft, sequence: int, item: tuple[str, str] | None) -> Fact:
    return Fact(
        event_id=one.event_id or f"evt_{run.run_id}_{sequence}",
        type=one.type,
        schema_version=one.schema_version,
        tenant_id=run.tenant_id,
        run_id=run.run_id,
        session_id=one.session_id or run.session_id,
        sequence=sequence,
        lease_epoch=run.lease_epoch,
        actor=one.actor or Actor(kind="agent", id="a1"),
        occurred_at=one.occurred_at or at(sequence),
        recorded_at=at(sequence),
        classification=one.classification,
        payload=one.payload,
        subject=None if item is None else ItemRef(kind=item[0], id=item[1]),
        turn_id=one.turn_id,
        task_id=one.task_id,
        parent_id=one.parent_id,
        causation_ids=one.causation_ids,
        traceparent=one.traceparent,
    )


def commits_of(facts: Sequence[Fact], size: int) -> list[Commit]:
    """Consecutive facts of one run, `size` a commit."""
    return [
        Commit(
            commit_id=f"cmt_{facts[start].run_id}_{facts[start].sequence}",
            tenant_id=facts[start].tenant_id,
            run_id=facts[start].run_id,
            first_sequence=facts[start].sequence,
            facts=tuple(facts[start : start + size]),
        )
        for start in range(0, len(facts), size)
    ]


def a_short_run(run_id: str = "run_1", tenant_id: str = "acme") -> Story:
    """What a small agent does: says something, calls a tool, answers."""
    return Story(tenant_id, run_id).then(
        events.RunCreated(agent="acceptance", input={"text": "hello", "weight": 1.0}),
        events.RunLeased(lease_epoch=1, worker_id="w1"),
        events.RunStarted(),
        events.TurnStarted(turn_id="t1"),
        events.MessageCompleted(message_id="m1", role="user", content="What is in the basket?"),
        events.ReasoningCompleted(reasoning_id="r1", summary="look it up"),
        events.ToolRequested(tool_call_id="c1", name="list_items", arguments={"basket": 7}, action_digest="d1"),
        events.ToolRunning(tool_call_id="c1"),
        events.ToolCompleted(tool_call_id="c1", result={"items": ["apple", "pear"]}),
        events.MessageCompleted(message_id="m2", role="assistant", content="An apple and a pear."),
        events.TurnCompleted(turn_id="t1", usage={"input_tokens": 12, "output_tokens": 9}),
        events.RunCompleted(output={"text": "An apple and a pear."}, usage={"total_tokens": 21}),
    )


def a_waiting_run(run_id: str = "run_2", tenant_id: str = "acme", approval_id: str = "a1") -> Story:
    """A run that waits for a decision."""
    return Story(tenant_id, run_id).then(
        events.RunCreated(agent="payer", input={"amount": 12.5}),
        events.RunLeased(lease_epoch=1, worker_id="w1"),
        events.RunStarted(),
        events.ToolRequested(tool_call_id="c1", name="pay", arguments={"amount": 12.5}, side_effect="unsafe"),
        events.ApprovalRequested(
            approval_id=approval_id,
            tool_call_id="c1",
            description="Pay 12.50",
            risk="high",
            version=1,
            action_digest="d1",
        ),
        events.RunWaiting(on=(events.WaitingFor(kind="approval", id=approval_id),)),
    )


def recordings() -> Iterator[tuple[str, list[Fact]]]:
    """Every recorded run, by name: `tests/fixtures/recordings/*.facts.jsonl`, one fact a line."""
    for path in sorted(RECORDINGS.glob("*.facts.jsonl")):
        yield path.name.removesuffix(".facts.jsonl"), [decode_fact(line) for line in path.read_bytes().splitlines()]


# --- made up ----------------------------------------------------------------------------------------------

_ids = st.sampled_from(["x1", "x2", "x3"])
_text = st.text(max_size=12)
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=6,
)
_problem = st.builds(events.Problem, code=st.just("boom"), message=_text, retryable=st.booleans())

payloads: st.SearchStrategy[events.Payload] = st.one_of(
    st.builds(events.SessionStarted, title=_text),
    st.builds(events.RunLeased, lease_epoch=st.integers(1, 4), worker_id=_ids, attempt=st.integers(1, 3)),
    st.builds(events.RunLeaseLost, lease_epoch=st.integers(1, 4)),
    st.builds(events.RunStarted),
    st.builds(
        events.RunWaiting, on=st.tuples(st.builds(events.WaitingFor, kind=st.just("approval"), id=_ids))
    ),
    st.builds(events.RunResumed),
    st.builds(events.RunPauseRequested),
    st.builds(events.RunPaused),
    st.builds(events.RunCancelRequested, deadline_at=st.just(at(9)), reason=st.none() | _text),
    st.builds(events.TurnStarted, turn_id=_ids),
    st.builds(events.TurnCompleted, turn_id=_ids, usage=st.none() | st.dictionaries(_text, _json, max_size=2)),
    st.builds(events.PlanUpdated, version=st.integers(1, 5), steps=_json),
    st.builds(events.MessageStarted, message_id=_ids, role=st.just("assistant")),
    st.builds(events.MessageCompleted, message_id=_ids, role=st.just("assistant"), content=_json),
    st.builds(events.MessageFailed, message_id=_ids, error=_problem),
    st.builds(events.ReasoningCompleted, reasoning_id=_ids, content=_json),
    st.builds(events.ToolRequested, tool_call_id=_ids, name=_text, arguments=_json),
    st.builds(events.ToolRunning, tool_call_id=_ids),
    st.builds(events.ToolCompleted, tool_call_id=_ids, result=_json),
    st.builds(events.ToolFailed, tool_call_id=_ids, error=_problem),
    st.builds(events.ToolOutcomeUnknown, tool_call_id=_ids, operation_id=_ids),
    st.builds(
        events.ToolReconciled, tool_call_id=_ids, outcome=st.sampled_from(["executed", "not_executed"]), by=_ids
    ),
    st.builds(
        events.ApprovalRequested,
        approval_id=_ids, description=_text, risk=_text, version=st.integers(1, 3), action_digest=_text, data=_json,
    ),
    st.builds(
        events.ApprovalResolved,
        approval_id=_ids, decided_by=_ids, version=st.just(1), data=_json,
        decision=st.sampled_from(["approved", "rejected", "modified", "expired", "revoked"]),
    ),
    st.builds(events.InputRequested, input_id=_ids, prompt=_text),
    st.builds(events.InputProvided, input_id=_ids, by=_ids, value=_json),
    st.builds(events.TaskCreated, task_id=_ids, title=_text, status=st.none() | _text),
    st.builds(events.TaskCompleted, task_id=_ids, result=_json),
    st.builds(events.ArtifactUpdated, artifact_id=_ids, name=_text, content=_json),
    st.builds(events.LogQuarantined, reason=_text),
)  # fmt: skip
"""Any fact but the first and the last of a run."""

_odd = st.builds(
    FactDraft,
    type=st.sampled_from(["tool.requested", "run.leased", "approval.resolved", "holo.projected", "log.odd", "run.odd"]),
    payload=st.builds(lambda value: msgspec.Raw(msgspec.json.encode(value)), _json),
)
"""Facts that no careful writer states: unknown types and payloads that do not fit."""


@st.composite
def runs(draw: st.DrawFn, *, odd: bool = True) -> Story:
    """A run of 1 to 30 facts, ended or not."""
    story = Story(session_id="ses_1").then(events.RunCreated(agent="a", input=draw(_json)))
    drafts = payloads.map(lifecycle.draft)
    story.drafts(*draw(st.lists(drafts | _odd if odd else drafts, max_size=28)))
    if draw(st.booleans()):
        story.then(draw(st.sampled_from([events.RunCompleted(output=1.5), events.RunCancelled(reason="enough")])))
    return story
