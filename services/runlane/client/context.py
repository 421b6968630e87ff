"""What an agent is given: its run, to write to, and what people decide about it."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from runlane.client.errors import LeaseLost, RequestRefused, RunCancelled
from runlane.client.items import MessageInProgress, ReasoningInProgress, ToolInProgress
from runlane.client.run_tail import RunTail, SentMessage
from runlane.client.state import RunState
from runlane.client.transports.ports import Claim, Written
from runlane.client.writer import FactLike, RunWriter
from runlane.kernel.clock import NewId, Now, new_id, utc_now
from runlane_contracts import events
from runlane_contracts.canonical import sha256_of
from runlane_contracts.codec import timestamp
from runlane_contracts.commands import derived_id
from runlane_contracts.events import WaitingFor
from runlane_contracts.previews import Operation


class RunContext:
    """One run, in the hands of one agent.

    `append`, `message`, `tool`, `publish_preview` … are those of `writer`. `boundary()` is where people reach the
    agent: call it between steps. After a worker was lost the agent starts anew with `attempt` 2, 3 …; `state`
    holds what happened before, and an approval that was asked for is not asked for again.
    """

    def __init__(
        self, claim: Claim, writer: RunWriter, tail: RunTail, *, new_id: NewId = new_id, now: Now = utc_now
    ) -> None:
        self.run_id = claim.run_id
        self.agent = claim.agent
        self.input = claim.input
        self.writer = writer
        self._tail = tail
        self._new_id = new_id
        self._now = now
        self._waiting_on: list[WaitingFor] = []

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
        self._check()
        while self._tail.pause_requested or self._tail.is_paused:
            if not self._tail.is_paused:
                await self._pause()
            await self._until(lambda: not self._tail.is_paused and not self._tail.pause_requested)
        return self.messages()

    def messages(self) -> list[SentMessage]:
        """What people said since this was last asked, without waiting."""
        said = list(self._tail.messages)
        self._tail.messages.clear()
        return said

    def retries(self) -> list[events.ToolRequested]:
        """Tool calls that people asked to try again. Run each with `retried_tool`."""
        asked = list(self._tail.retries)
        self._tail.retries.clear()
        return asked

    async def _pause(self) -> None:
        # Only if nobody took the request back meanwhile: else the run would stand still with nobody to ask why.
        try:
            await self.writer.append(events.RunPaused(), expected_sequence=self._tail.sequence)
        except RequestRefused as refused:
            behind = refused.problem.current_sequence
            if refused.code != "sequence_conflict" or behind is None:
                raise
            await self._until(lambda: self._tail.sequence >= behind)
            return
        await self._until(lambda: self._tail.is_paused or not self._tail.pause_requested)

    async def approval(
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
    ) -> events.ApprovalResolved:
        """Ask people, and wait for what they decide.

        Asked once: the same `approval_id`, or the same tool call with the same digest, finds the question that is
        open or the decision that was made, also in a later attempt. Act only on `approved`, or on `modified` with
        the `data` of the decision; `rejected`, `expired` and `revoked` mean no.

        Raises:
            RunCancelled, LeaseLost: as `boundary`.
        """
        self._check()
        digest = action_digest or self._digest_of(tool_call_id) or sha256_of({"description": description, "data": data})
        if approval_id is None:
            approval_id = derived_id("apr", self.run_id, tool_call_id, digest) if tool_call_id else self._new_id("apr")
        known = self._tail.state.data["items"].get(f"approval:{approval_id}")
        if known is None:
            question = events.ApprovalRequested(
                approval_id=approval_id, tool_call_id=tool_call_id, description=description, risk=risk, data=data,
                editable=editable, version=1, action_digest=digest, expires_at=self._moment(expires_in_s),
            )  # fmt: skip
            await self._ask(question, WaitingFor(kind="approval", id=approval_id))
        elif approval_id not in self._tail.resolutions:
            await self._wait_for_known(WaitingFor(kind="approval", id=approval_id))
        if approval_id not in self._tail.resolutions:
            await self._until(lambda: approval_id in self._tail.resolutions)
        await self._settled("approval", approval_id)
        return self._tail.resolutions[approval_id]

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
        self._check()
        input_id = input_id or self._new_id("inp")
        wait = WaitingFor(kind="input", id=input_id)
        if f"input:{input_id}" not in self._tail.state.data["items"]:
            question = events.InputRequested(
                input_id=input_id, prompt=prompt, schema=schema, expires_at=self._moment(expires_in_s)
            )
            await self._ask(question, wait)
        elif input_id not in self._tail.answers:
            await self._wait_for_known(wait)
        if input_id not in self._tail.answers:
            await self._until(lambda: input_id in self._tail.answers)
        await self._settled("input", input_id)
        return self._tail.answers[input_id]

    def _digest_of(self, tool_call_id: str | None) -> str | None:
        item = self._tail.state.data["items"].get(f"tool:{tool_call_id}")
        return None if item is None else item.get("action_digest")

    def _moment(self, in_s: float | None) -> str | None:
        return None if in_s is None else timestamp(self._now() + timedelta(seconds=in_s))

    async def _ask(self, question: events.Payload, wait: WaitingFor) -> None:
        self._waiting_on.append(wait)
        await self.writer.append(question, events.RunWaiting(on=tuple(self._waiting_on)))

    async def _wait_for_known(self, wait: WaitingFor) -> None:
        self._waiting_on.append(wait)
        if self._tail.state.status != "waiting":
            await self.writer.append(events.RunWaiting(on=tuple(self._waiting_on)))

    async def _settled(self, kind: str, id_: str) -> None:
        """Say that the run goes on, or what it still waits for. Nothing was waited for: nothing to say."""
        if not any((one.kind, one.id) == (kind, id_) for one in self._waiting_on):
            return
        self._waiting_on = [one for one in self._waiting_on if (one.kind, one.id) != (kind, id_)]
        rest = tuple(self._waiting_on)
        await self.writer.append(events.RunWaiting(on=rest) if rest else events.RunResumed())

    def _check(self) -> None:
        if self._tail.cancelled.is_set():
            raise RunCancelled(self._tail.cancel_reason)
        if not self.writer.lease_ok:
            raise LeaseLost("the lease was lost")

    async def _until(self, condition: Callable[[], bool]) -> None:
        await self._tail.wait_for(
            lambda: condition() or self._tail.cancelled.is_set() or self.writer.lease_lost.is_set()
        )
        self._check()

    # -- what the agent states ----------------------------------------------------------------------------

    async def append(self, *facts: FactLike, expected_sequence: int | None = None) -> list[Written]:
        """Durable when this returns; see `RunWriter.append`."""
        return await self.writer.append(*facts, expected_sequence=expected_sequence)

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

    def message(self, role: str = "assistant", *, message_id: str | None = None) -> MessageInProgress:
        """A message that grows; see `RunWriter.message`."""
        return self.writer.message(role, message_id=message_id)

    def reasoning(self, *, reasoning_id: str | None = None) -> ReasoningInProgress:
        """Reasoning that grows; see `RunWriter.reasoning`."""
        return self.writer.reasoning(reasoning_id=reasoning_id)

    def tool(
        self,
        name: str,
        arguments: Any,
        *,
        tool_call_id: str | None = None,
        side_effect: events.SideEffect = "none",
        operation_id: str | None = None,
    ) -> ToolInProgress:
        """A tool call; see `RunWriter.tool`."""
        return self.writer.tool(
            name, arguments, tool_call_id=tool_call_id, side_effect=side_effect, operation_id=operation_id
        )

    def requested_tool(self, request: events.ToolRequested) -> ToolInProgress:
        """A tool call that stands in the log as requested: approved, or asked for again by people."""
        return self.writer.requested_tool(request)
