"""What becomes a record, and what never gets into one."""

from itertools import count

import msgspec
import pytest

from runlane.audit_sink import records
from runlane.audit_sink.records import SourceMessage
from runlane_contracts import events
from runlane_contracts.audit import PLATFORM, Refusal, Target
from runlane_contracts.codec import encode
from runlane_contracts.commands import Command, LedgerEntry, LedgerStatus, Rejection
from runlane_contracts.envelope import Actor, Commit
from runlane_contracts.lifecycle import RunLifecycle, draft, place
from runlane_contracts.subjects import Subjects

SUBJECTS = Subjects()
NS = 1_772_323_200_000_000_000
CANARY = "sk-" + "canary-do-not-leak"


def a_message(subject: str, value: object, stream: str = "RL_LOG_0") -> SourceMessage:
    data = value if isinstance(value, bytes) else encode(value)
    return SourceMessage(stream, 7, NS, subject, data)


def a_commit(*payloads: events.Payload, lease_epoch: int = 0, actor: str = "bob") -> SourceMessage:
    run = RunLifecycle(tenant_id="acme", run_id="run_1")
    ids = count(1)
    facts = place(
        run, [draft(one, causation_ids=("cmd_1",)) for one in payloads], lease_epoch=lease_epoch,
        actor=Actor(kind="user", id=actor), occurred_at="2026-03-01T00:00:00.000000Z",
        event_ids=[f"evt_{next(ids)}" for _ in payloads],
    )  # fmt: skip
    commit = Commit(commit_id="c", tenant_id="acme", run_id="run_1", first_sequence=1, facts=facts)
    return a_message(SUBJECTS.log("acme", "run_1"), commit)


def told(message: SourceMessage, read=records.of_commit) -> list[tuple[str, str, str, str, str]]:
    return [
        (
            one.category,
            f"{one.actor.kind}:{one.actor.id}",
            one.action,
            f"{one.target.kind} {one.target.id}",
            one.outcome,
        )
        for one in read(message)
    ]


def test_decisions_lease_changes_and_a_runs_life_are_recorded_and_work_is_not():
    resolved = events.ApprovalResolved(approval_id="apr_1", decision="rejected", decided_by="bob", version=1)
    message = a_commit(
        events.RunCreated(agent="a", input={"secret": CANARY}),
        events.RunLeased(lease_epoch=2, worker_id="w1", attempt=1),
        events.RunLeaseLost(lease_epoch=2, cause="expired"),
        events.MessageCompleted(message_id="msg_1", role="assistant", content=CANARY),
        resolved,
        events.ToolReconciled(tool_call_id="call_1", outcome="executed", by="bob", note=CANARY),
        events.RunCancelRequested(reason=CANARY, deadline_at="2026-03-01T00:00:00Z"),
    )
    assert told(message) == [
        ("run", "user:bob", "run.created", "run run_1", "recorded"),
        ("lease", "user:bob", "run.leased", "lease w1", "lease_epoch_2"),
        ("lease", "user:bob", "run.lease_lost", "lease lease_epoch_2", "expired"),
        ("decision", "user:bob", "approval.resolved", "approval apr_1", "rejected"),
        ("decision", "user:bob", "tool.reconciled", "tool call_1", "executed"),
        ("run", "user:bob", "run.cancel_requested", "run run_1", "recorded"),
    ]
    assert all(one.causes[1] == "cmd_1" for one in records.of_commit(message))
    assert CANARY.encode() not in encode(records.of_commit(message))


def test_a_workers_fact_is_its_leases_whatever_actor_it_names():
    (one,) = records.of_commit(a_commit(events.RunStarted(), lease_epoch=3, actor=CANARY))
    assert one.actor == Actor(kind="agent", id="lease_epoch_3")


def test_what_is_no_id_is_recorded_by_its_hash():
    (one,) = records.of_commit(a_commit(events.RunCreated(agent="a"), actor="bob, password hunter2"))
    assert one.actor.id.startswith("hash_")
    assert records.safe("bob@example.com") == "bob@example.com"
    assert records.safe("x\n") != "x\n"


