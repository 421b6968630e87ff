"""Many runs: which are due, one after the other, one pass at a time."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Protocol

from msgspec import Struct

from runlane.hosting.telemetry import about_run
from runlane.kernel.clock import Now
from runlane.kernel.errors import KernelError
from runlane.object_store.store import Objects
from runlane.read_store.rows import FinishedRow
from runlane.retention.compactor import Compactor, Report, failed
from runlane.retention.policy import Kept, Policy
from runlane_contracts.archives import pending_path
from runlane_contracts.codec import parse_timestamp, timestamp
from runlane_contracts.envelope import Actor
from runlane_contracts.lifecycle import Refused
from runlane_contracts.problems import Code
from runlane_contracts.subjects import RunAddress

log = logging.getLogger(__name__)

PAGE = 100
OPERATOR = Actor(kind="user", id="operator")


class Finished(Protocol):
    """Knows which runs are over. The read store, in production."""

    async def finished_runs(
        self, *, ended_before: str, limit: int = PAGE, after: FinishedRow | None = None
    ) -> list[FinishedRow]:
        """Those that ended before a moment and are whole in the log, the first one first. Raises Retryable."""
        ...


class Summary(Struct, frozen=True, kw_only=True):
    """What one pass did. `runs`: one report for each run it touched, or would."""

    compacted: int = 0
    failed: int = 0
    due: int = 0
    dry_run: bool = False
    runs: tuple[Report, ...] = ()


class RetentionStats:
    """Counts since the start, for health and metrics."""

    def __init__(self) -> None:
        self.compacted = 0
        self.erased = 0
        self.failed = 0
        self.passes = 0
        self.trouble = ""


class Retention:
    """Compacts what is due and erases what an operator names. One thing at a time: a second is refused."""

    def __init__(
        self,
        compactor: Compactor,
        finished: Finished,
        objects: Objects,
        *,
        policy: Policy,
        now: Now,
        max_runs: int,
        settle: Callable[[], Awaitable[None]],
    ) -> None:
        self.stats = RetentionStats()
        self._compactor, self._finished, self._objects = compactor, finished, objects
        self._settle = settle
        self._policy, self._now, self._max_runs = policy, now, max_runs
        self._busy = asyncio.Lock()

    async def compact(self, *, older_than: timedelta | None = None, dry_run: bool = False) -> Summary:
        """Every run that is due, and every one that somebody began and did not finish.

        `older_than`: this age instead of that of each class, but for what is kept for ever.

        Raises:
            Refused: `invalid_state`, another pass is under way here.
            Retryable: the read store or the object store does not answer.
        """
        async with self._alone():
            policy = self._policy if older_than is None else self._policy.overridden(older_than)
            await self._settle()
            reports = [] if dry_run else await self._resume_all()
            due = await self._due(policy)
            for run, kept in due:
                if dry_run:
                    reports.append(Report(tenant_id=run.tenant_id, run_id=run.run_id, outcome="due", detail=kept.text))
                else:
                    reports.append(await self._one(run, kept.text))
            self.stats.passes += 1
            if not any(one.outcome == "failed" for one in reports):
                self.stats.trouble = ""
            return Summary(
                compacted=sum(one.outcome in {"compacted", "already"} for one in reports),
                failed=sum(one.outcome == "failed" for one in reports),
                due=len(due), dry_run=dry_run, runs=tuple(reports),
            )  # fmt: skip

    async def compact_run(self, run: RunAddress) -> Report:
        """One run now, whatever its age. Raises Refused, and what `Compactor.compact` raises."""
        async with self._alone():
            return await self._marked(run, lambda: self._compactor.compact(run, "by an operator"))

    async def erase(self, run: RunAddress, items: tuple[str, ...], reason: str) -> Report:
        """Remove the content of a run or of some of its items. Raises Refused, and what `Compactor.erase` raises."""
        async with self._alone():
            report = await self._marked(run, lambda: self._compactor.erase(run, items, reason, OPERATOR))
            self.stats.erased += report.outcome == "erased"
            return report

    # --- one at a time --------------------------------------------------------------------------------------

    def _alone(self) -> "_Alone":
        return _Alone(self._busy)

    async def _one(self, run: RunAddress, policy: str) -> Report:
        try:
            return await self._marked(run, lambda: self._compactor.compact(run, policy))
        except Exception as exc:  # noqa: BLE001 - one run must not keep the others from being archived
            self.stats.failed += 1
            report = failed(run, exc)
            self.stats.trouble = f"{run.run_id}: {report.code}"
            log.warning("%s/%s is not archived: %s %s", *run, report.code, report.detail, extra=about_run(run))
            return report

    async def _marked(self, run: RunAddress, work: Callable[[], Awaitable[Report]]) -> Report:
        """With a mark in the object store while it lasts: who dies in between is found by the next pass."""
        path = pending_path(run)
        await self._objects.put(path, b"")
        try:
            report = await work()
        except Refused:
            await self._objects.delete(path)
            raise
        await self._objects.delete(path)
        self.stats.compacted += report.outcome == "compacted"
        return report

    async def _resume_all(self) -> list[Report]:
        reports = []
        for path in await self._objects.list("pending"):
            _, tenant_id, run_id = path.split("/", 2)
            run = RunAddress(tenant_id, run_id)
            try:
                report = await self._compactor.resume(run)
                await self._objects.delete(path)
            except Exception as exc:  # noqa: BLE001 - as above
                self.stats.failed += 1
                report = failed(run, exc)
            if report is not None:
                reports.append(report)
        return reports

    async def _due(self, policy: Policy) -> list[tuple[RunAddress, Kept]]:
        least = policy.least
        if least is None:
            return []
        now = self._now()
        due: list[tuple[RunAddress, Kept]] = []
        last: FinishedRow | None = None
        while len(due) < self._max_runs:
            rows = await self._finished.finished_runs(ended_before=timestamp(now - least), limit=PAGE, after=last)
            for row in rows:
                kept = policy.of(row.tenant_id, row.retention)
                if kept.age is not None and parse_timestamp(row.ended_at) <= now - kept.age:
                    due.append((RunAddress(row.tenant_id, row.run_id), kept))
            if len(rows) < PAGE:
                break
            last = rows[-1]
        return due[: self._max_runs]


class _Alone:
    """Refuses instead of waiting: who asks again while a pass is under way wants to know that it is."""

    def __init__(self, lock: asyncio.Lock) -> None:
        self._lock = lock

    async def __aenter__(self) -> None:
        if self._lock.locked():
            raise Refused(Code.INVALID_STATE, "another compaction or erasure is under way")
        await self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()


async def every(retention: Retention, every_s: float) -> None:
    """A pass now and then, for ever."""
    while True:
        await asyncio.sleep(every_s)
        try:
            done = await retention.compact()
        except Refused:
            continue  # somebody asked for one just now
        except KernelError as exc:
            retention.stats.trouble = str(exc)
            log.warning("retention waits: %s", exc)
        else:
            if done.runs:
                log.info("archived %d finished runs, %d failed", done.compacted, done.failed)
