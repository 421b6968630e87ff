"""P11, and what the aggregate must hold whatever comes: one resolution per approval, one end, epochs that never fall.

A hypothesis state machine drives one run through the machine and the log's own rules, with repeats, two writers that
decide on old states, and time that jumps.
"""

from collections import Counter
from datetime import UTC, datetime, timedelta

import msgspec
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import Raw

from runlane.run_supervisor import machine
from runlane.run_supervisor.recovery import GiveUp, recover
from runlane_contracts import commands, events, lifecycle
from runlane_contracts.codec import timestamp
from runlane_contracts.commands import Command, CommandPayload
from runlane_contracts.envelope import Actor, Fact
from runlane_contracts.lifecycle import FactDraft, Refused, RunLifecycle, draft

WORKER = Actor(kind="agent", id="w")
APPROVALS = ("a1", "a2")
TOOLS = ("c1", "c2", "c3")


def payloads() -> st.SearchStrategy[CommandPayload]:
    approvals, tools = st.sampled_from(APPROVALS), st.sampled_from(TOOLS)
    return st.one_of(
        st.just(commands.StartRun(agent="a")), st.just(commands.CancelRun()), st.just(commands.PauseRun()),
        st.just(commands.ResumeRun()), *[st.just(commands.SendMessage(content="hi"))] * 2,
        st.builds(commands.ResolveApproval, approval_id=approvals,
                  decision=st.sampled_from(["approved", "rejected", "modified"]),
                  data=st.sampled_from([None, {"x": 1}]),
                  expected_version=st.sampled_from([None, 1, 2])),
        st.builds(commands.RevokeApproval, approval_id=approvals, reason=st.just("r")),
        st.builds(commands.RetryTool, tool_call_id=tools),
        st.builds(commands.ReconcileTool, tool_call_id=tools, outcome=st.sampled_from(["executed", "not_executed"]),
                  note=st.just("n")),
        st.builds(commands.ProvideInput, input_id=st.just("i1"), value=st.integers()),
    )  # fmt: skip


