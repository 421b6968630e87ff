"""Looks at runs whose moment came: leases that ran out, deadlines, questions nobody answered, runs nobody drives."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import datetime, timedelta
from typing import Protocol

from runlane.kernel.clock import Now
from runlane.kernel.kv import Changes, Entry
from runlane.kernel.lease import LeaseDesk, decode_lease, run_of_key
from runlane.kernel.run_log import RunLog, RunLogs
from runlane.run_supervisor import machine, moments
from runlane.run_supervisor.dispatch import Dispatcher
from runlane.run_supervisor.following import follow
from runlane.run_supervisor.meters import Meters
from runlane.run_supervisor.moment_book import MomentBook
from runlane.run_supervisor.recovery import GiveUp, HandOut, Hold, Leave, recover
from runlane.run_supervisor.timetable import Key, Timetable
from runlane_contracts.codec import parse_timestamp
from runlane_contracts.lifecycle import FactDraft, RunLifecycle
from runlane_contracts.subjects import RunAddress

LEASE = "lease"
LOOK_AGAIN_S = 0.5
GIVE_UP_S = 60.0
"""No replica is behind for so long: what a moment is about is not in the log, but was only said to be (a commit whose
facts are no good)."""


class WatchedBucket(Protocol):
    """A bucket that tells its changes."""

    def watch(self) -> AsyncGenerator[Changes, None]: ...


class LeaseWatch:
    """Every lease that is held, and when it runs out."""

    def __init__(self, bucket: WatchedBucket, desk: LeaseDesk, timetable: Timetable) -> None:
        self._bucket, self._desk, self._timetable = bucket, desk, timetable
        self._epochs: dict[RunAddress, int] = {}

    def __len__(self) -> int:
        return len(self._epochs)

    async def mirror(self, caught_up: asyncio.Event) -> None:
        """Follow the bucket, for ever: what is there now, then every change."""
        async for changes in follow(self._bucket.watch):
            for entry in changes.entries:
                run = run_of_key(entry.key)
                self._timetable.set(Key(LEASE, run), self._learn(run, entry))
            if changes.caught_up:
                caught_up.set()

    def _learn(self, run: RunAddress, entry: Entry) -> datetime | None:
        """When the lease runs out; None: there is none any more."""
        if entry.deleted:
            self._epochs.pop(run, None)
            return None
        lease = decode_lease(entry.value)
        self._epochs[run] = lease.lease_epoch
        return parse_timestamp(lease.expires_at)

    async def look(self, run: RunAddress) -> datetime | None:
        """The lease's time is over: say so in the log, unless it was renewed meanwhile. Raises Retryable."""
        live = await self._desk.expire(run, _on_lost)
        return None if live is None else parse_timestamp(live.expires_at)

    async def on_end(self, run: RunAddress) -> None:
        """The run is over: its lease protects nothing any more. Raises Retryable."""
        epoch = self._epochs.get(run)
        if epoch is not None:
            await self._desk.fence(run, epoch)


def _on_lost(run: RunLifecycle) -> list[FactDraft]:
    return machine.on_lease_lost(run, lease_epoch=run.lease_epoch)


class RunWatch:
    """Everything else that time does to a run."""

    def __init__(
        self, run_logs: RunLogs, book: MomentBook, dispatcher: Dispatcher, *, meters: Meters, now: Now
    ) -> None:
        self._run_logs, self._book, self._dispatcher = run_logs, book, dispatcher
        self._meters, self._now = meters, now
        self._behind: dict[RunAddress, tuple[datetime, datetime]] = {}  # first and last look of an unbroken row

    async def look(self, run: RunAddress) -> datetime | None:
        """Write what is overdue, hand out what nobody drives; when to look next. Raises Retryable."""
        now = self._now()
        came = {name: at for name, at in self._book.due(run).items() if machine.is_due(at, now)}
        run_log = self._run_logs.of(run)
        await run_log.transact(lambda known: machine.overdue(known, now=now), lease_epoch=0, actor=machine.SYSTEM)
        if moments.RECOVER in came:
            await self._recover(run_log)
        known = run_log.lifecycle
        settled = {name: at for name, at in came.items() if moments.is_settled(known, name, at)}
        if len(settled) < len(came) and self._is_behind_for_good(run, now):
            settled = came
        await self._book.change(run, lambda stored: moments.strike(stored, settled))
        if len(settled) < len(came):  # what was read of the log is behind what its follower saw
            return now + timedelta(seconds=LOOK_AGAIN_S)
        self._behind.pop(run, None)
        return self._book.next_at(run)

    def _is_behind_for_good(self, run: RunAddress, now: datetime) -> bool:
        """Whether it was so at every look for too long to be true."""
        since, last = self._behind.get(run, (now, now))
        if now - last > timedelta(seconds=GIVE_UP_S / 2):
            since = now
        self._behind[run] = (since, now)
        return now - since >= timedelta(seconds=GIVE_UP_S)

    async def _recover(self, run_log: RunLog) -> None:
        known = run_log.lifecycle
        match recover(known):
            case HandOut() as order:
                await self._dispatcher.hand_out(known, order)
                self._meters.recoveries["handed_out"] += 1
            case GiveUp():
                await run_log.transact(_give_up, lease_epoch=0, actor=machine.SYSTEM)
                self._meters.recoveries["given_up"] += 1
            case Hold():
                await self._hold(run_log)
                self._meters.recoveries["held"] += 1
            case Leave():
                return

    async def _hold(self, run_log: RunLog) -> None:
        await self._book.change(run_log.address, moments.hold)
        # Who spoke before this was noted was not heard: look once more.
        if not isinstance(recover(await run_log.load()), Hold):
            await self._book.change(run_log.address, moments.release)
            await self._recover(run_log)


def _give_up(run: RunLifecycle) -> tuple[FactDraft, ...]:
    decision = recover(run)
    return decision.drafts if isinstance(decision, GiveUp) else ()
