"""The work queue: which run a worker should take next.

A message is only an invitation. What makes a worker the owner is the lease; so a message that is delivered twice, or
late, costs an attempt to take a lease that somebody holds, nothing more.
"""

import asyncio
from dataclasses import dataclass

import msgspec
from msgspec import Struct
from nats.aio.msg import Msg

from runlane.kernel.connection import Connection
from runlane.kernel.errors import KernelError, Retryable
from runlane.kernel.provision import ensure_consumer
from runlane_contracts.streams import ConsumerSpec, Layout

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
    _message: Msg
    _connection: Connection

    async def taken(self) -> None:
        """The lease is held (by whomever), or the run is over: do not deliver it again."""
        await self._connection.nc.publish(self._message.reply, b"+ACK")

    async def later(self, delay_s: float = NAK_DELAY_S) -> None:
        """Deliver it again after a delay."""
        body = msgspec.json.encode({"delay": int(delay_s * 1e9)})
        await self._connection.nc.publish(self._message.reply, b"-NAK " + body)


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
        message = await self._next(spec, wait_s)
        if message is None:
            return None
        try:
            item = msgspec.json.decode(message.data, type=WorkItem)
        except msgspec.MsgspecError:
            await self._connection.nc.publish(message.reply, b"+TERM")  # nobody could ever take it
            return None
        return Invitation(item, message, self._connection)

    async def _next(self, spec: ConsumerSpec, wait_s: float) -> Msg | None:
        expires_s = max(wait_s, 0.05)
        request = msgspec.json.encode({"batch": 1, "expires": int(expires_s * 1e9)})
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{spec.stream}.{spec.durable}"
        try:
            async with asyncio.timeout(expires_s + 5.0):
                message = await self._connection.request(subject, request, timeout_s=expires_s + 4.0)
        except TimeoutError as exc:
            raise Retryable("the broker does not answer") from exc
        except KernelError:
            self._made.discard(spec.durable)  # it may have vanished; it is made again next time
            raise
        status = (message.headers or {}).get("Status")
        if status is None:
            return message
        if status not in {"404", "408"}:
            self._made.discard(spec.durable)
        return None
