"""What a worker learns from its own run: the log is the only way a decision reaches it."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from runlane.client.state import RunState
from runlane.client.transports.ports import Item
from runlane_contracts import events
from runlane_contracts.envelope import Fact
from runlane_contracts.events import Payload
from runlane_contracts.resume import Synced


@dataclass(frozen=True, slots=True)
class SentMessage:
    """What a person said to the run."""

    message_id: str
    content: Any
    sequence: int
    event_id: str = ""


class RunTail:
    """The run as its log tells it, fact by fact, with what people asked of its owner.

    `changed` is notified after each fact; all fields are consistent between two awaits.
    """

    def __init__(self, run_id: str) -> None:
        self.state = RunState(run_id)
        self.on_fact: Callable[[Fact], None] | None = None
        """Told of each fact, in order, once it is in `state`."""
        self.changed = asyncio.Condition()
        self.synced = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.cancel_reason: str | None = None
        self.cancel_deadline_at: str | None = None
        self.pause_requested = False
        self.lease_epoch = 0
        self.messages: deque[SentMessage] = deque()
        self.retries: deque[events.ToolRequested] = deque()
        self.resolutions: dict[tuple[str, int], events.ApprovalResolved] = {}
        """By approval and version: what was said about one version is no answer to the next."""
        self.answers: dict[str, events.InputProvided | events.InputCancelled] = {}

    @property
    def sequence(self) -> int:
        """`sequence` of the last fact that was read."""
        return self.state.sequence

    @property
    def attempt(self) -> int:
        """How many workers have had this run, this one included."""
        return int(self.state.data["run"].get("attempt", 1))

    @property
    def is_paused(self) -> bool:
        """Whether the run stands still until somebody resumes it."""
        return self.state.status == "paused"

    async def apply(self, item: Item) -> None:
        """Take one item of the reader."""
        self.state.apply(item)
        if isinstance(item, Synced):
            self.synced.set()
        if isinstance(item, Fact):
            if self.on_fact is not None:
                self.on_fact(item)
            self._note(item)
            await self.poke()

    async def poke(self) -> None:
        """Wake those who wait, to look again."""
        async with self.changed:
            self.changed.notify_all()

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Until `condition` holds; it is looked at after each fact and each `poke`."""
        async with self.changed:
            await self.changed.wait_for(condition)

    def _note(self, fact: Fact) -> None:
        if fact.type not in _NOTED:
            return
        try:
            payload = events.decode_payload(fact.type, fact.payload)
        except msgspec.MsgspecError:
            return  # it stands in the record, and asks nothing of us
        if isinstance(payload, Payload):
            self._take(fact, payload)

    def _take(self, fact: Fact, payload: Payload) -> None:
        by_service = fact.lease_epoch == 0
        match payload:
            case events.RunLeased():
                self.lease_epoch = payload.lease_epoch
            case events.RunCancelRequested():
                self.cancel_reason, self.cancel_deadline_at = payload.reason, payload.deadline_at
                self.cancelled.set()
            case events.RunPauseRequested():
                self.pause_requested = True
            case events.RunPaused():
                self.pause_requested = False
            case events.RunResumed() if by_service:
                self.pause_requested = False
            case events.MessageCompleted(role="user") if by_service:
                self.messages.append(SentMessage(payload.message_id, payload.content, fact.sequence, fact.event_id))
            case events.ToolRequested() if by_service and payload.retry_of is not None:
                self.retries.append(payload)
            case events.ApprovalResolved():
                self.resolutions[payload.approval_id, payload.version] = payload
            case events.InputProvided() | events.InputCancelled():
                self.answers[payload.input_id] = payload
            case _:
                pass


_NOTED = frozenset({
    "run.leased", "run.cancel_requested", "run.pause_requested", "run.paused", "run.resumed", "message.completed",
    "tool.requested", "approval.resolved", "input.provided", "input.cancelled",
})  # fmt: skip
