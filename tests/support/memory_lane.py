"""Runlane in one object, without a broker: every transport role of the SDK, with the contract's own rules.

Faults are asked for by name: `lose_answers` (the effect happens, the answer is lost), `refuse_next` (503),
`cut_after` (connections that break after so many frames).
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from runlane.client.errors import ProblemBody, RequestRefused, Unreachable
from runlane.client.transports.ports import (
    Claim,
    CommandReceipt,
    Frame,
    Lease,
    NewRun,
    StartedRun,
    WatchRequest,
    Written,
)  # fmt: skip
from runlane.kernel.clock import new_id
from runlane_contracts import events, lifecycle, reducer
from runlane_contracts.envelope import Actor, Fact
from runlane_contracts.lifecycle import FactDraft, RunLifecycle
from runlane_contracts.previews import Preview
from runlane_contracts.resume import End, EndReason, Hello, Mark, Outcome, SnapshotFrame, Synced

SYSTEM = Actor(kind="system", id="runlane")
AT = "2026-03-01T00:00:00.000000Z"


def refusal(code: str, detail: str = "", *, status: int = 409, retryable: bool = False, **more: Any) -> RequestRefused:
    """What the server would answer."""
    return RequestRefused(ProblemBody(code=code, detail=detail, status=status, retryable=retryable, **more))


@dataclass
class MemoryRun:
    """One run: its facts, who watches it, who owns it."""

    life: RunLifecycle
    facts: list[Fact] = field(default_factory=list)
    previews: list[Preview] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    fenced_below: int = 0


class MemoryLane:
    """See the module."""

    def __init__(self, tenant_id: str = "demo", *, heartbeat_s: float = 12.0) -> None:
        self.tenant_id = tenant_id
        self.runs: dict[str, MemoryRun] = {}
        self.commands: dict[str, CommandReceipt] = {}
        self.work: dict[str, asyncio.Queue[str]] = {}
        self.lose_answers: deque[str] = deque()
        self.refuse_next: deque[str] = deque()
        self.cut_after: deque[int] = deque()
        self.refuse_for_good: dict[str, str] = {}
        self.unreachable = False
        self.calls: list[tuple[str, str]] = []
        self.watches: list[WatchRequest] = []
        self.heartbeat_s = heartbeat_s
        self.slow_append_s = 0.0
        self.cancel_deadline_at = AT

    # -- faults -------------------------------------------------------------------------------------------

    def _enter(self, verb: str, run_id: str) -> None:
        self.calls.append((verb, run_id))
        if self.unreachable:
            raise Unreachable("no route", sent=False)
        if verb in self.refuse_for_good:
            raise refusal(self.refuse_for_good[verb], status=403)
        if self.refuse_next and self.refuse_next[0] == verb:
            self.refuse_next.popleft()
            raise refusal("overloaded", status=503, retryable=True)

    def _leave(self, verb: str) -> None:
        if self.lose_answers and self.lose_answers[0] == verb:
            self.lose_answers.popleft()
            raise Unreachable("the answer was lost")

    def run(self, run_id: str) -> MemoryRun:
        found = self.runs.get(run_id)
        if found is None:
            raise refusal("run_not_found", "no such run", status=404)
        return found

    async def write(self, run: MemoryRun, drafts: Sequence[FactDraft], *, lease_epoch: int = 0) -> list[Written]:
        placed = lifecycle.place(
            run.life, drafts, lease_epoch=lease_epoch, actor=SYSTEM, occurred_at=AT,
            event_ids=[new_id("evt") for _ in drafts],
        )  # fmt: skip
        placed = tuple(msgspec.structs.replace(one, recorded_at=AT) for one in placed)
        run.life.evolve(placed)
        async with run.changed:
            run.facts += placed
            run.changed.notify_all()
        return [Written(event_id=one.event_id, sequence=one.sequence) for one in placed]

    async def state(self, run_id: str, *payloads: events.Payload) -> None:
        """Facts of a service."""
        await self.write(self.run(run_id), [lifecycle.draft(one) for one in payloads])

    def types(self, run_id: str) -> list[str]:
        return [one.type for one in self.runs[run_id].facts]

    def payloads(self, run_id: str, type_: str) -> list[Any]:
        return [msgspec.json.decode(one.payload) for one in self.runs[run_id].facts if one.type == type_]

    # -- writing ------------------------------------------------------------------------------------------

    async def start_run(self, new: NewRun) -> StartedRun:
        self._enter("start_run", new.run_id)
        if new.run_id not in self.runs:
            run = self.runs[new.run_id] = MemoryRun(RunLifecycle(tenant_id=self.tenant_id, run_id=new.run_id))
            created = events.RunCreated(
                agent=new.agent,
                input=new.input,
                pool=new.pool,
                dispatch=new.dispatch,
                limits=new.limits,  # type: ignore[arg-type]
            )
            await self.write(run, [lifecycle.draft(created, session_id=new.session_id)])
            if new.dispatch == "pool":
                self.work.setdefault(new.pool, asyncio.Queue()).put_nowait(new.run_id)
        self._leave("start_run")
        return StartedRun(run_id=new.run_id, command_id=f"cmd_{new.run_id}", status="created", sequence=1, cursor="c1")

    async def take_lease(self, run_id: str, *, worker_id: str, ttl_s: float) -> Lease:
        self._enter("take_lease", run_id)
        run = self.run(run_id)
        if run.life.is_terminal:
            raise refusal("run_terminal", f"the run is {run.life.status}")
        if run.life.owner is not None:
            raise refusal("lease_held", retryable=True)
        leased = events.RunLeased(
            lease_epoch=run.life.lease_epoch + 1, worker_id=worker_id, attempt=run.life.attempt + 1
        )
        await self.write(run, [lifecycle.draft(leased)])
        self._leave("take_lease")
        return Lease(lease_epoch=run.life.lease_epoch, expires_at=AT)

    def _check_lease(self, run_id: str, lease_epoch: int) -> MemoryRun:
        run = self.run(run_id)
        if run.life.is_terminal:
            raise refusal("run_terminal", f"the run is {run.life.status}")
        if run.life.owner is None or run.life.lease_epoch != lease_epoch:
            raise refusal("lease_fenced")
        return run

    async def confirm_lease(self, run_id: str, *, worker_id: str, lease_epoch: int) -> Lease:
        self._enter("confirm_lease", run_id)
        self._check_lease(run_id, lease_epoch)
        return Lease(lease_epoch=lease_epoch, expires_at=AT)

    async def release_lease(self, run_id: str, *, worker_id: str, lease_epoch: int) -> None:
        self._enter("release_lease", run_id)
        run = self._check_lease(run_id, lease_epoch)
        await self.write(run, lifecycle.lose_lease(run.life, "released"))

    async def take_over(self, run_id: str) -> int:
        """Another worker takes the run, whoever had it."""
        run = self.run(run_id)
        if run.life.owner is not None:
            await self.write(run, lifecycle.lose_lease(run.life, "expired"))
        return (await self.take_lease(run_id, worker_id="another", ttl_s=30)).lease_epoch

    async def append(
        self, run_id: str, drafts: Sequence[FactDraft], *, lease_epoch: int, expected_sequence: int | None = None
    ) -> list[Written]:
        self._enter("append", run_id)
        if self.slow_append_s:
            await asyncio.sleep(self.slow_append_s)
        run = self.run(run_id)
        try:
            lifecycle.validate(drafts)
            admitted = lifecycle.admit(run.life, drafts, lease_epoch=lease_epoch, expected_sequence=expected_sequence)
        except lifecycle.Refused as refused:
            raise refusal(
                refused.code.value, refused.detail, index=refused.index, current_sequence=refused.current_sequence
            ) from refused
        if admitted:
            await self.write(run, admitted, lease_epoch=lease_epoch)
        self._leave("append")
        known = run.life.event_ids
        return [Written(event_id=one.event_id or "", sequence=known[one.event_id or ""]) for one in drafts]

    async def publish_previews(self, run_id: str, previews: Sequence[Preview], *, lease_epoch: int) -> None:
        self._enter("publish_previews", run_id)
        run = self._check_lease(run_id, lease_epoch)
        async with run.changed:
            run.previews += previews
            run.changed.notify_all()

    async def claim(self, pool: str, *, worker_id: str, ttl_s: float, wait_s: float) -> Claim | None:
        self._enter("claim", pool)
        try:
            async with asyncio.timeout(wait_s):
                run_id = await self.work.setdefault(pool, asyncio.Queue()).get()
        except TimeoutError:
            return None
        lease = await self.take_lease(run_id, worker_id=worker_id, ttl_s=ttl_s)
        created = self.runs[run_id].life.created
        assert created is not None
        return Claim(
            run_id=run_id, lease_epoch=lease.lease_epoch, agent=created.agent, input=created.input,
            sequence=self.runs[run_id].life.sequence,
        )  # fmt: skip

    # -- commands -----------------------------------------------------------------------------------------

    async def submit(
        self, run_id: str, type_: str, payload: Any, *, idempotency_key: str, wait_s: float
    ) -> CommandReceipt:
        self._enter("submit", run_id)
        if idempotency_key not in self.commands:
            run = self.run(run_id)
            if run.life.is_terminal:
                raise refusal("run_terminal")
            command_id = new_id("cmd")
            body = msgspec.to_builtins(payload)
            await self.write(run, self._decide(run.life, type_, body, command_id))
            self.commands[idempotency_key] = CommandReceipt(
                command_id=command_id, status="applied", run_id=run_id, type=type_,
                applied_through=f"c{run.life.sequence}", applied_sequence=run.life.sequence,
            )  # fmt: skip
        self._leave("submit")
        return self.commands[idempotency_key]

    async def find_command(self, idempotency_key: str) -> CommandReceipt | None:
        self._enter("find_command", idempotency_key)
        return self.commands.get(idempotency_key)

    def _decide(  # noqa: C901, PLR0912 - one case for each command
        self, life: RunLifecycle, type_: str, body: dict[str, Any], command_id: str
    ) -> list[FactDraft]:
        match type_:
            case "run.cancel":
                fact: events.Payload = events.RunCancelRequested(
                    deadline_at=self.cancel_deadline_at, reason=body.get("reason")
                )
            case "run.pause":
                fact = events.RunPauseRequested()
            case "run.resume":
                fact = events.RunResumed()
            case "message.send":
                fact = events.MessageCompleted(message_id=f"msg_{command_id}", role="user", content=body["content"])
            case "input.provide":
                fact = events.InputProvided(input_id=body["input_id"], by="u1", value=body["value"])
            case "approval.resolve":
                approval = life.approvals.get(body["approval_id"])
                if approval is None:
                    raise refusal("approval_not_found", status=404)
                if approval.resolution is not None:
                    raise refusal("already_resolved", recorded={"decision": approval.resolution.decision})
                fact = events.ApprovalResolved(
                    approval_id=body["approval_id"], decision=body["decision"], decided_by="u1",
                    version=approval.request.version, data=body.get("data"),
                    action_digest=approval.request.action_digest,
                )  # fmt: skip
            case "tool.reconcile":
                if life.tools[body["tool_call_id"]].status != "outcome_unknown":
                    raise refusal("already_resolved")
                fact = events.ToolReconciled(by="u1", **body)
            case "tool.retry":
                tool = life.tools[body["tool_call_id"]]
                fact = msgspec.structs.replace(
                    tool.request, tool_call_id=f"call_{command_id}", attempt=tool.request.attempt + 1,
                    retry_of=body["tool_call_id"],
                )  # fmt: skip
            case _:
                raise refusal("invalid_request", type_, status=400)
        return [lifecycle.draft(fact, causation_ids=(command_id,))]

    # -- watching -----------------------------------------------------------------------------------------

    @asynccontextmanager
    async def watch(self, request: WatchRequest) -> AsyncIterator[AsyncIterator[Frame] | None]:
        self._enter("watch", request.run_id)
        self.watches.append(request)
        run = self.run(request.run_id)
        after = int(request.cursor[1:]) if request.cursor else 0
        if request.cursor and run.life.is_terminal and after >= run.life.sequence:
            yield None
            return
        frames = self._frames(request, run, after)
        yield self._cut(frames, self.cut_after.popleft()) if self.cut_after else frames
        await frames.aclose()

    @staticmethod
    async def _cut(frames: AsyncIterator[Frame], count: int) -> AsyncIterator[Frame]:
        while count > 0:
            try:
                yield await anext(frames)
            except StopAsyncIteration:
                return
            count -= 1

    async def _frames(  # noqa: C901 - one watch, told from top to bottom
        self, request: WatchRequest, run: MemoryRun, after: int
    ) -> AsyncIterator[Frame]:
        high = run.life.sequence
        snapshot = not request.cursor and request.from_ in (None, "snapshot")
        if request.from_ == "now" and not request.cursor:
            after = high
        outcome = Outcome.SNAPSHOT if snapshot else Outcome.RESUMED
        if run.life.is_terminal and not snapshot:
            outcome = Outcome.RUN_TERMINAL
        base = high if snapshot else after
        yield Frame(
            Hello(
                outcome=outcome, run_id=request.run_id, status=run.life.status,
                baseline=Mark(sequence=base, cursor=f"c{base}"), high_water=Mark(sequence=high, cursor=f"c{high}"),
                reducer_version=1, heartbeat_s=self.heartbeat_s, filter={},
            ),
            None,
        )  # fmt: skip
        if snapshot:
            yield Frame(self.snapshot(request.run_id, high), f"c{high}")
        at, shown, synced = base, len(run.previews), False
        while True:
            for fact in run.facts[at:]:
                at = fact.sequence
                if not request.types or fact.type in request.types:
                    yield Frame(fact, f"c{fact.sequence}")
            if not synced:
                synced = True
                yield Frame(Synced(sequence=at), None)
            if run.life.is_terminal and at >= run.life.sequence:
                yield Frame(End(reason=EndReason.RUN_TERMINAL, cursor=f"c{at}"), None)
                return
            for preview in run.previews[shown:] if request.previews else []:
                yield Frame(preview, None)
            shown = len(run.previews)
            async with run.changed:
                if len(run.facts) == at and len(run.previews) == shown:
                    await run.changed.wait()

    def snapshot(self, run_id: str, through: int) -> SnapshotFrame:
        state = reducer.initial_state(self.tenant_id, run_id)
        for fact in self.runs[run_id].facts[:through]:
            reducer.reduce(state, fact)
        return SnapshotFrame(
            state=state, through_sequence=through, reducer_version=1, checksum=reducer.checksum(state),
            cursor=f"c{through}",
        )  # fmt: skip