def a_command() -> Command:
    return Command(
        command_id="cmd_1", idempotency_key=CANARY, type="run.cancel", tenant_id="acme", run_id="run_1",
        issued_at="2026-03-01T00:00:00Z", issued_by=Actor(kind="user", id="bob"),
        payload=msgspec.Raw(encode({"reason": CANARY})), meta={"note": CANARY},
    )  # fmt: skip


def test_a_command_is_recorded_with_who_gave_it_and_nothing_of_what_it_says():
    message = a_message(SUBJECTS.command("acme", "run_1"), a_command(), "RL_COMMAND")
    assert told(message, records.of_command) == [("command", "user:bob", "run.cancel", "command cmd_1", "accepted")]
    assert CANARY.encode() not in encode(records.of_command(message))


@pytest.mark.parametrize(
    ("status", "rejection", "outcome"),
    [
        (LedgerStatus.APPLIED, None, "applied"),
        (LedgerStatus.EXPIRED, Rejection(code="invalid_state", detail=CANARY), "expired.invalid_state"),
        (LedgerStatus.REJECTED, Rejection(code="already_resolved", detail=CANARY), "rejected.already_resolved"),
    ],
)
def test_what_became_of_a_command_is_recorded(status, rejection, outcome):
    entry = LedgerEntry(
        command_id="cmd_1", idempotency_key=CANARY, type="run.cancel", tenant_id="acme", run_id="run_1",
        fingerprint="f", status=status, accepted_at="2026-03-01T00:00:00Z", rejection=rejection,
    )  # fmt: skip
    message = a_message("$KV.RL_LEDGER.acme.cmd_1", entry, "KV_RL_LEDGER")
    assert [one[4] for one in told(message, records.of_ledger)] == [outcome]
    assert CANARY.encode() not in encode(records.of_ledger(message))


def test_an_accepted_entry_and_a_marker_of_age_say_nothing_new():
    entry = LedgerEntry(
        command_id="cmd_1", idempotency_key="k", type="run.cancel", tenant_id="acme", run_id="run_1", fingerprint="f",
        status=LedgerStatus.ACCEPTED, accepted_at="2026-03-01T00:00:00Z",
    )  # fmt: skip
    assert records.of_ledger(a_message("$KV.RL_LEDGER.acme.cmd_1", entry)) == []
    assert records.of_ledger(a_message("$KV.RL_LEDGER.acme.cmd_1", b"")) == []


def a_refusal(tenant_id: str, **fields) -> Refusal:
    return Refusal(
        tenant_id=tenant_id, time="2026-03-01T00:00:00.000000Z", service="edge_gateway",
        actor=Actor(kind="user", id="eve"), action="GET /v1/runs/*",
        target=Target(kind="run", id="run_1", run_id="run_1"), outcome="run_not_found", **fields,
    )  # fmt: skip


def test_a_refusal_belongs_to_the_tenant_its_subject_names():
    (one,) = records.of_refusal(a_message(SUBJECTS.intake("acme", "edge_gateway"), a_refusal("other", count=3)))
    assert (one.tenant_id, one.category, one.outcome, one.count) == ("acme", "access", "run_not_found", 3)
    (nobody,) = records.of_refusal(a_message(SUBJECTS.intake(PLATFORM, "edge_gateway"), a_refusal(PLATFORM)))
    assert nobody.tenant_id == PLATFORM


@pytest.mark.parametrize(
    ("read", "subject"),
    [
        (records.of_commit, SUBJECTS.log("acme", "run_1")),
        (records.of_command, SUBJECTS.command("acme", "run_1")),
        (records.of_ledger, "$KV.RL_LEDGER.acme.cmd_1"),
        (records.of_refusal, SUBJECTS.intake("acme", "edge_gateway")),
    ],
)
def test_what_cannot_be_read_is_recorded_as_that_and_blocks_nobody(read, subject):
    (one,) = read(a_message(subject, CANARY.encode()))
    assert (one.tenant_id, one.category, one.outcome) == ("acme", "audit", "unreadable")
    assert CANARY.encode() not in encode(one)


@pytest.mark.parametrize("type_", list(events.PAYLOADS))
def test_each_type_of_fact_has_its_place_or_none(type_):
    family = type_.split(".")[0]
    assert (records.category_of(type_) is not None) == (
        family in {"run", "approval", "input", "log"} or type_ in {"tool.reconciled", "tool.outcome_unknown"}
    )
