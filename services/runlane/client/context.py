"""What an agent is given: its run, to write to, and what people decide about it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import msgspec

from runlane.client.effects import Calls, Effect, Reconcile
from runlane.client.errors import LeaseLost, RequestRefused, RunCancelled, ToolCallFailed
from runlane.client.items import MessageInProgress, ReasoningInProgress, ToolInProgress
from runlane.client.journal import Journal, Step, is_a_step
from runlane.client.run_tail import RunTail, SentMessage
from runlane.client.state import RunState
from runlane.client.transports.ports import Claim, Written
from runlane.client.writer import FactLike, RunWriter, draft_of
from runlane.kernel.clock import NewId, Now, new_id, utc_now
from runlane_contracts import events
from runlane_contracts.canonical import action_digest as digest_of, sha256_of
from runlane_contracts.checkpoint import CHECKPOINT_TYPE
from runlane_contracts.codec import timestamp
from runlane_contracts.commands import derived_id
from runlane_contracts.events import WaitingFor
from runlane_contracts.lifecycle import FactDraft
from runlane_contracts.previews import Operation


class RunContext:
    """One run, in the hands of one agent.

    `boundary()` is where people reach the agent: call it between steps. What the agent does to the world goes
    through `call`. After a worker was lost the agent starts anew, from its beginning, with `attempt` 2, 3 …: then
    each step that the log holds already is answered from there. What is done is not done again, what was said is not
    said again, what was asked is not asked again. So an agent has to take the same steps in the same order.

    Raises, out of each step:
        NonDeterministic: the agent does something else than it did before.
    """

    def __init__(
        self,
        claim: Claim,
        writer: RunWriter,
        tail: RunTail,
        *,
        reconcile: Reconcile | None = None,
        new_id: NewId = new_id,
        now: Now = utc_now,
    ) -> None:
        self.run_id = claim.run_id
        self.agent = claim.agent
        self.input = claim.input
        self.writer = writer
        self._tail = tail
        self._new_id = new_id
        self._now = now
        self._waiting_on: list[WaitingFor] = []
        self._unknown: set[str] = set()
        self._goes_on = False
        self._used: set[str] = set()
        self._told_cancelled = False
        self._journal = Journal(tail.state, claim.lease_epoch, masked=writer.masked)
        tail.on_fact = self._journal.learn
        self._desk = _Desk(writer, self._journal)
        self._calls = Calls(self, self._journal, self._desk, reconcile, new_id)

    # -- the run ------------------------------------------------------------------------------------------

    @property
    def state(self) -> RunState:
        """The run as its log tells it; see `selectors`."""
        return self._tail.state

    @property
    def attempt(self) -> int:
        """1 for the first worker, 2 after it was lost, and so on."""
        return self._tail.attempt

    @property
    def cancelled(self) -> asyncio.Event:
        """Set when somebody asked that the run end."""
        return self._tail.cancelled

    @property
    def lease_ok(self) -> bool:
        """Whether side effects are allowed now. Ask before each one that cannot be undone."""
        return self.writer.lease_ok

    # -- what people ask ----------------------------------------------------------------------------------

    async def boundary(self) -> list[SentMessage]:
        """A safe point: stops here if the run is to end, waits here while it is paused; what people said since.

        Raises:
            RunCancelled: clean up and let it pass; the worker then states `run.cancelled`.
            LeaseLost: another may drive the run now; stop.
        """
        self.check()
        await self._go_on()
        while self._tail.pause_requested or self._tail.is_paused:
            if not self._tail.is_paused:
                await self._pause()
            await self.until(lambda: not self._tail.is_paused and not self._tail.pause_requested)
        return self.messages()

    def messages(self) -> list[SentMessage]:
        """What people said since this was last asked, without waiting. In a later attempt: at the same step."""
        return self._journal.hear(self._tail.messages)

    def retries(self) -> list[events.ToolRequested]:
        """Tool calls that people asked to try again. Run each with `call_again`."""
        asked = self._journal.take_retries(self._tail.retries)
        return [one for one in asked if not self._calls.repeats(one.tool_call_id)]

    async def _pause(self) -> None:
        # Only if nobody took the request back meanwhile: else the run would stand still with nobody to ask why.
        try:
            await self.writer.append(events.RunPaused(), expected_sequence=self._tail.sequence)
        except RequestRefused as refused:
            await self._catch_up(refused)
            return
        await self.until(lambda: self._tail.is_paused or not self._tail.pause_requested)

    async def approval(  # noqa: PLR0913 - the fields of a question, by keyword
        self,
        description: str,
        *,
        risk: str = "high",
        data: Any = None,
        tool_call_id: str | None = None,
        approval_id: str | None = None,
        action_digest: str | None = None,
        editable: bool = False,
        expires_in_s: float | None = None,
        quorum: int = 1,
        not_by: Sequence[str] = (),
        reason_again: str | None = None,
    ) -> events.ApprovalResolved:
        """Ask people, and wait for what they decide.

        Asked once: the same `approval_id`, or the same tool call with the same digest, finds the question that is
        open or the decision that was made, also in a later attempt. Act only on `approved`, or on `modified` with
        the `data` of the decision; `rejected`, `expired` and `revoked` mean no. `quorum` different people have to
        approve the same action, and nobody in `not_by` may; what was rejected is asked again with `reason_again` only.

        Raises:
            RunCancelled, LeaseLost: as `boundary`.
        """
        self.check()
        shown = {"description": description, "data": data}
        digest = action_digest or self._digest_of(tool_call_id) or sha256_of(shown)
        if approval_id is None and tool_call_id is not None:
            approval_id = derived_id("apr", self.run_id, tool_call_id, digest)
        step = self._journal.step("approval", approval_id)
        approval_id, known = step.id, step.item
        if known is not None:
            self._journal.require_same_question(approval_id, digest, shown)
        version = 1 if known is None else int(known["version"])
        if known is None:
            question = events.ApprovalRequested(
                approval_id=approval_id, tool_call_id=tool_call_id, description=description, risk=risk, data=data,
                editable=editable, version=version, action_digest=digest, expires_at=self._moment(expires_in_s),
                quorum=quorum, not_by=tuple(not_by), reason_again=reason_again,
            )  # fmt: skip
            await self._ask(question, WaitingFor(kind="approval", id=approval_id))
        elif (approval_id, version) not in self._tail.resolutions:
            await self._wait_for_known(WaitingFor(kind="approval", id=approval_id))
        if (approval_id, version) not in self._tail.resolutions:
            await self.until(lambda: (approval_id, version) in self._tail.resolutions)
        await self._settled("approval", step)
        return self._tail.resolutions[approval_id, version]

    async def ask(
        self,
        prompt: str,
        *,
        schema: dict[str, Any] | None = None,
        input_id: str | None = None,
        expires_in_s: float | None = None,
    ) -> events.InputProvided | events.InputCancelled:
        """Ask people for a value, and wait for it; the same `input_id` is asked once.

        Raises:
            RunCancelled, LeaseLost: as `boundary`.
        """
        self.check()
        step = self._journal.step("input", input_id)
        input_id = step.id
        wait = WaitingFor(kind="input", id=input_id)
        if step.item is None:
            question = events.InputRequested(
                input_id=input_id, prompt=prompt, schema=schema, expires_at=self._moment(expires_in_s)
            )
            await self._ask(question, wait)
        elif input_id not in self._tail.answers:
            await self._wait_for_known(wait)
        if input_id not in self._tail.answers:
            await self.until(lambda: input_id in self._tail.answers)
        await self._settled("input", step)
        return self._tail.answers[input_id]

    def _digest_of(self, tool_call_id: str | None) -> str | None:
        item = self._tail.state.data["items"].get(f"tool:{tool_call_id}")
        return None if item is None else item.get("action_digest")

    def _moment(self, in_s: float | None) -> str | None:
        return None if in_s is None else timestamp(self._now() + timedelta(seconds=in_s))

    async def _ask(self, question: events.Payload, wait: WaitingFor) -> None:
        self._waiting_on.append(wait)
        await self._desk.append(question, self._wait())

    async def _wait_for_known(self, wait: WaitingFor) -> None:
        self._waiting_on.append(wait)
        if self._tail.state.status != "waiting":
            await self._desk.append(self._wait())

    async def _settled(self, kind: str, step: Step) -> None:
        """Say that the run goes on, or what it still waits for. Nothing was waited for: nothing to say."""
        if step.item is not None:
            self._journal.answered(self._journal.item(kind, step.id) or step.item)
        if not any((one.kind, one.id) == (kind, step.id) for one in self._waiting_on):
            await self._go_on()
            return
        self._waiting_on = [one for one in self._waiting_on if (one.kind, one.id) != (kind, step.id)]
        await self._desk.append(self._wait())

    def _wait(self) -> events.RunWaiting | events.RunResumed:
        """What the run waits for by now."""
        self._goes_on = True
        if self._waiting_on or self._unknown:
            return events.RunWaiting(on=tuple(self._waiting_on))
        return events.RunResumed()

    async def _go_on(self) -> None:
        """A run that an earlier attempt left waiting for what has come meanwhile goes on, and says so."""
        if self._goes_on or self._journal.is_replaying:
            return
        self._goes_on = True
        if self._tail.state.status == "waiting" and not self._is_anything_open():
            await self._desk.append(events.RunResumed())

    def _is_anything_open(self) -> bool:
        items = self._tail.state.data["items"].values()
        return any(one["status"] in {"waiting", "outcome_unknown"} for one in items)

    @asynccontextmanager
    async def waiting_for(self, tool_call_id: str, *, is_over: bool) -> AsyncIterator[None]:
        """The run waits for somebody to say what became of a call; shown as `waiting`, unless it `is_over`."""
        if is_over:
            yield
            return
        self._unknown.add(tool_call_id)
        if self._tail.state.status != "waiting":
            await self._desk.append(self._wait())
        yield
        self._unknown.discard(tool_call_id)
        await self._desk.append(self._wait())

    def check(self, *, may_clean_up: bool = False) -> None:
        """Raises RunCancelled or LeaseLost if there is no going on. Each step asks this; a long effect may, too.

        `may_clean_up`: not if the agent knows already that it is cancelled, and is using its grace.
        """
        self._journal.require_sound()
        if not self.writer.lease_ok:
            raise LeaseLost("the lease was lost")
        if self._tail.cancelled.is_set() and not (may_clean_up and self._told_cancelled):
            self._told_cancelled = True
            raise RunCancelled(self._tail.cancel_reason)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Until the log makes `condition` true. Raises RunCancelled, LeaseLost."""
        await self._tail.wait_for(
            lambda: condition() or self._tail.cancelled.is_set() or self.writer.lease_lost.is_set()
        )
        self.check()

    # -- what the agent does ------------------------------------------------------------------------------

    async def call(
        self,
        name: str,
        arguments: Any,
        effect: Effect,
        *,
        side_effect: events.SideEffect = "none",
        tool_call_id: str | None = None,
        operation_id: str | None = None,
    ) -> Any:
        """Do something to the world: `effect`, with its intent in the log before, and its outcome after.

            receipt = await ctx.call("pay", {"amount": 5}, pay, side_effect="unsafe")

        What it returns is JSON, as the log has it. In a later attempt a call that has an outcome is not run again:
        its result is returned, or its failure raised. One that was cut short runs again with the same
        `operation_id`, unless it is `unsafe`: then it waits until the worker's `reconcile` or a person says whether
        it took effect. An effect that stops being wanted, or whose run was lost, is cancelled.

        Raises:
            ToolCallFailed: the effect raised; the cause is its exception, if it ran now.
            RunCancelled, LeaseLost: as `boundary`; but an agent that was told that it is cancelled may clean up.
        """
        self.check(may_clean_up=True)
        if tool_call_id in self._used:  # it may be our own, still on its way back to us
            await self.until(lambda: self._tail.sequence >= self.writer.sequence)
        step = self._journal.step("tool", tool_call_id)
        self._used.add(step.id)
        if step.item is not None:
            self._journal.require_same_call(step.item, name, arguments)
        return await self._answered(self._request(step, name, arguments, side_effect, operation_id), effect)

    async def call_again(self, request: events.ToolRequested, effect: Effect) -> Any:
        """Run a call that stands in the log as requested (see `retries`); as `call`."""
        self.check(may_clean_up=True)
        return await self._answered(request, effect)

    async def _answered(self, request: events.ToolRequested, effect: Effect) -> Any:
        try:
            answer = await self._calls.answer(request, effect)
        except ToolCallFailed:
            await self._go_on()
            raise
        await self._go_on()
        return answer

    async def put_content(
        self, data: bytes, media_type: str = "application/octet-stream", *, restricted: bool = False
    ) -> events.ContentRef:
        """Keep content that is too large for a fact: what an artifact or a call states as its `content_ref`.

        Kept again after a restart it has the same address. Large results of `call` are kept by themselves. Raises as
        `RunWriter.put_content`.
        """
        return await self.writer.put_content(data, media_type, restricted=restricted)

    async def get_content(self, ref: events.ContentRef) -> bytes:
        """Content of this run as it came. Raises as `RunWriter.get_content`."""
        return await self.writer.get_content(ref)

    async def checkpoint(self, state: Any) -> None:
        """Keep `state`: a later attempt finds it in `checkpointed`, and may go on from there. At most 64 KiB."""
        if self._journal.reach_checkpoint():
            return
        await self._desk.append(
            events.ArtifactCompleted(
                artifact_id=self._journal.checkpoint_id, name="checkpoint", media_type=CHECKPOINT_TYPE, content=state
            )
        )

    @property
    def checkpointed(self) -> Any:
        """The last checkpoint of an earlier attempt, or the one that the run was begun with; else None.

        Reading it says that the agent goes on from there: the steps before it are not asked for any more.
        """
        return self._journal.restore()

    def require_finished(self) -> None:
        """Raises NonDeterministic if the agent, which has returned, got further before."""
        self._journal.require_finished()

    # -- what the agent states ----------------------------------------------------------------------------

    async def append(self, *facts: FactLike, expected_sequence: int | None = None) -> list[Written]:
        """Durable when this returns; see `RunWriter.append`. Facts of an earlier attempt are not stated again."""
        drafts = [draft_of(one) for one in facts]
        step = self._journal.step("append")
        known = self._journal.appended(step.id, [one.type for one in drafts])
        if known is not None:
            return [Written(event_id=event_id, sequence=sequence) for event_id, sequence in known]
        named = [
            msgspec.structs.replace(one, event_id=self._journal.event_id(step.id, ordinal))
            for ordinal, one in enumerate(drafts)
        ]
        return await self._desk.append(*named, expected_sequence=expected_sequence)

    async def append_at_head(self, fact: events.Payload, *, unless: Callable[[], bool]) -> None:
        """State a fact that holds only of the run as it is now, `unless` somebody was faster."""
        while not unless():
            try:
                await self._desk.append(fact, expected_sequence=self._tail.sequence)
            except RequestRefused as refused:
                await self._catch_up(refused)
            else:
                return

    async def _catch_up(self, refused: RequestRefused) -> None:
        """The run is further than was known here: until it is known."""
        behind = refused.problem.current_sequence
        if refused.code != "sequence_conflict" or behind is None:
            raise refused
        await self.until(lambda: self._tail.sequence >= behind)

    def publish_preview(
        self,
        kind: str,
        id: str,  # noqa: A002 - the protocol's word
        data: Any = None,
        *,
        preview_id: str,
        operation: Operation = "append",
        abandoned: bool = False,
    ) -> None:
        """May vanish; see `RunWriter.publish_preview`."""
        self.writer.publish_preview(kind, id, data, preview_id=preview_id, operation=operation, abandoned=abandoned)

    def message(
        self,
        role: str = "assistant",
        *,
        message_id: str | None = None,
        model: str | None = None,
        provider: str | None = None,
    ) -> MessageInProgress:
        """A message that grows; see `RunWriter.message`. One of an earlier attempt is `done`: ask its `content`."""
        step = self._journal.step("message", message_id)
        return MessageInProgress(
            self._desk, step.id, self._new_id("pvw"), role, model=model, provider=provider, known=self._known(step)
        )

    def reasoning(self, *, reasoning_id: str | None = None) -> ReasoningInProgress:
        """Reasoning that grows; see `RunWriter.reasoning`. One of an earlier attempt is `done`."""
        step = self._journal.step("reasoning", reasoning_id)
        return ReasoningInProgress(self._desk, step.id, self._new_id("pvw"), known=self._known(step))

    def tool(
        self,
        name: str,
        arguments: Any,
        *,
        tool_call_id: str | None = None,
        side_effect: events.SideEffect = "none",
        operation_id: str | None = None,
    ) -> ToolInProgress:
        """A tool call whose effect stands in the block; see `RunWriter.tool`.

        A block cannot be skipped. In a later attempt it runs again, so ask `done` in it, and `result` after it; one
        that is `unsafe` and began before raises AlreadyRan on entering. `call` has neither trouble.
        """
        step = self._journal.step("tool", tool_call_id)
        if step.item is not None:
            self._journal.require_same_call(step.item, name, arguments)
        request = self._request(step, name, arguments, side_effect, operation_id)
        return ToolInProgress(self._desk, request, self._new_id("pvw"), known=self._known(step))

    def requested_tool(self, request: events.ToolRequested) -> ToolInProgress:
        """A tool call that stands in the log as requested: approved, or asked for again by people; as `tool`."""
        known = self._known(self._journal.step("tool", request.tool_call_id)) or {"status": "requested"}
        return ToolInProgress(self._desk, request, self._new_id("pvw"), known=known)

    def _known(self, step: Step) -> dict[str, Any] | None:
        if step.item is None:
            return None
        known = dict(step.item)
        self._journal.answered(known)
        return known

    @staticmethod
    def _request(
        step: Step, name: str, arguments: Any, side_effect: events.SideEffect, operation_id: str | None
    ) -> events.ToolRequested:
        known = step.item or {}
        return events.ToolRequested(
            tool_call_id=step.id, name=name, arguments=arguments, action_digest=digest_of(name, arguments),
            side_effect=known.get("side_effect", "none") if step.item else side_effect,
            operation_id=known.get("operation_id") or operation_id or step.id,
        )  # fmt: skip


class _Desk:
    """The writer, as the steps of an agent use it: what the agent was told is named as the cause of what it says."""

    def __init__(self, writer: RunWriter, journal: Journal) -> None:
        self._writer = writer
        self._journal = journal
        self.publish_preview = writer.publish_preview

    async def append(self, *facts: FactLike, expected_sequence: int | None = None) -> list[Written]:
        """See `RunWriter.append`."""
        drafts = [draft_of(one) for one in facts]
        heard, first = list(self._journal.heard), _first_statement(drafts)
        if heard and first is not None:
            causes = (*drafts[first].causation_ids, *heard)
            drafts[first] = msgspec.structs.replace(drafts[first], causation_ids=causes)
        written = await self._writer.append(*drafts, expected_sequence=expected_sequence)
        if first is not None:
            del self._journal.heard[: len(heard)]
        return written


def _first_statement(drafts: Sequence[FactDraft]) -> int | None:
    return next((index for index, one in enumerate(drafts) if is_a_step(one.type)), None)
