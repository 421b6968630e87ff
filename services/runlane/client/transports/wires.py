"""What a worker on the broker works with, over one connection; it may serve several tenants.

Speaks the kernel's language: its callers say in the client's words what went wrong.
"""

from runlane.client.transports.ports import Claim
from runlane.kernel.clock import NewId, Now
from runlane.kernel.connection import Connection
from runlane.kernel.direct import DirectReader
from runlane.kernel.errors import Retryable
from runlane.kernel.kv import Bucket
from runlane.kernel.lease import Lease, LeaseDesk, LeaseHeld, NoRoom
from runlane.kernel.nats_event_log import NatsEventLog
from runlane.kernel.publisher import WindowedPublisher
from runlane.kernel.run_log import RunLogs
from runlane.kernel.seats import Seats
from runlane.kernel.tenants import TenantBook
from runlane.kernel.work import Invitation, WorkQueue
from runlane_contracts.lifecycle import Refused
from runlane_contracts.streams import Layout
from runlane_contracts.subjects import RunAddress

NO_ROOM_S = 0.5
"""After so long a run comes again that was pulled when somebody else took the tenant's last seat."""


class Wires:
    """Log, leases, work and limits. Every method raises KernelError."""

    def __init__(self, connection: Connection, layout: Layout, *, now: Now, new_id: NewId) -> None:
        self.connection, self.layout = connection, layout
        self._publisher = WindowedPublisher(connection)
        self._direct = DirectReader(connection)
        self.log = NatsEventLog(connection, layout, publisher=self._publisher, direct=self._direct)
        self.run_logs = RunLogs(self.log, now=now, new_id=new_id)
        self.limits = TenantBook(Bucket(self._publisher, self._direct, layout.tenant_bucket))
        self.seats = Seats(self._direct, layout.lease_bucket, self.limits, now=now)
        leases = Bucket(self._publisher, self._direct, layout.lease_bucket)
        self.leases = LeaseDesk(leases, self.run_logs, now=now, seats=self.seats)
        self.work = WorkQueue(connection, layout)

    async def claim(self, tenant_id: str, pool: str, worker_id: str, ttl_s: float, *, wait_s: float) -> Claim | None:
        """The next run of a tenant's pool with its lease taken, or None. It may be over before `wait_s`."""
        invitation = await self.work.pull(tenant_id, pool, wait_s=wait_s)
        if invitation is None:
            return None
        run = RunAddress(invitation.item.tenant_id, invitation.item.run_id)
        lease = await self._accept(invitation, run, worker_id, ttl_s)
        if lease is None:
            return None
        known = await self.run_logs.of(run).load()
        created = known.created
        return Claim(
            run_id=run.run_id,
            tenant_id=run.tenant_id,
            lease_epoch=lease.lease_epoch,
            agent=created.agent if created else invitation.item.agent,
            input=created.input if created else None,
            sequence=known.sequence,
        )

    async def _accept(self, invitation: Invitation, run: RunAddress, worker_id: str, ttl_s: float) -> Lease | None:
        try:
            lease = await self.leases.take(run, worker_id, ttl_s)
        except (LeaseHeld, Refused):
            await invitation.taken()  # somebody drives it, or it is over
            return None
        except NoRoom:
            await invitation.later(NO_ROOM_S)
            return None
        except Retryable:
            await invitation.later()
            raise
        await invitation.taken()
        return lease

    async def close(self) -> None:
        """Give back what was made on the connection; the connection stays."""
        await self._publisher.close()
        await self._direct.close()
