"""The work queue: which run a worker should take next.

A message is only an invitation. What makes a worker the owner is the lease; so a message that is delivered twice, or
late, costs an attempt to take a lease that somebody holds, nothing more.
"""

from dataclasses import dataclass

import msgspec
from msgspec import Struct

from runlane.kernel.connection import Connection
from runlane.kernel.consumer import answer, pull_one
from runlane.kernel.delivery import Delivery
from runlane.kernel.errors import Retryable
from runlane.kernel.provision import ensure_consumer
from runlane.kernel.verdict import DONE, DeadLetter, Retry
from runlane_contracts.streams import Layout

NAK_DELAY_S = 2.0


class WorkItem(Struct, frozen=True, kw_only=True):
    """A run to execute."""

    tenant_id: str
    run_id: str
    agent: str
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class Invitation:
    """One delivery. Answer it with `taken` or `later`; unanswered, it comes again after a while."""

    item: WorkItem
    _delivery: Delivery
    _connection: Connection

    async def taken(self) -> None:
        """The lease is held (by whomever), or the run is over: do not deliver it again. Raises Retryable."""
        await answer(self._connection, self._delivery, DONE)

    async def later(self, delay_s: float = NAK_DELAY_S) -> None:
        """Deliver it again after a delay. Raises Retryable."""
        await answer(self._connection, self._delivery, Retry("later", after_s=delay_s))


class WorkQueue:
    """Pulls invitations of a tenant's pool, one at a time."""

    def __init__(self, connection: Connection, layout: Layout) -> None:
        self._connection, self._layout = connection, layout
        self._made: set[str] = set()

    async def pull(self, tenant_id: str, pool: str, *, wait_s: float) -> Invitation | None:
        """The next invitation, or None when there was none within `wait_s`.

        Raises:
            Retryable: the broker does not answer.
        """
        spec = self._layout.pool_consumer(tenant_id, pool)
        if spec.durable not in self._made:
            await ensure_consumer(self._connection, self._layout, spec)
            self._made.add(spec.durable)
        try:
            delivery = await pull_one(self._connection, spec, wait_s=wait_s)
        except Retryable:
            self._made.discard(spec.durable)  # it may have vanished; it is made again next time
            raise
        if delivery is None:
            return None
        try:
            item = msgspec.json.decode(delivery.data, type=WorkItem)
        except msgspec.MsgspecError:
            await answer(self._connection, delivery, DeadLetter("not a work item"))  # nobody could ever take it
            return None
        return Invitation(item, delivery, self._connection)
