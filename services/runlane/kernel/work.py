"""The work queue: which run a worker should take next.

A message is only an invitation. What makes a worker the owner is the lease; so a message that is delivered twice, or
late, costs an attempt to take a lease that somebody holds, nothing more.

A worker of the platform pulls from the durable of a pool (`WorkQueue`). For a worker that speaks HTTP the gateway
looks at what waits under the tenant's own subject (`WorkBoard`): it makes no durable there, since whoever may ask
for work may ask for any pool's, and a stream has room for a bounded number of durables only.
"""

from dataclasses import dataclass

import msgspec
from msgspec import Struct

from runlane.kernel.connection import Connection
from runlane.kernel.consumer import answer, pull_now, pull_one
from runlane.kernel.delivery import Delivery
from runlane.kernel.direct import DirectReader, subjects_of
from runlane.kernel.errors import Retryable
from runlane.kernel.jetstream import MESSAGE_NOT_FOUND, ApiError, api
from runlane.kernel.provision import ensure_consumer
from runlane.kernel.verdict import DONE, DeadLetter, Retry
from runlane_contracts.streams import Layout

LATER_S = 2.0
SEQUENCE_NOT_FOUND = 10043


class WorkItem(Struct, frozen=True, kw_only=True):
    """A run to execute."""

    tenant_id: str
    run_id: str
    agent: str
    attempt: int = 1


_ITEM = msgspec.json.Decoder(WorkItem)


@dataclass(frozen=True, slots=True)
class Invitation:
    """One delivery. Answer it with `taken` or `later`; unanswered, it comes again after a while."""

    item: WorkItem
    _delivery: Delivery
    _connection: Connection

    async def taken(self) -> None:
        """The lease is held (by whomever), or the run is over: do not deliver it again. Raises Retryable."""
        await answer(self._connection, self._delivery, DONE)

    async def later(self, delay_s: float = LATER_S) -> None:
        """Deliver it again after a delay. Raises Retryable."""
        await answer(self._connection, self._delivery, Retry("not now", delay_s))


class WorkQueue:
    """Pulls invitations of a tenant's pool, one at a time."""

    def __init__(self, connection: Connection, layout: Layout) -> None:
        self._connection, self._layout = connection, layout
        self._made: set[str] = set()

    async def tenants(self, pool: str) -> list[str]:
        """Whose runs lie in a pool's queue, those included that somebody has in hand. Raises Retryable."""
        subjects = self._layout.subjects
        found = await subjects_of(self._connection, self._layout.work_stream, subjects.work("*", pool))
        return [subjects.tenant_of_work(subject) for subject in found]

    async def pull(self, tenant_id: str, pool: str, *, wait_s: float) -> Invitation | None:
        """The next invitation, or None when there was none within `wait_s`; with 0, when there is none just now.

        Raises:
            Retryable: the broker does not answer.
        """
        spec = self._layout.pool_consumer(tenant_id, pool)
        if spec.durable not in self._made:
            await ensure_consumer(self._connection, self._layout, spec)
            self._made.add(spec.durable)
        try:
            if wait_s > 0:
                delivery = await pull_one(self._connection, spec, wait_s=wait_s)
            else:
                delivery = await pull_now(self._connection, spec)
        except Retryable:
            self._made.discard(spec.durable)  # it may have vanished; it is made again next time
            raise
        if delivery is None:
            return None
        item = _item(delivery.data)
        if item is None:
            await answer(self._connection, delivery, DeadLetter("no work item"))  # nobody could ever take it
            return None
        return Invitation(item, delivery, self._connection)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A run that waits for a worker, and where its message lies."""

    item: WorkItem
    stream_seq: int


class WorkBoard:
    """What waits, tenant by tenant. Looking takes nothing away."""

    def __init__(self, connection: Connection, direct: DirectReader, layout: Layout) -> None:
        self._connection, self._direct, self._layout = connection, direct, layout

    async def first(self, tenant_id: str, pool: str, *, after_seq: int = 0) -> Waiting | None:
        """The oldest message of a tenant's pool after a sequence. What is no work item is taken off on the way.

        Raises:
            Retryable: the broker does not answer.
        """
        subject = self._layout.subjects.work(tenant_id, pool)
        while True:
            page = await self._direct.page(self._layout.work_stream, subject, after_seq + 1, max_messages=1)
            if not page.messages:
                return None
            message = page.messages[0]
            item = _item(message.data)
            if item is not None:
                return Waiting(item, message.seq)
            await self.take_off(message.seq)
            after_seq = message.seq

    async def take_off(self, stream_seq: int) -> None:
        """It waits no longer; taking it off twice does no harm. Raises Retryable."""
        body = {"seq": stream_seq, "no_erase": True}
        try:
            await api(self._connection, f"STREAM.MSG.DELETE.{self._layout.work_stream}", body, answer=_Deleted)
        except ApiError as exc:
            if exc.err_code not in {MESSAGE_NOT_FOUND, SEQUENCE_NOT_FOUND}:
                raise


class _Deleted(Struct, frozen=True):
    success: bool = False


def _item(data: bytes) -> WorkItem | None:
    try:
        return _ITEM.decode(data)
    except msgspec.MsgspecError:
        return None
