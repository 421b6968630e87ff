"""Ownership of a run: a lease with an epoch, kept in a bucket, made true in the log.

The entry in the bucket says who holds the lease until when; the log's `run.leased` says which epoch may write. Taking
writes the entry first and the fact second, so that a crash in between leaves an entry that merely runs out. Expiry is
a decision, not a broker TTL: whoever watches declares it, as a fact, and only then does the entry go.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Protocol

import msgspec
from msgspec import Struct

from runlane.kernel.clock import Now
from runlane.kernel.errors import Conflict, Fenced, KernelError, Retryable
from runlane.kernel.run_log import Decide, RunLogs
from runlane_contracts import codec, events
from runlane_contracts.envelope import Actor
from runlane_contracts.lifecycle import FactDraft, Refused, RunLifecycle, draft, lose_lease
from runlane_contracts.problems import Code
from runlane_contracts.subjects import RunAddress

SYSTEM = Actor(kind="system", id="runlane")

OnLost = Callable[[RunLifecycle], Sequence[FactDraft]]
"""What is written when an owner is gone."""


class Lease(Struct, frozen=True, kw_only=True):
    """The right to drive a run until `expires_at`. `over`: somebody is declaring it lost; it cannot be renewed."""

    worker_id: str
    lease_epoch: int
    ttl_s: float
    expires_at: str
    over: bool = False
    seat: int | None = None
    """Its number among those of its tenant (see `seats`); 0: the revision of this entry. None: it takes no seat."""

    def is_live(self, now: datetime) -> bool:
        """Whether it still protects its holder."""
        return not self.over and codec.parse_timestamp(self.expires_at) > now


class LeaseHeld(KernelError):
    """Another worker holds the lease, until `expires_at`."""

    def __init__(self, lease: Lease) -> None:
        super().__init__(f"held by {lease.worker_id} until {lease.expires_at}")
        self.expires_at = lease.expires_at


class NoRoom(KernelError):
    """The tenant's workers drive as many runs as they may; this one waits until one of them ends."""

    retry_after_s = 1.0


class KeepsSeats(Protocol):
    """Whether a seat that was taken may be kept: see `seats.Seats`."""

    async def has_room(self, tenant_id: str) -> bool: ...
    async def keeps(self, run: RunAddress, revision: int) -> bool: ...


class BucketEntry(Protocol):
    """A value and the revision a compare-and-set names."""

    @property
    def value(self) -> bytes: ...
    @property
    def revision(self) -> int: ...


class LeaseBucket(Protocol):
    """The few operations of a key-value bucket that leases need; each raises Conflict when it lost the race."""

    async def get(self, key: str) -> BucketEntry | None: ...
    async def create(self, key: str, value: bytes) -> int: ...
    async def update(self, key: str, value: bytes, revision: int) -> int: ...
    async def delete(self, key: str, revision: int | None = None) -> None: ...


