"""Whether a run exists, said only when it is certain: a read right after a write never misses the run.

A run that the view does not hold may be one that the redaction filter has not reached yet. So before "no such
run" is said, the view must have derived everything that was in the log when the question came.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from runlane.edge_gateway.hub import Hubs, RunAbsent, RunHub, TooManyRuns
from runlane.edge_gateway.view import View
from runlane.hosting.http import ProblemError
from runlane_contracts.cursor import Position
from runlane_contracts.ids import is_id
from runlane_contracts.problems import Code
from runlane_contracts.subjects import RunAddress

WAIT_S = 5.0
NO_SUCH_RUN = "no such run"


class Presence:
    """Finds runs, and waits for those that are on their way."""

    def __init__(self, view: View, hubs: Hubs, *, wait_s: float = WAIT_S, fresh_wait_s: float = 0.0) -> None:
        self._view = view
        self._hubs = hubs
        self._wait_s = wait_s
        self._fresh_wait_s = fresh_wait_s

    async def head(self, run: RunAddress, *, min_sequence: int = 0) -> Position:
        """Where the run is, once it has reached `min_sequence`.

        Who names none still reads what was written before the question came, unless the view is further behind than
        `fresh_wait_s`: then what there is.

        Raises:
            ProblemError: `run_not_found`, `not_yet_visible`.
            Retryable: the broker does not answer.
        """
        deadline = self._deadline()
        _check(run)
        if min_sequence == 0 and self._fresh_wait_s > 0:
            await self._view.settle(run, within_s=self._fresh_wait_s)
        found = await self._view.head(run)
        if found is None:
            await self._settle(run, deadline)
            found = await self._view.head(run)
        if found is None:
            raise ProblemError(Code.RUN_NOT_FOUND, NO_SUCH_RUN)
        if found.last_sequence >= min_sequence:
            return found.position
        async with self._hubs.use(run) as hub:
            await self._reach(hub, min_sequence, deadline)
            return hub.head

    @asynccontextmanager
    async def judging(self, run: RunAddress) -> AsyncIterator[None]:
        """While it is judged what a request says: of a run that does not exist nothing is wrong but that.

        Raises:
            ProblemError: `run_not_found` or `not_yet_visible` instead of what was raised within.
        """
        try:
            yield
        except ProblemError:
            await self.head(run)
            raise

    @asynccontextmanager
    async def hub(self, run: RunAddress, *, min_sequence: int = 0) -> AsyncIterator[RunHub]:
        """The run's hub, once it has reached `min_sequence`. Raises as `head` does, and `overloaded`."""
        deadline = self._deadline()
        _check(run)
        try:
            using = self._hubs.use(run)
            try:
                hub = await using.__aenter__()
            except RunAbsent:
                await self._settle(run, deadline)
                using = self._hubs.use(run)
                hub = await using.__aenter__()
        except RunAbsent as exc:
            raise ProblemError(Code.RUN_NOT_FOUND, NO_SUCH_RUN) from exc
        except TooManyRuns as exc:
            raise ProblemError(Code.OVERLOADED, "too many runs are watched here", retry_after_s=2.0) from exc
        try:
            await self._reach(hub, min_sequence, deadline)
            yield hub
        finally:
            await using.__aexit__(None, None, None)

    async def _settle(self, run: RunAddress, deadline: float) -> None:
        if not await self._view.settle(run, within_s=max(0.0, deadline - asyncio.get_running_loop().time())):
            raise ProblemError(Code.NOT_YET_VISIBLE, "the view is behind the log; whether the run exists is not known")

    async def _reach(self, hub: RunHub, sequence: int, deadline: float) -> None:
        left_s = max(0.0, deadline - asyncio.get_running_loop().time())
        if not await hub.reached(sequence, within_s=left_s):
            raise ProblemError(Code.NOT_YET_VISIBLE, f"the view has not reached sequence {sequence}")

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._wait_s


def _check(run: RunAddress) -> None:
    if not is_id(run.run_id):
        raise ProblemError(Code.RUN_NOT_FOUND, NO_SUCH_RUN)
