"""Makes the golden fixtures: `PYTHONPATH=contracts:services:tests python -m support.golden [--replace]`.

What a release has frozen is never replaced: without `--replace` it only adds files that are not there.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from runlane.redaction_filter.signals import signal_body
from runlane_contracts import events, lifecycle, reducer
from runlane_contracts.classification import Classification
from runlane_contracts.codec import encode
from runlane_contracts.commands import (
    CancelRun,
    Command,
    CommandPayload,
    LedgerEntry,
    LedgerStatus,
    PauseRun,
    ProvideInput,
    ReconcileTool,
    ReExecuteRun,
    Rejection,
    ResolveApproval,
    ResumeRun,
    RetryTool,
    RevokeApproval,
    SendMessage,
    StartRun,
)
from runlane_contracts.cursor import REDUCER_VERSION, CursorKeys, Position, Scope, filter_hash
from runlane_contracts.envelope import ERASURE_RULE, Actor, Commit, Fact, ItemRef, Redaction
from runlane_contracts.previews import Coalesced, Preview, PreviewBatch, PreviewGap, PreviewSubject
from runlane_contracts.problems import Code, problem_document
from runlane_contracts.resume import End, EndReason, Hello, Mark, Outcome, ResetReason, SnapshotFrame, Synced
from support.runs import Story, a_short_run, a_waiting_run, at

DIRECTORY = Path(__file__).parents[2] / "contracts" / "fixtures" / "v1"

CURSOR_KEYS = CursorKeys(current="k2", keys={"k1": b"runlane-golden-key-one", "k2": b"runlane-golden-key-two"})
"""Of the fixtures only."""

ERROR = events.Problem(code="boom", message="It broke.", retryable=True)
REF = events.ContentRef(uri="content:abc", sha256="0" * 64, size=70_000, media_type="image/png")

PAYLOADS: tuple[events.Payload, ...] = (
    events.SessionStarted(title="Groceries"),
    events.RunCreated(
        agent="shopper", input={"text": "Buy apples", "budget": 12.5}, pool="fast", dispatch="external",
        deadline_at=at(900), limits=events.Limits(cancel_grace_s=5.0, max_attempts=2), parent_run_id="run_0",
    ),
    events.RunLeased(lease_epoch=1, worker_id="w1", attempt=2),
    events.RunStarted(),
    events.RunWaiting(on=(events.WaitingFor(kind="approval", id="a1"), events.WaitingFor(kind="input", id="i1"))),
    events.RunResumed(),
    events.RunPauseRequested(),
    events.RunPaused(),
    events.RunCancelRequested(deadline_at=at(60), reason="changed my mind"),
    events.RunLeaseLost(lease_epoch=1, cause="released"),
    events.RunCompleted(output={"text": "Done: 3 apples"}, usage={"total_tokens": 21}),
    events.RunFailed(error=ERROR),
    events.RunCancelled(reason="changed my mind"),
    events.TurnStarted(turn_id="t1"),
    events.TurnCompleted(turn_id="t1", usage={"input_tokens": 12}),
    events.PlanUpdated(version=2, steps=[{"title": "look", "done": True}, {"title": "pay"}]),
    events.MessageStarted(message_id="m1", role="assistant", model="gpt-5", provider="openai"),
    events.MessageCompleted(
        message_id="m1", role="assistant", content="Ünïcode \U0001f34e\u2028", preview_id="p1",
        model="gpt-5-2026-03-01", provider="openai",
    ),
    events.MessageFailed(message_id="m1", error=ERROR),
    events.MessageCancelled(message_id="m1", reason="run.cancelled"),
    events.ReasoningStarted(reasoning_id="r1", redacted=True),
    events.ReasoningCompleted(reasoning_id="r1", content="because", summary="short", preview_id="p2"),
    events.ReasoningFailed(reasoning_id="r1", error=ERROR),
    events.ReasoningCancelled(reasoning_id="r1", reason="run.cancelled"),
    events.ToolRequested(
        tool_call_id="c2", name="pay", arguments={"amount": 12.5, "to": "shop"}, attempt=2, retry_of="c1",
        action_digest="sha256:0", side_effect="unsafe", operation_id="op1",
    ),
    events.ToolRunning(tool_call_id="c2"),
    events.ToolCompleted(tool_call_id="c2", result={"ok": True}, content_ref=REF, preview_id="p3"),
    events.ToolFailed(tool_call_id="c2", error=ERROR),
    events.ToolCancelled(tool_call_id="c2", reason="run.cancelled"),
    events.ToolOutcomeUnknown(tool_call_id="c2", operation_id="op1"),
    events.ToolReconciled(
        tool_call_id="c2", outcome="executed", by="user:u1", note="on the statement", result={"apples": 3}
    ),
    events.ApprovalRequested(
        approval_id="a1", description="Pay 12.50", risk="high", version=3, action_digest="sha256:0", tool_call_id="c2",
        data={"amount": 12.5}, editable=True, expires_at=at(600), quorum=2, not_by=("user:u0",),
        reason_again="cheaper now",
    ),
    events.ApprovalVoted(
        approval_id="a1", decision="modified", by="user:u2", version=3, action_digest="sha256:1", data={"amount": 10},
        reason="cheaper",
    ),
    events.ApprovalResolved(
        approval_id="a1", decision="modified", decided_by="user:u1", version=3, data={"amount": 10}, reason="cheaper",
        action_digest="sha256:1", approved_by=("user:u2", "user:u1"),
    ),
    events.InputRequested(input_id="i1", prompt="Which apples?", schema={"type": "string"}, expires_at=at(600)),
    events.InputProvided(input_id="i1", by="user:u1", value="red", secret_value=None),
    events.InputProvided(input_id="i1", by="user:u1", secret_value="hunter2"),
    events.InputCancelled(input_id="i1", reason="run.cancelled"),
    events.TaskCreated(task_id="k1", title="Shop", description="Get apples", status="todo", detail={"n": 3}),
    events.TaskUpdated(task_id="k1", title="Shop", description="Get apples", status="doing", detail={"n": 2}),
    events.TaskCompleted(task_id="k1", title="Shop", description="x", status="done", detail=1, result={"n": 3}),
    events.TaskFailed(task_id="k1", title="Shop", description="x", status="failed", detail=1, error=ERROR),
    events.TaskCancelled(task_id="k1", title="Shop", description="x", status="off", detail=1, reason="run.cancelled"),
    events.ArtifactCreated(
        artifact_id="f1", name="list.txt", media_type="text/plain", content="apples", content_ref=REF
    ),
    events.ArtifactUpdated(
        artifact_id="f1", name="list.txt", media_type="text/plain", content="apples, pears", content_ref=REF
    ),
    events.ArtifactCompleted(
        artifact_id="f1", name="list.txt", media_type="text/plain", content="apples, pears", content_ref=REF
    ),
    events.ArtifactFailed(
        artifact_id="f1", name="list.txt", media_type="text/plain", content="a", content_ref=REF, error=ERROR
    ),
    events.LogQuarantined(reason="schema", event_id="evt_7"),
    events.LogCompacted(
        from_sequence=1, to_sequence=9, snapshot_ref="snapshot:1", sha256="0" * 64, policy="30d", reason="erasure"
    ),
)  # fmt: skip


def _compacted(reason: Literal["retention", "erasure"], *erased: str) -> events.LogCompacted:
    return events.LogCompacted(
        from_sequence=1, to_sequence=9, snapshot_ref="/v1/runs/run_1/snapshot?at_sequence=9", sha256="0" * 64,
        policy="default=30d", reason=reason, status="completed", erased=erased,
    )  # fmt: skip


def facts() -> list[Fact]:
    """One fact of every type, all optional fields set, and one with none."""
    full = [_fact(sequence, payload) for sequence, payload in enumerate(PAYLOADS, 1)]
    bare = Fact(
        event_id="evt_bare", type="run.started", schema_version=1, tenant_id="acme", run_id="run_1",
        sequence=len(full) + 1, lease_epoch=0, actor=Actor(kind="system", id="runlane"), occurred_at=at(1),
        classification=Classification.INTERNAL, payload=msgspec.Raw(b"{}"),
    )  # fmt: skip
    unknown = msgspec.structs.replace(
        full[0], event_id="evt_unknown", type="holo.projected", sequence=len(full) + 2,
        payload=msgspec.Raw(b'{"future":[1,2.0,null]}'),
    )  # fmt: skip
    archived = events.LogCompacted(
        from_sequence=1, to_sequence=len(full) + 2, snapshot_ref="/v1/runs/run_1/snapshot?at_sequence=9",
        sha256="0" * 64, policy="asked to", reason="erasure", status="completed", erased=("tool:c1", "approval:a1"),
    )  # fmt: skip
    proof = Redaction(path="", rule=ERASURE_RULE, action="removed", sha256="0" * 64)
    compacted = msgspec.structs.replace(_fact(len(full) + 3, archived), redactions=(proof,))
    return [*full, bare, unknown, compacted]


def _fact(sequence: int, payload: events.Payload) -> Fact:
    item = events.item_of(payload.TYPE, payload)
    return Fact(
        event_id=f"evt_{sequence}", type=payload.TYPE, schema_version=1, tenant_id="acme", run_id="run_1",
        sequence=sequence, lease_epoch=2, actor=Actor(kind="agent", id="shopper"), occurred_at=at(sequence),
        classification=Classification.CONFIDENTIAL, payload=msgspec.Raw(encode(payload)), session_id="ses_1",
        subject=None if item is None else ItemRef(kind=item[0], id=item[1], revision=sequence), agent_id="shopper",
        task_id="k1", turn_id="t1", parent_id="m0", correlation_id="run_1", causation_ids=("cmd_1", "evt_0"),
        recorded_at=at(sequence + 1), traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        redactions=(
            Redaction(path="/content", rule="card_number", action="masked"),
            Redaction(path="/data", rule="secret", action="vaulted", content_ref="content:abc"),
        ),
    )  # fmt: skip


COMMAND_PAYLOADS: tuple[CommandPayload, ...] = (
    StartRun(
        agent="shopper", input={"text": "x"}, pool="fast", dispatch="external", deadline_at=at(900),
        limits=events.Limits(cancel_grace_s=5.0, max_attempts=2), parent_run_id="run_0",
    ),
    CancelRun(reason="enough"),
    PauseRun(),
    ResumeRun(),
    ResolveApproval(
        approval_id="a1", decision="modified", data={"amount": 10}, expected_version=3, action_digest="sha256:0",
        reason="cheaper",
    ),
    RevokeApproval(approval_id="a1", reason="no longer needed"),
    RetryTool(tool_call_id="c1"),
    ReconcileTool(tool_call_id="c1", outcome="executed", note="on the statement", result={"receipt": "r-7"}),
    ProvideInput(input_id="i1", value={"color": "red"}),
    SendMessage(content="hurry"),
    ReExecuteRun(
        parent_run_id="run_0", from_="checkpoint", allow_unsafe=True, session_id="ses_1", pool="fast",
        dispatch="external", deadline_at=at(900), limits=events.Limits(cancel_grace_s=5.0, max_attempts=2),
    ),
)  # fmt: skip


def commands() -> list[Command]:
    """One command of every type."""
    return [
        Command(
            command_id=f"cmd_{n}", idempotency_key=f"key-{n}", type=payload.TYPE, tenant_id="acme", run_id="run_1",
            issued_at=at(n), issued_by=Actor(kind="user", id="u1"), payload=msgspec.Raw(encode(payload)),
            session_id="ses_1", meta={"from": "console"}, traceparent="00-0af7-b7ad-01",
        )
        for n, payload in enumerate(COMMAND_PAYLOADS, 1)
    ]  # fmt: skip


def ledger_entries() -> list[LedgerEntry]:
    """One entry of every status."""

    def entry(status: LedgerStatus, **more: object) -> LedgerEntry:
        return LedgerEntry(
            command_id="cmd_1", idempotency_key="key-1", type="approval.resolve", tenant_id="acme", run_id="run_1",
            fingerprint="sha256:0", status=status, accepted_at=at(1), **more,
        )  # type: ignore[arg-type]  # fmt: skip

    rejection = Rejection(code=Code.ALREADY_RESOLVED, detail="decided", recorded={"decision": "rejected"})
    return [
        entry(LedgerStatus.ACCEPTED),
        entry(LedgerStatus.APPLIED, settled_at=at(2), applied_sequence=9, log_stream_seq=77),
        entry(LedgerStatus.REJECTED, settled_at=at(2), rejection=rejection),
        entry(LedgerStatus.EXPIRED, settled_at=at(3)),
    ]


def previews() -> list[Preview]:
    """Every operation, a fate, a merged one."""
    subject = PreviewSubject(kind="message", id="m1")
    return [
        Preview(preview_id="p1", subject=subject, preview_seq=1, data="An ap", tenant_id="acme", run_id="run_1",
                lease_epoch=2, offset=0, encoding="text"),
        Preview(preview_id="p1", subject=subject, preview_seq=4, data="ple and",
                coalesced=Coalesced(first_seq=2, last_seq=4, source_count=3, truncated=True)),
        Preview(preview_id="p1", subject=subject, preview_seq=5, operation="replace", data="A pear", base_revision=1),
        Preview(preview_id="p1", subject=subject, preview_seq=6, operation="patch", data=[{"op": "add"}]),
        Preview(preview_id="p2", subject=subject, preview_seq=1, operation="latest_value", data={"percent": 40}),
        Preview(preview_id="p1", subject=subject, preview_seq=7, fate="abandoned"),
    ]  # fmt: skip


def frames() -> Iterable[tuple[str, msgspec.Struct]]:
    """Every frame of a watch; every outcome, reset reason and end reason."""
    baseline, high_water = Mark(sequence=4, cursor="c1.x.y"), Mark(sequence=12, cursor="c1.z.y")

    def hello(outcome: Outcome, reason: ResetReason | None = None) -> Hello:
        return Hello(
            outcome=outcome, run_id="run_1", status="running", baseline=baseline, high_water=high_water,
            reducer_version=REDUCER_VERSION, heartbeat_s=12.0, filter={"types": ["run.started"], "previews": True},
            reason=reason,
        )  # fmt: skip

    for outcome in Outcome:
        if outcome is not Outcome.RESET_REQUIRED:
            yield "hello", hello(outcome)
    for reason in ResetReason:
        yield "hello", hello(Outcome.RESET_REQUIRED, reason)
    state = reducer.initial_state("acme", "run_1")
    yield "snapshot", SnapshotFrame(
        state=state, through_sequence=0, reducer_version=REDUCER_VERSION, checksum=reducer.checksum(state),
        cursor="c1.x.y",
    )  # fmt: skip
    yield "synced", Synced(sequence=12)
    yield "preview_gap", PreviewGap(preview_id="p1", from_=3, to=9, dropped=7, reason="slow_reader")
    for end in EndReason:
        yield "end", End(reason=end, cursor="c1.x.y", retry_after_ms=1500)


def problems() -> list[bytes]:
    """Every code, and the extra fields once."""
    plain = [encode(problem_document(code, "Details.")) for code in Code]
    full = problem_document(
        Code.ALREADY_RESOLVED, "Details.", index=3, current_sequence=9, recorded={"decision": "approved"},
        snapshot="/v1/runs/run_1/snapshot", retry_after_s=1.5,
    )  # fmt: skip
    return [*plain, encode(full)]


def cursors() -> bytes:
    """Positions, their scopes and their texts under a key of the fixtures."""
    cases = [
        (Position("7jq3x2ab", 4711, 12), Scope("acme", "run_1")),
        (Position("7jq3x2ab", 1, 1), Scope("acme", "run_1", "ops", filter_hash(("run.started", "tool.failed")))),
        (Position("", 0, 0), Scope("a", "R" * 64)),
        (Position("zzzzzzzz", 2**53, 2**53), Scope("t" * 32, "r" * 64, "ui", "ffffffff")),
    ]
    old = CursorKeys(current="k1", keys=CURSOR_KEYS.keys)
    sealed = [(keys.current, *case, keys.seal(*case)) for case in cases for keys in (CURSOR_KEYS, old)]
    return _pretty({
        "keys": {name: key.hex() for name, key in CURSOR_KEYS.keys.items()},
        "cursors": [
            {
                "key_id": key_id,
                "position": {name: getattr(position, name) for name in Position.__struct_fields__},
                "scope": {name: getattr(scope, name) for name in Scope.__struct_fields__},
                "text": text,
            }
            for key_id, position, scope, text in sealed
        ],
    })  # fmt: skip


# --- reducer corpus ---------------------------------------------------------------------------------------


def corpus() -> dict[str, Story]:
    """Runs whose fold every implementation of the reducer must agree on, at every sequence."""
    failed = events.Problem(code="boom", message="It broke.")

    def ask_two(version: int) -> events.ApprovalRequested:
        return events.ApprovalRequested(
            approval_id="a1", description="Pay", risk="high", version=version, action_digest="d", quorum=2
        )

    begun = (
        events.RunCreated(agent="a", input={"text": "x"}),
        events.RunLeased(lease_epoch=1, worker_id="w1"),
        events.RunStarted(),
    )
    lost_waiting = a_waiting_run("run_1").then(
        events.RunLeaseLost(lease_epoch=1),
        events.ApprovalResolved(approval_id="a1", decision="approved", decided_by="user:u1", version=1),
        events.RunLeased(lease_epoch=2, worker_id="w2", attempt=2),
        events.RunLeaseLost(lease_epoch=1),
        events.RunLeaseLost(lease_epoch=2),
        events.RunLeaseLost(lease_epoch=2),
        events.RunResumed(),
        events.RunLeased(lease_epoch=3, worker_id="w3", attempt=3),
        events.RunCompleted(),
    )
    return {
        "a_short_run": a_short_run(),
        "every_type": Story(session_id="ses_1").then(*PAYLOADS, turn_id="t1", task_id="k1", parent_id="m0"),
        "lost_while_waiting": lost_waiting,
        "a_revised_question": Story().then(
            *begun,
            ask_two(1),
            events.ApprovalVoted(approval_id="a1", decision="approved", by="u1", version=1, action_digest="d"),
            events.ApprovalResolved(
                approval_id="a1",
                decision="revoked",
                decided_by="system",
                version=1,
                reason="the question was revised",
                action_digest="d",
            ),
            ask_two(2),
            events.ApprovalResolved(
                approval_id="a1", decision="approved", decided_by="u2", version=2, approved_by=("u1", "u2")
            ),
        ),
        "cancelled": Story().then(
            *begun,
            events.ToolRequested(tool_call_id="c1", name="pay", arguments={}),
            events.RunCancelRequested(deadline_at=at(60), reason="enough"),
            events.ToolCancelled(tool_call_id="c1", reason="run.cancelled"),
            events.RunCancelled(reason="enough"),
        ),
        "cancel_of_a_lost_run": Story().then(
            *begun,
            events.RunLeaseLost(lease_epoch=1),
            events.RunCancelRequested(deadline_at=at(60)),
            events.RunLeaseLost(lease_epoch=1),
            events.RunCancelled(),
        ),
        "failed_and_nothing_after": Story().then(
            *begun,
            events.RunFailed(error=failed),
            events.RunLeased(lease_epoch=2, worker_id="w2"),
            events.RunStarted(),
            events.RunCompleted(output="late"),
            events.LogQuarantined(reason="late"),
        ),
        "outcome_unknown": Story().then(
            *begun,
            events.ToolRequested(tool_call_id="c1", name="pay", arguments={}, side_effect="unsafe"),
            events.ToolRunning(tool_call_id="c1"),
            events.ToolOutcomeUnknown(tool_call_id="c1", operation_id="op1"),
            events.ToolReconciled(tool_call_id="c1", outcome="not_executed", by="user:u1"),
            events.ToolRequested(tool_call_id="c2", name="pay", arguments={}, retry_of="c1", attempt=2),
            events.ToolOutcomeUnknown(tool_call_id="c2", operation_id="op1"),
            events.ToolReconciled(tool_call_id="c2", outcome="executed", by="w2", result={"receipt": 7}),
            events.ToolRequested(tool_call_id="c3", name="pay", arguments={}, side_effect="unsafe"),
            events.ToolFailed(tool_call_id="c3", error=failed),
        ),
        "two_people_approve": Story()
        .then(
            *begun,
            events.ApprovalVoted(approval_id="a1", decision="approved", by="u0", version=1, action_digest="d"),
            ask_two(1),
            events.ApprovalVoted(approval_id="a1", decision="approved", by="u1", version=1, action_digest="d"),
            ask_two(2),
            events.ApprovalVoted(approval_id="a1", decision="approved", by="u1", version=2, action_digest="d"),
            events.ApprovalVoted(
                approval_id="a1", decision="modified", by="u2", version=2, action_digest="e", data={"x": 1}
            ),
        )
        .raw("approval.voted", b'{"approval_id":"a1","by":7,"decision":"approved"}')
        .raw("approval.voted", b'{"approval_id":"__proto__","by":"u1","decision":"approved"}')
        .raw("approval.requested", b'{"approval_id":"a2","votes":7}')
        .raw("approval.voted", b'{"approval_id":"a2","by":"u1","decision":"approved"}')
        .then(
            events.ApprovalResolved(
                approval_id="a1", decision="approved", decided_by="u3", version=2, approved_by=("u1", "u3")
            ),
            events.ApprovalVoted(approval_id="a1", decision="approved", by="u4", version=2, action_digest="d"),
        ),
        "paused_and_resumed": Story().then(
            *begun, events.RunPauseRequested(), events.RunPaused(), events.RunResumed(), events.RunWaiting()
        ),
        "items_open_again": Story().then(
            *begun,
            events.TaskCompleted(task_id="k1", title="one"),
            events.TaskUpdated(task_id="k1", title="two"),
            events.ArtifactFailed(artifact_id="f1", error=failed),
            events.ArtifactUpdated(artifact_id="f1", content="x"),
        ),
        "unknown_types": Story()
        .then(*begun)
        .raw("holo.projected", b'{"kind":"chart","id":7,"status":"odd","first_sequence":"no","last_sequence":-1}')
        .raw("run.teleported", b'{"to":"mars"}')
        .raw("log.rotated", b'{"sequence":99,"type":"x","by":"n"}')
        .raw("approval.forwarded", b'{"approval_id":"a1"}')
        .raw("nodot", b"{}"),
        "facts_that_do_not_fit": Story()
        .then(*begun)
        .raw("tool.requested", b"[]")
        .raw("tool.requested", b'{"tool_call_id":7}')
        .raw("tool.requested", b'{"name":"x"}')
        .raw("run.leased", b'{"lease_epoch":"2","worker_id":"w2"}')
        .raw("run.leased", b'{"lease_epoch":2}')
        .raw("run.leased", b'{"lease_epoch":true,"worker_id":"w2"}')
        .raw("run.lease_lost", b"{}")
        .raw("run.cancel_requested", b'{"deadline_at":null}')
        .raw("approval.resolved", b'{"approval_id":"a1"}')
        .raw("tool.reconciled", b'{"tool_call_id":"c1","outcome":1}')
        .raw("log.quarantined", b"7")
        .raw("holo.projected", b"null")
        .raw("message.completed", b'{"message_id":"m1","role":"x","content":' + b"[" * 128 + b"]" * 128 + b"}")
        .raw("message.completed", b'{"message_id":"m2","role":"x","content":' + b"[" * 127 + b"]" * 127 + b"}")
        .then(events.RunCompleted()),
        "names_that_belong_to_the_fold": Story()
        .raw(
            "run.created", b'{"agent":"a","tenant_id":"evil","run_id":"evil","status":"completed","created_at":"never"}'
        )
        .raw("run.leased", b'{"lease_epoch":1.0,"worker_id":"w1","status":"completed"}')
        .raw("run.lease_lost", b'{"lease_epoch":1}')
        .raw("run.leased", b'{"lease_epoch":2,"worker_id":"w2"}')
        .raw("tool.requested", b'{"tool_call_id":"c1","kind":"x","id":"y","first_sequence":0,"started_at":"never"}')
        .raw("tool.completed", b'{"tool_call_id":"c1","status":"running","ended_at":"never","turn_id":"mine"}')
        .raw("constructor.called", b'{"__proto__":{"a":1},"constructor":1,"toString":2,"hasOwnProperty":3}'),
        "archived": a_short_run().then(_compacted("retention")),
        "erased_after_it_was_folded": a_short_run()
        .raw("message.completed", b'{"role":"user"}')
        .then(_compacted("erasure", "*"), _compacted("retention")),
        "erased_before_it_was_folded": a_short_run()
        .raw("message.completed", b'{"role":"user"}')
        .erased(*range(1, len(a_short_run().facts) + 2))
        .then(_compacted("erasure", "*"), _compacted("retention")),
        "erased_items": a_short_run().then(_compacted("erasure", "tool:c1", "message:m1", "tool:nobody")),
        "erased_by_nonsense": a_short_run()
        .raw("log.compacted", b'{"erased":"*"}')
        .raw("log.compacted", b'{"erased":[null,1,{},"__proto__"]}')
        .raw("log.compacted", b'{"erased":{"*":1}}'),
        "traces": Story()
        .raw("run.created", b'{"agent":"a","trace_id":"mine"}')
        .raw("run.created", b'{"agent":"a"}', traceparent=f"00-{'ab' * 16}-{'cd' * 8}-01")
        .raw("run.created", b'{"agent":"a"}', traceparent=f"00-{'00' * 16}-{'cd' * 8}-01")
        .raw("run.created", b'{"agent":"a"}', traceparent=f"7f-{'12' * 16}-{'cd' * 8}-00-more_of-it")
        .raw("run.created", b'{"agent":"a"}', traceparent=f"00-{'ab' * 16}-{'00' * 8}-01")
        .raw("run.created", b'{"agent":"a"}', traceparent=f"00-{'AB' * 16}-{'cd' * 8}-01")
        .raw("run.created", b'{"agent":"a"}', traceparent=f"00-{'34' * 16}-{'cd' * 8}-00")
        .raw("run.created", b'{"agent":"a"}', traceparent=f"ff-{'ab' * 16}-{'cd' * 8}-01")
        .raw("run.created", b'{"agent":"a"}', traceparent=f"00-{'56' * 16}-{'cd' * 8}-01")
        .raw("run.started", b"{}", traceparent=f"00-{'78' * 16}-{'cd' * 8}-01"),
        "numbers": Story().raw(
            "run.created",
            b'{"agent":"a","input":[0,-0,-0.0,1.0,1e2,1E+2,0.1,1e21,1e20,123456789012345680000,1e-6,1e-7,5e-324,'
            b"1.7976931348623157e308,-1.5,9007199254740991,0.30000000000000004,100000000000000000000.0,4.35,2.5e-8]}",
        ),
        "text": Story().raw(
            "run.created",
            '{"agent":"a","input":{"\U00010000":1,"\uffff":2,"\ud7ff":3,"a":"é\u2028\u2029/\\u0000\\u001f\x7f\\"\\\\",'
            '"":"empty","e\u0301":"not normalized","é":"other","10":1,"9":2,"A":"<script>"}}'.encode(),
        ),
    }


def corpus_case(name: str, story: Story) -> bytes:
    """One file of the reducer corpus: facts, the checksum after each, and the last state."""
    state = reducer.initial_state(story.run.tenant_id, story.run.run_id)
    sums = []
    for fact in story.facts:
        reducer.reduce(state, fact)
        sums.append(reducer.checksum(state))
    lines = b",\n".join(encode(fact) for fact in story.facts)
    checksums = b",\n".join(encode(one) for one in sums)
    return b'{"name":%b,"reducer_version":%d,\n"facts":[\n%b\n],\n"checksums":[\n%b\n],\n"state":%b}\n' % (
        encode(name), REDUCER_VERSION, lines, checksums, encode(state),
    )  # fmt: skip


# --- files ------------------------------------------------------------------------------------------------


def files() -> dict[str, bytes]:
    """Every fixture by its path below `contracts/fixtures/v1`."""
    some = facts()
    batch = PreviewBatch(tenant_id="acme", run_id="run_1", previews=tuple(previews()))
    commit = Commit(commit_id="cmt_1", tenant_id="acme", run_id="run_1", first_sequence=1, facts=tuple(some[:3]))
    return {
        "facts.jsonl": _lines(encode(fact) for fact in some),
        "signals.jsonl": _lines(signal_body(fact) for fact in some[: len(PAYLOADS)]),
        "commit.json": encode(commit) + b"\n",
        "commands.jsonl": _lines(encode(command) for command in commands()),
        "ledger_entries.jsonl": _lines(encode(entry) for entry in ledger_entries()),
        "previews.jsonl": _lines(encode(preview) for preview in previews()),
        "preview_batch.json": encode(batch) + b"\n",
        "frames.jsonl": _lines(encode({"event": event, "data": frame}) for event, frame in frames()),
        "problems.jsonl": _lines(problems()),
        "cursors.json": cursors(),
        "drafts.jsonl": _lines(encode(lifecycle.draft(payload, event_id="evt_1")) for payload in PAYLOADS),
        **{f"reducer/{name}.json": corpus_case(name, story) for name, story in corpus().items()},
    }


def _lines(lines: Iterable[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def _pretty(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def main() -> int:
    """Write what is not there; with `--replace`, everything."""
    for name, data in files().items():
        path = DIRECTORY / name
        if path.exists() and path.read_bytes() != data and "--replace" not in sys.argv:
            sys.stderr.write(f"kept as it was: {name}\n")
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