class LeaseDesk:
    """Takes, renews, releases, checks and expires leases. Many desks may work on one bucket.

    `seats`: how many runs of pools a tenant's workers may drive; without it, any number.
    """

    def __init__(self, bucket: LeaseBucket, run_logs: RunLogs, *, now: Now, seats: KeepsSeats | None = None) -> None:
        self._bucket, self._run_logs, self._now, self._seats = bucket, run_logs, now, seats

    async def take(self, run: RunAddress, worker_id: str, ttl_s: float) -> Lease:
        """Become the owner; `run.leased` is durable when this returns.

        A worker that asks again while its own lease lives is refused too: a name proves nothing, and the process
        that holds it may be alive.

        Raises:
            LeaseHeld: somebody drives the run.
            NoRoom: it is a run of a pool, and its tenant's workers drive as many as they may.
            Refused: no such run, or it is over.
            Retryable: it may have been taken; the entry runs out by itself if so.
        """
        entry = await self._bucket.get(_key(run))
        held = _lease(entry) if entry is not None else None
        if held is not None and held.is_live(self._now()):
            _require_open(
                self._run_logs.of(run).lifecycle, unknown_is_open=True
            )  # the entry of a run that ended goes soon
            raise LeaseHeld(held)
        known = await self._run_logs.of(run).load()
        _require_open(known)
        epoch = max(known.lease_epoch, held.lease_epoch if held is not None else 0) + 1
        seat = 0 if known.created is not None and known.created.dispatch == "pool" else None
        if seat is not None and self._seats is not None and not await self._seats.has_room(run.tenant_id):
            raise NoRoom(f"tenant {run.tenant_id} has as many runs driven as it may")
        expires_at = self._until(ttl_s)
        lease = Lease(worker_id=worker_id, lease_epoch=epoch, ttl_s=ttl_s, expires_at=expires_at, seat=seat)
        revision = await self._claim(run, entry, lease)
        if seat is not None:
            await self._keep_seat(run, entry, revision)
        try:
            await self._run_logs.of(run).transact(_leasing(lease), lease_epoch=0, actor=SYSTEM)
        except Refused:
            await self._undo(run, revision)
            raise
        return lease

    async def renew(self, run: RunAddress, worker_id: str, lease_epoch: int) -> Lease:
        """Hold it for another `ttl_s`.

        Raises:
            Fenced: it ran out, was taken, or never was this worker's.
            Retryable: not known; it counts as lost once `expires_at` has passed.
        """
        entry, lease = await self._held(run, lease_epoch, worker_id)
        seat = entry.revision if lease.seat == 0 else lease.seat
        renewed = msgspec.structs.replace(lease, expires_at=self._until(lease.ttl_s), seat=seat)
        try:
            await self._bucket.update(_key(run), msgspec.json.encode(renewed), entry.revision)
        except Conflict as exc:
            raise Fenced(f"lease epoch {lease_epoch} changed hands while it was renewed") from exc
        return renewed

    async def release(self, run: RunAddress, worker_id: str, lease_epoch: int) -> None:
        """Give it back; an unfinished run is `lost` then, and may be taken at once.

        Raises:
            Fenced: it was not held any more.
            Retryable: not known; it runs out by itself.
        """
        entry, _ = await self._held(run, lease_epoch, worker_id)
        await self._declare_lost(run, lease_epoch, _released)
        await self._undo(run, entry.revision)

    async def check(self, run: RunAddress, lease_epoch: int) -> Lease:
        """The lease, if `lease_epoch` holds it now.

        Raises:
            Fenced: it does not.
        """
        return (await self._held(run, lease_epoch, None))[1]

    async def fence(self, run: RunAddress, lease_epoch: int) -> None:
        """Take the entry away whatever its time: the run is over, or somebody decided for its owner.

        Raises:
            Retryable: not known; it runs out by itself.
        """
        entry = await self._bucket.get(_key(run))
        if entry is not None and _lease(entry).lease_epoch <= lease_epoch:
            await self._undo(run, entry.revision)

    async def expire(self, run: RunAddress, on_lost: OnLost | None = None) -> Lease | None:
        """Declare a lease lost whose time is over; the live lease if there is one (again), else None.

        `on_lost` says what is written besides, or instead; by default `lifecycle.lose_lease`.

        Marked first, so that no renewal slips in between; the fact second; the entry goes last, so that whoever
        takes over from a crashed watcher finds it.
        """
        entry = await self._bucket.get(_key(run))
        if entry is None:
            return None
        lease = _lease(entry)
        if lease.is_live(self._now()):
            return lease
        revision = entry.revision
        if not lease.over:
            over = msgspec.structs.replace(lease, over=True)
            try:
                revision = await self._bucket.update(_key(run), msgspec.json.encode(over), revision)
            except Conflict:
                return await self.expire(run, on_lost)
        await self._declare_lost(run, lease.lease_epoch, on_lost or _expired)
        await self._undo(run, revision)
        return None

    # -- parts ------------------------------------------------------------------------------------------------

    async def _keep_seat(self, run: RunAddress, before: BucketEntry | None, revision: int) -> None:
        """Others may have taken the last seat first: then leave everything as it was. Raises NoRoom, Retryable."""
        if self._seats is None:
            return
        try:
            if await self._seats.keeps(run, revision):
                return
            reason: KernelError = NoRoom(f"tenant {run.tenant_id} has as many runs driven as it may")
        except Retryable as exc:
            reason = exc
        if before is None:
            await self._undo(run, revision)
        else:  # an owner that ran out and was not declared lost yet: somebody still has to find this
            with suppress(Conflict):
                await self._bucket.update(_key(run), before.value, revision)
        raise reason

    async def _claim(self, run: RunAddress, entry: BucketEntry | None, lease: Lease) -> int:
        value = msgspec.json.encode(lease)
        try:
            if entry is None:
                return await self._bucket.create(_key(run), value)
            return await self._bucket.update(_key(run), value, entry.revision)
        except Conflict:
            now_held = await self._bucket.get(_key(run))
            raise LeaseHeld(_lease(now_held) if now_held is not None else lease) from None

    async def _held(self, run: RunAddress, lease_epoch: int, worker_id: str | None) -> tuple[BucketEntry, Lease]:
        entry = await self._bucket.get(_key(run))
        lease = _lease(entry) if entry is not None else None
        if entry is None or lease is None or lease.lease_epoch != lease_epoch or not lease.is_live(self._now()):
            raise Fenced(f"lease epoch {lease_epoch} does not hold the lease")
        if self._run_logs.of(run).lifecycle.is_terminal:
            raise Fenced("the run is over")  # its entry goes soon
        if worker_id is not None and worker_id != lease.worker_id:
            raise Fenced(f"lease epoch {lease_epoch} is not {worker_id}'s")
        return entry, lease

    async def _declare_lost(self, run: RunAddress, lease_epoch: int, on_lost: OnLost) -> None:
        def decide(known: RunLifecycle) -> Sequence[FactDraft]:
            # An owner of an older epoch is lost too: somebody took the entry and did not get as far as the log.
            if known.is_terminal or known.owner is None or known.lease_epoch > lease_epoch:
                return []
            return on_lost(known)

        await self._run_logs.of(run).transact(decide, lease_epoch=0, actor=SYSTEM)

    async def _undo(self, run: RunAddress, revision: int) -> None:
        try:
            await self._bucket.delete(_key(run), revision)
        except Conflict:
            return  # it is somebody else's by now

    def _until(self, ttl_s: float) -> str:
        return codec.timestamp(self._now() + timedelta(seconds=ttl_s))


