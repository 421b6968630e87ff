"""Take runs of a pool and execute them, a few at a time.

    async def agent(ctx: RunContext) -> str:
        async with ctx.tool("list_items", {"basket": 7}) as call:
            call.complete(await list_items(7))
        await ctx.boundary()
        return "An apple and a pear."

    await Worker(HttpTransport(url, token), pool="default", agent=agent).run()

What the agent returns is the run's output; an exception fails the run.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, assert_never

import msgspec

from runlane.client.backoff import Backoff, BackoffPolicy
from runlane.client.context import RunContext
from runlane.client.effects import Reconcile
from runlane.client.errors import LeaseLost, RequestRefused, RunCancelled, RunlaneError, Unreachable
from runlane.client.reader import RunReader
from runlane.client.redact import Redactor, TokenRedactor
from runlane.client.run_tail import RunTail
from runlane.client.transports.ports import Claim, SharedWork, WorkTransport
from runlane.client.writer import DEFAULT_TTL_S, RunWriter
from runlane.kernel.clock import NewId, Now, new_id, utc_now
from runlane_contracts import events
from runlane_contracts.codec import parse_timestamp

Agent = Callable[[RunContext], Awaitable[Any]]
"""Does the work of one run. What it returns is the run's output."""

CLAIM_WAIT_S = 5.0
CLAIM_RETRY = BackoffPolicy(initial_s=0.2, max_s=5.0)
FIRST_LOOK_WITHIN_S = 30.0
"""A worker that cannot see its own run does not start it."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Completed:
    output: Any


@dataclass(frozen=True, slots=True)
class _Failed:
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class _Cancelled:
    reason: str | None


@dataclass(frozen=True, slots=True)
class _Abandoned:
    reason: str


_Ending = _Completed | _Failed | _Cancelled | _Abandoned
_Taken = tuple[Claim, WorkTransport]


class Worker:
    """Executes runs of one pool.

    Promises: at most `concurrency` runs at once; each under a lease that fails closed, so an agent whose run was
    taken is cancelled and can write nothing; a cancel request reaches the agent at its next boundary, and ends
    it shortly before its grace is over; connections that break are opened again. `stop` takes no new run, gives
    the running ones `stop_within_s` to finish, and gives back what is left. A run that lost its worker is begun
    anew, and what it has done is not done again: see `RunContext.call`. `reconcile` is asked first what became of an
    unsafe call that was cut short. Over `NatsPools` it serves several tenants, each its part.
    """

    def __init__(  # noqa: PLR0913 - the options of a public constructor, by keyword
        self,
        transport: WorkTransport | SharedWork,
        *,
        agent: Agent,
        pool: str = "default",
        worker_id: str | None = None,
        concurrency: int = 4,
        ttl_s: float = DEFAULT_TTL_S,
        claim_wait_s: float = CLAIM_WAIT_S,
        stop_within_s: float = 30.0,
        reconcile: Reconcile | None = None,
        redactor: Redactor | type[TokenRedactor] | None = TokenRedactor,
        new_id: NewId = new_id,
        now: Now = utc_now,
    ) -> None:
        self.worker_id = worker_id or new_id("wrk")
        self.executed = 0
        """Runs that were taken and are done with, however they ended."""
        self._transport = transport
        self._agent = agent
        self._pool = pool
        self._slots = asyncio.Semaphore(concurrency)
        self._ttl_s = ttl_s
        self._claim_wait_s = claim_wait_s
        self._stop_within_s = stop_within_s
        self._reconcile = reconcile
        self._redactor = redactor
        self._now = now
        self._stopping = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._refused: RequestRefused | None = None

    def stop(self) -> None:
        """Take no new run; `run` returns when the running ones are done or given back, and no claim is open."""
        self._stopping.set()

    async def run(self) -> None:
        """Work until `stop` is called or this task is cancelled.

        Raises:
            RequestRefused: the pool may not be worked for; runs that were going on have finished.
        """
        async with asyncio.TaskGroup() as tasks:
            backoff = Backoff(CLAIM_RETRY)
            while not self._stopping.is_set():
                await self._slots.acquire()
                taken = await self._claim(backoff)
                if taken is None:
                    self._slots.release()
                    continue
                task = tasks.create_task(self._hold_slot(*taken), name=f"run {taken[0].run_id}")
                self._running.add(task)
                task.add_done_callback(self._running.discard)
            await self._drain()
        if self._refused is not None:
            raise self._refused

    async def _drain(self) -> None:
        if not self._running:
            return
        _, late = await asyncio.wait(self._running, timeout=self._stop_within_s)
        for task in late:
            task.cancel()

    async def _claim(self, backoff: Backoff) -> _Taken | None:
        # Not cut short by `stop`: the server may be about to give us a run, and nobody else would get it for a while.
        try:
            taken = await self._take()
        except (Unreachable, RequestRefused) as exc:
            await self._back_off(exc, backoff)
            return None
        backoff.healthy()
        if taken is not None and self._stopping.is_set():
            await self._give_back(*taken)
            return None
        return taken

    async def _take(self) -> _Taken | None:
        source, who = self._transport, self.worker_id
        if isinstance(source, SharedWork):
            return await source.claim_any(self._pool, worker_id=who, ttl_s=self._ttl_s, wait_s=self._claim_wait_s)
        claim = await source.claim(self._pool, worker_id=who, ttl_s=self._ttl_s, wait_s=self._claim_wait_s)
        return None if claim is None else (claim, source)

    async def _give_back(self, claim: Claim, transport: WorkTransport) -> None:
        with suppress(Unreachable, RequestRefused):  # then it runs out by itself
            await transport.release_lease(claim.run_id, worker_id=self.worker_id, lease_epoch=claim.lease_epoch)

    async def _back_off(self, exc: Unreachable | RequestRefused, backoff: Backoff) -> None:
        if isinstance(exc, RequestRefused) and not exc.retryable:
            self._refused = exc  # asking again is of no use; what runs may finish
            self.stop()
            return
        after_s = exc.retry_after_s if isinstance(exc, RequestRefused) else None
        delay_s = backoff.next_delay_s(now_s=asyncio.get_running_loop().time(), at_least_s=after_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._stopping.wait()

    async def _hold_slot(self, claim: Claim, transport: WorkTransport) -> None:
        try:
            await self._execute(claim, transport)
        except RunlaneError as exc:
            _log.warning("gave up run %s: %s", claim.run_id, exc)
        except Exception as exc:  # noqa: BLE001 - one run's trouble ends that run; the worker goes on
            _log.error("gave up run %s: %s", claim.run_id, type(exc).__name__)
            _log.debug("its traceback", exc_info=exc)
        finally:
            self.executed += 1
            self._slots.release()

    # -- one run ------------------------------------------------------------------------------------------

    async def _execute(self, claim: Claim, transport: WorkTransport) -> None:
        writer = RunWriter.attach(
            transport, claim.run_id, worker_id=self.worker_id, ttl_s=self._ttl_s,
            lease_epoch=claim.lease_epoch, redactor=self._redactor, now=self._now,
        )  # fmt: skip
        async with writer:
            tail = RunTail(claim.run_id)
            context = RunContext(claim, writer, tail, reconcile=self._reconcile, now=self._now)
            ending = await self._drive(context, tail, transport)
            await self._state_ending(writer, ending)

    async def _drive(self, context: RunContext, tail: RunTail, transport: WorkTransport) -> _Ending:
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(self._follow(context, tail, transport))
            working = tasks.create_task(self._work(context, tail))
            guarding = tasks.create_task(self._guard(context, tail, working))
            try:
                await asyncio.wait({working})
            finally:
                following.cancel()
                guarding.cancel()
                working.cancel()
        if working.cancelled():
            return self._why_stopped(context, tail)
        return working.result()

    @staticmethod
    def _why_stopped(context: RunContext, tail: RunTail) -> _Ending:
        if tail.cancelled.is_set() and context.writer.lease_ok:
            return _Cancelled(tail.cancel_reason)
        return _Abandoned("the lease was lost")

    async def _work(self, context: RunContext, tail: RunTail) -> _Ending:
        async with asyncio.timeout(FIRST_LOOK_WITHIN_S):
            await tail.wait_for(lambda: tail.lease_epoch >= context.writer.lease_epoch)
        if tail.state.status == "created":
            await context.writer.append(events.RunStarted())
        try:
            output = await self._agent(context)
            context.require_finished()
            return _Completed(output)
        except RunCancelled as cancelled:
            return _Cancelled(cancelled.reason)
        except LeaseLost as lost:
            return _Abandoned(str(lost))
        except Exception as exc:  # noqa: BLE001 - whatever the agent raises ends its run, not the worker
            # The text of a foreign exception may hold anything: it goes, masked, into the run's record only.
            _log.warning("the agent of run %s failed: %s", context.run_id, _code_of(exc))
            _log.debug("its traceback", exc_info=exc)
            return _Failed(_code_of(exc), str(exc)[:2000])

    async def _follow(self, context: RunContext, tail: RunTail, transport: WorkTransport) -> None:
        """Tail the run; who cannot see decisions any more must not go on."""
        try:
            async with RunReader(transport, context.run_id, from_="start", previews=False) as reader:
                async for item in reader:
                    await tail.apply(item)
                    if tail.lease_epoch > context.writer.lease_epoch:
                        context.writer.abandon("another worker has the run")
            if not context.writer.is_over:
                context.writer.abandon("the run was ended")
        except RunlaneError as exc:
            context.writer.abandon(f"the run cannot be followed: {exc}")
        await tail.poke()

    async def _guard(self, context: RunContext, tail: RunTail, working: asyncio.Task[_Ending]) -> None:
        """Cancel the agent when its lease is lost, or when its time to stop by itself is almost over."""
        lost = asyncio.ensure_future(context.writer.lease_lost.wait())
        asked = asyncio.ensure_future(tail.cancelled.wait())
        try:
            await asyncio.wait({lost, asked}, return_when=asyncio.FIRST_COMPLETED)
            if not lost.done():
                await asyncio.wait({lost}, timeout=self._grace_s(tail))
            await tail.poke()
            working.cancel()
        finally:
            lost.cancel()
            asked.cancel()

    def _grace_s(self, tail: RunTail) -> float:
        if tail.cancel_deadline_at is None:
            return 0.0
        left_s = (parse_timestamp(tail.cancel_deadline_at) - self._now()).total_seconds()
        return max(0.0, left_s - min(2.0, left_s * 0.2))

    async def _state_ending(self, writer: RunWriter, ending: _Ending) -> None:
        if writer.is_over or not writer.lease_ok:
            return
        match ending:
            case _Completed(output):
                await self._complete(writer, output)
            case _Failed(code, message):
                await writer.fail(code, message)
            case _Cancelled(reason):
                await writer.cancelled(reason)
            case _Abandoned(reason):
                _log.warning("run %s was given up: %s", writer.run_id, reason)
            case _:
                assert_never(ending)

    @staticmethod
    async def _complete(writer: RunWriter, output: Any) -> None:
        try:
            await writer.complete(output)
        except (TypeError, ValueError, msgspec.MsgspecError) as exc:
            await writer.fail("output_unfit", f"what the agent returned is not JSON: {exc}")
        except RequestRefused as refused:
            if writer.is_over or refused.code not in {"invalid_request", "payload_too_large"}:
                raise
            await writer.fail("output_unfit", str(refused))


def _code_of(exc: Exception) -> str:
    code = getattr(exc, "code", None)
    return code if isinstance(code, str) and code else type(exc).__name__
