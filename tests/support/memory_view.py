"""A VIEW stream in memory."""

from collections.abc import AsyncIterator, Sequence

from runlane.kernel.errors import Retryable
from runlane.projector.fold import ViewMessage
from runlane.projector.view import ViewState
from runlane_contracts.codec import encode
from runlane_contracts.envelope import Commit
from runlane_contracts.subjects import RunAddress

PAGE = 7


class MemoryView:
    """What a test put into it, and how often a run was read."""

    def __init__(self, stream: str = "RL_VIEW_0", epoch: str = "e1") -> None:
        self.stream = stream
        self.epoch = epoch
        self.messages: list[ViewMessage] = []
        self.run_reads = 0
        self.is_reachable = True

    def put(self, *commits: Commit) -> list[ViewMessage]:
        """Store commits; returns them as messages."""
        return [
            self.put_raw(
                RunAddress(one.tenant_id, one.run_id), encode(one), first=one.first_sequence, last=one.last_sequence
            )
            for one in commits
        ]

    def put_raw(self, run: RunAddress, data: bytes, *, first: int = 0, last: int = 0) -> ViewMessage:
        """Store any message."""
        message = ViewMessage(run, len(self.messages) + 1, first, last, data)
        self.messages.append(message)
        return message

    def cut(self, stream_seq: int) -> None:
        """Lose one message."""
        self.messages = [one for one in self.messages if one.stream_seq != stream_seq]

    def make_anew(self, epoch: str) -> None:
        """Lose everything."""
        self.epoch = epoch
        self.messages = []

    async def state(self) -> ViewState:
        """What the stream holds now."""
        self._reach()
        return ViewState(self.epoch, 1, self.messages[-1].stream_seq if self.messages else 0)

    async def read(self, *, after: int, through: int) -> AsyncIterator[Sequence[ViewMessage]]:
        """Every message after a stream sequence up to another."""
        self._reach()
        found = [one for one in self.messages if after < one.stream_seq <= through]
        for start in range(0, len(found), PAGE):
            yield found[start : start + PAGE]

    async def read_run(self, run: RunAddress, *, through: int) -> AsyncIterator[Sequence[ViewMessage]]:
        """Every message of one run up to a stream sequence."""
        self._reach()
        self.run_reads += 1
        found = [one for one in self.messages if one.run == run and one.stream_seq <= through]
        for start in range(0, len(found), PAGE):
            yield found[start : start + PAGE]

    def _reach(self) -> None:
        if not self.is_reachable:
            raise Retryable("the broker does not answer")