def run_of_key(key: str) -> RunAddress:
    """The run a bucket key names."""
    tenant_id, _, run_id = key.partition(".")
    return RunAddress(tenant_id, run_id)


def decode_lease(value: bytes) -> Lease:
    """The lease in a bucket entry's value."""
    return _DECODE(value)


_DECODE = msgspec.json.Decoder(Lease).decode


def _key(run: RunAddress) -> str:
    return f"{run.tenant_id}.{run.run_id}"


def _lease(entry: BucketEntry) -> Lease:
    return _DECODE(entry.value)


def _require_open(run: RunLifecycle, *, unknown_is_open: bool = False) -> None:
    if not run.exists and not unknown_is_open:
        raise Refused(Code.RUN_NOT_FOUND, "no such run")
    if run.is_terminal:
        raise Refused(Code.RUN_TERMINAL, f"the run is {run.status}")


def _expired(run: RunLifecycle) -> Sequence[FactDraft]:
    return lose_lease(run, "expired")


def _released(run: RunLifecycle) -> Sequence[FactDraft]:
    return lose_lease(run, "released")


def _leasing(lease: Lease) -> Decide:
    def decide(run: RunLifecycle) -> list[FactDraft]:
        _require_open(run)
        if run.lease_epoch == lease.lease_epoch and run.owner == lease.worker_id:
            return []  # this very lease is in the log already
        if run.lease_epoch >= lease.lease_epoch:
            raise Refused(Code.LEASE_HELD, f"the run is at lease epoch {run.lease_epoch}")
        taken = events.RunLeased(lease_epoch=lease.lease_epoch, worker_id=lease.worker_id, attempt=run.attempt + 1)
        if run.owner is None:
            return [draft(taken)]
        return [*lose_lease(run, "expired"), draft(taken)]

    return decide