class OneRun(RuleBasedStateMachine):
    """One run, whatever comes.

    To see it fail: let `machine._waiting_approval` not look at the resolution, `decide` not at `applied_commands`, or
    `_ended` not close what is open.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.run = RunLifecycle(tenant_id="t", run_id="r")
        self.facts: list[Fact] = []
        self.sent: list[Command] = []
        self.applied: Counter[str] = Counter()
        self.numbers = 0

    @initialize(steps=st.sampled_from([0, 1, 3, 3, 3, 3]))
    def most_runs_have_begun(self, steps: int) -> None:
        begun = [
            events.RunCreated(agent="a"), events.RunLeased(lease_epoch=1, worker_id="w"), events.RunStarted(),
        ]  # fmt: skip
        for payload in begun[:steps]:
            self.write([draft(payload)], lease_epoch=0)

    def write(self, drafts: list[FactDraft], *, lease_epoch: int) -> None:
        """What the log does with an answer that was decided on its newest state."""
        self.numbers += 1
        ids = [one.event_id or f"evt_{self.numbers}_{n}" for n, one in enumerate(drafts)]
        placed = lifecycle.place(self.run, drafts, lease_epoch=lease_epoch, actor=WORKER,
                                 occurred_at=timestamp(self.now), event_ids=ids)  # fmt: skip
        self.facts += placed
        self.run.evolve(placed)

    def in_s(self, seconds: float) -> str:
        return timestamp(self.now + timedelta(seconds=seconds))

    @rule(payload=payloads(), by=st.sampled_from(["u", "v", "x"]), twice=st.booleans())
    def somebody_asks(self, payload: CommandPayload, by: str, *, twice: bool) -> None:
        self.somebody_commands(payload, by)
        if twice:
            self.deliver(self.sent[-1])

    def somebody_commands(self, payload: CommandPayload, by: str) -> None:
        command = Command(
            command_id=f"cmd_{len(self.sent)}", idempotency_key="k", type=payload.TYPE, tenant_id="t", run_id="r",
            issued_at=timestamp(self.now), issued_by=Actor(kind="user", id=by),
            payload=Raw(msgspec.json.encode(payload)),
        )  # fmt: skip
        self.sent.append(command)
        self.deliver(command)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def a_command_comes_again(self, data: st.DataObject) -> None:
        had_effect = [one for one in self.sent if self.applied[one.command_id]]
        self.deliver(data.draw(st.sampled_from(had_effect or self.sent)))

    def deliver(self, command: Command) -> None:
        try:
            drafts = machine.decide(self.run, command, now=self.now)
        except Refused:
            return
        if drafts:
            self.applied[command.command_id] += 1
            assert not self.run.is_terminal
            self.write(drafts, lease_epoch=0)

    @precondition(lambda self: self.run.exists and not self.run.is_terminal and self.run.owner is None)
    @rule()
    def a_worker_takes_the_lease(self) -> None:
        leased = events.RunLeased(lease_epoch=self.run.lease_epoch + 1, worker_id="w", attempt=self.run.attempt + 1)
        self.write([draft(leased)], lease_epoch=0)

    @rule(
        payload=st.sampled_from([
            events.RunStarted(), events.RunWaiting(), events.RunResumed(), events.RunPaused(), events.RunCompleted(),
            events.RunCancelled(), events.TaskCreated(task_id="t1"), events.TaskCompleted(task_id="t1"),
            *(events.ToolRequested(tool_call_id=c, name="n", arguments={}, side_effect="unsafe") for c in TOOLS),
            *(events.ToolRunning(tool_call_id=c) for c in TOOLS),
            *(events.ToolOutcomeUnknown(tool_call_id=c, operation_id="o") for c in TOOLS),
            *(events.ToolFailed(tool_call_id=c, error=events.Problem(code="x", retryable=True)) for c in TOOLS),
        ]),
        stale=st.booleans(),
    )  # fmt: skip
    def the_owner_writes(self, payload: events.Payload, *, stale: bool) -> None:
        self.append(payload, stale=stale)

    @rule(
        approval=st.sampled_from(APPROVALS), version=st.integers(1, 3), expires=st.sampled_from([None, -1, 5]),
        digest=st.sampled_from(["d", "e"]), quorum=st.integers(1, 2), again=st.sampled_from([None, "why"]),
    )  # fmt: skip
    def the_owner_asks(
        self, approval: str, version: int, expires: int | None, digest: str, quorum: int, again: str | None
    ) -> None:
        self.append(events.ApprovalRequested(
            approval_id=approval, description="d", risk="low", version=version, action_digest=digest, editable=True,
            expires_at=None if expires is None else self.in_s(expires), tool_call_id="c1", quorum=quorum,
            not_by=("x",), reason_again=again,
        ))  # fmt: skip

    @rule(
        approval=st.sampled_from(APPROVALS), digest=st.sampled_from(["d", "e"]),
        decisions=st.lists(st.sampled_from(["approved", "rejected"]), min_size=1, max_size=2), revised=st.booleans(),
    )  # fmt: skip
    def a_question_is_asked_maybe_revised_and_decided_maybe_twice(
        self, approval: str, digest: str, decisions: list[str], *, revised: bool
    ) -> None:
        known = self.run.approvals.get(approval)
        version = 1 if known is None else known.request.version + 1
        for at in range(version, version + 1 + revised):
            self.append(events.ApprovalRequested(
                approval_id=approval, description="d", risk="low", version=at, action_digest=digest, tool_call_id="c1",
            ))  # fmt: skip
        for decision in decisions:
            self.somebody_commands(commands.ResolveApproval(approval_id=approval, decision=decision), "u")  # type: ignore[arg-type]

    @rule(expires=st.sampled_from([None, 5]))
    def the_owner_asks_for_input(self, expires: int | None) -> None:
        at = None if expires is None else self.in_s(expires)
        self.append(events.InputRequested(input_id="i1", prompt="p", expires_at=at))

    def append(self, payload: events.Payload, *, stale: bool = False) -> None:
        epoch = self.run.lease_epoch - stale
        try:
            admitted = lifecycle.admit(self.run, [draft(payload)], lease_epoch=epoch)
        except Refused:
            return
        assert not stale, "an owner of another epoch wrote"
        self.write(admitted, lease_epoch=epoch)

    @rule(seconds=st.sampled_from([0.1, 6, 31]))
    def time_passes(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @rule()
    def the_supervisor_looks(self) -> None:
        drafts = machine.overdue(self.run, now=self.now)
        if drafts:
            self.write(drafts, lease_epoch=0)
        assert machine.overdue(self.run, now=self.now) == [], "a second look changes nothing"

    @rule()
    def the_lease_runs_out(self) -> None:
        drafts = machine.on_lease_lost(self.run, lease_epoch=self.run.lease_epoch)
        if drafts:
            self.write(drafts, lease_epoch=0)
        assert machine.on_lease_lost(self.run, lease_epoch=self.run.lease_epoch) == []

    @rule()
    def the_supervisor_recovers(self) -> None:
        decision = recover(self.run)
        if isinstance(decision, GiveUp):
            self.write(list(decision.drafts), lease_epoch=0)

    @invariant()
    def every_version_of_an_approval_is_resolved_once_at_most_and_before_the_next_is_asked(self) -> None:
        asked: dict[str, int] = {}
        open_: set[str] = set()
        for one in self.facts:
            said = msgspec.json.decode(one.payload)
            if one.type == "approval.requested":
                assert said["approval_id"] not in open_
                assert said["version"] > asked.get(said["approval_id"], 0)
                asked[said["approval_id"]] = said["version"]
                open_.add(said["approval_id"])
            elif one.type == "approval.resolved":
                assert said["version"] == asked[said["approval_id"]]
                open_.remove(said["approval_id"])

    @invariant()
    def what_people_decided_is_not_asked_again_under_the_same_id(self) -> None:
        decided: set[str] = set()
        for one in self.facts:
            said = msgspec.json.decode(one.payload)
            if one.type == "approval.requested":
                assert said["approval_id"] not in decided
            elif one.type == "approval.resolved" and said.get("reason") != lifecycle.REVISED:
                decided.add(said["approval_id"])

    @invariant()
    def one_action_never_has_two_open_questions(self) -> None:
        asked = [one.request.action_digest for one in self.run.approvals.values() if one.resolution is None]
        assert len(asked) == len(set(asked))

    @invariant()
    def what_is_approved_was_approved_by_enough_people_who_may(self) -> None:
        for one in self.run.approvals.values():
            if one.resolution is not None and one.resolution.decision in {"approved", "modified"}:
                by = set(one.resolution.approved_by) | {one.resolution.decided_by}
                assert len(by) >= one.request.quorum
                assert "x" not in by

    @invariant()
    def every_call_is_retried_once_at_most(self) -> None:
        retried = Counter(msgspec.json.decode(f.payload).get("retry_of") for f in self.facts
                          if f.type == "tool.requested" and f.lease_epoch == 0)  # fmt: skip
        assert not [id_ for id_, count in retried.items() if count > 1]

    @invariant()
    def nothing_follows_the_end_and_nothing_is_left_open_there(self) -> None:
        ends = [n for n, f in enumerate(self.facts) if f.type in events.TERMINAL_RUN]
        assert ends in ([], [len(self.facts) - 1])
        if ends:
            assert self.run.open_items == {}
            assert self.run.owner is None

    @invariant()
    def lease_epochs_never_fall_and_each_is_taken_once(self) -> None:
        epochs = [f.lease_epoch for f in self.facts if f.lease_epoch]
        assert epochs == sorted(epochs)
        taken = [msgspec.json.decode(f.payload)["lease_epoch"] for f in self.facts if f.type == "run.leased"]
        assert taken == sorted(set(taken))

    @invariant()
    def a_command_has_one_effect(self) -> None:
        assert not [id_ for id_, count in self.applied.items() if count > 1]

    @invariant()
    def the_log_is_gapless_and_its_event_ids_are_its_own(self) -> None:
        assert [f.sequence for f in self.facts] == list(range(1, len(self.facts) + 1))
        assert len({f.event_id for f in self.facts}) == len(self.facts)

    @invariant()
    def the_fold_is_the_same_from_the_start(self) -> None:
        again = RunLifecycle(tenant_id="t", run_id="r")
        again.evolve(self.facts)
        assert again == self.run


TestOneRun = OneRun.TestCase
TestOneRun.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
