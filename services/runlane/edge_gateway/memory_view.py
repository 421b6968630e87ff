"""The view in memory: the twin that tests use. Can lose live messages, cut holes and be rebuilt."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from runlane.edge_gateway.view import OnCommit, OnPreviews, Page, StreamStart, ViewCommit
from runlane_contracts.codec import encode
from runlane_contracts.cursor import Position
from runlane_contracts.envelope import Commit, Fact
from runlane_contracts.subjects import RunAddress

D = TypeVar("D")


class MemoryView:
    """A `View` and a `Feed`. `deliver_live` decides which commits are also told live.

    `trouble` is called with the name of each read and may raise; `lag` is how many of a run's newest commits pages
    do not show yet, as a replica that is behind.
    """

    def __init__(self, *, epoch: str = "e1", deliver_live: Callable[[ViewCommit], bool] = lambda _commit: True) -> None:
        self.epoch = epoch
        self.deliver_live = deliver_live
        self.trouble: Callable[[str], None] = lambda _read: None
        self.lag = 0
        self.pages_read = 0
        self._last_seq = 0
        self._runs: dict[RunAddress, list[ViewCommit]] = {}
        self._on_commit: dict[RunAddress, list[OnCommit]] = {}
        self._on_previews: dict[RunAddress, list[OnPreviews]] = {}
        self._pending = 0
        self._settled = asyncio.Event()

    # --- what a filter would do ---------------------------------------------------------------------------

    def store(self, run: RunAddress, facts: Sequence[Fact]) -> ViewCommit:
        """Store one commit, then tell it live."""
        commit = Commit(
            commit_id=f"com_{self._last_seq + 1}", tenant_id=run.tenant_id, run_id=run.run_id,
            first_sequence=facts[0].sequence, facts=tuple(facts),
        )  # fmt: skip
        self._last_seq += 1
        stored = ViewCommit(self.epoch, self._last_seq, facts[0].sequence, facts[-1].sequence, encode(commit))
        self._runs.setdefault(run, []).append(stored)
        if self.deliver_live(stored):
            self.tell(run, stored)
        return stored

    def tell(self, run: RunAddress, commit: ViewCommit) -> None:
        """Deliver a commit live, whatever is stored."""
        for deliver in tuple(self._on_commit.get(run, ())):
            deliver(commit)

    def preview(self, run: RunAddress, body: bytes) -> None:
        """Deliver one batch of previews."""
        for deliver in tuple(self._on_previews.get(run, ())):
            deliver(body)

    def cut(self, run: RunAddress, *, first_sequence: int) -> None:
        """Remove the commit that begins with a sequence."""
        self._runs[run] = [commit for commit in self._runs[run] if commit.first_sequence != first_sequence]

    def rebuild(self, epoch: str) -> None:
        """Store everything again as another incarnation of the stream, with other stream sequences."""
        self.epoch = epoch
        self._last_seq += 7
        for run, commits in self._runs.items():
            again = []
            for commit in commits:
                self._last_seq += 1
                again.append(ViewCommit(
                    epoch, self._last_seq, commit.first_sequence, commit.last_sequence, commit.body
                ))  # fmt: skip
            self._runs[run] = again

    def fall_behind(self) -> None:
        """From now on the log holds something that the view does not, until `catch_up`."""
        self._pending += 1
        self._settled.clear()

    def catch_up(self) -> None:
        """The view holds everything again."""
        self._pending = 0
        self._settled.set()

    def subscribers(self, run: RunAddress) -> int:
        """How many listen to a run's commits or previews."""
        return len(self._on_commit.get(run, ())) + len(self._on_previews.get(run, ()))

    # --- View ---------------------------------------------------------------------------------------------

    async def head(self, run: RunAddress) -> ViewCommit | None:
        """See `View.head`."""
        await self._asked("head")
        commits = self._runs.get(run)
        return commits[-1] if commits else None

    async def page(self, run: RunAddress, *, start: StreamStart, max_bytes: int) -> Page:
        """See `View.page`."""
        await self._asked("page")
        self.pages_read += 1
        first = start.stream_seq if start.epoch == self.epoch else 1
        shown = self._runs.get(run, [])
        waiting = [commit for commit in shown[: len(shown) - self.lag] if commit.stream_seq >= first]
        taken: list[ViewCommit] = []
        size = 0
        for commit in waiting:
            if taken and size + len(commit.body) > max_bytes:
                break
            taken.append(commit)
            size += len(commit.body)
        return Page(taken, exhausted=len(taken) == len(waiting))

    async def newer(self, known: Mapping[RunAddress, Position]) -> Mapping[RunAddress, int]:
        """See `View.newer`."""
        await self._asked("newer")
        heads = {run: self._runs[run][-1].last_sequence for run in known if self._runs.get(run)}
        return {run: last for run, last in heads.items() if last > known[run].sequence}

    async def settle(self, run: RunAddress, *, within_s: float) -> bool:  # noqa: ARG002
        """See `View.settle`."""
        if not self._pending:
            return True
        try:
            async with asyncio.timeout(within_s):
                await self._settled.wait()
        except TimeoutError:
            return False
        return True

    async def ends(self) -> Mapping[str, StreamStart]:
        """See `View.ends`."""
        await self._asked("ends")
        if self._pending:
            await self._settled.wait()
        return {"memory": StreamStart(self.epoch, self._last_seq)}

    async def _asked(self, read: str) -> None:
        await asyncio.sleep(0)
        self.trouble(read)

    # --- Feed ---------------------------------------------------------------------------------------------

    async def commits(self, run: RunAddress, deliver: OnCommit) -> "_Listening":
        """See `Feed.commits`."""
        await asyncio.sleep(0)
        return _listen(self._on_commit, run, deliver)

    async def previews(self, run: RunAddress, deliver: OnPreviews) -> "_Listening":
        """See `Feed.previews`."""
        await asyncio.sleep(0)
        return _listen(self._on_previews, run, deliver)


class _Listening:
    def __init__(self, remove: Callable[[], None]) -> None:
        self._remove = remove

    async def close(self) -> None:
        self._remove()


def _listen(where: dict[RunAddress, list[D]], run: RunAddress, deliver: D) -> _Listening:
    where.setdefault(run, []).append(deliver)

    def remove() -> None:
        if deliver in where.get(run, ()):
            where[run].remove(deliver)
            if not where[run]:
                del where[run]

    return _Listening(remove)
