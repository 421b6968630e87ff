"""For workers of the platform that serve several tenants: each gets its part of what the workers can do."""

import asyncio
import random
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Self

from runlane.client.transports.nats import WORKER, NatsTransport, connected, translated
from runlane.client.transports.ports import Claim, SharedWork, WorkTransport
from runlane.client.transports.wires import Wires
from runlane.kernel.clock import NewId, Now, new_id, utc_now
from runlane.kernel.connection import Connection
from runlane.kernel.fair import Turns
from runlane_contracts.streams import Layout

MAX_PHASE = 2.0
"""Nobody waits for its first turn longer than for two."""
LOOK_EVERY_S = (0.05, 0.5)
"""How often the queues are looked at while nothing can be had: at first, and after a while."""


class NatsPools(SharedWork):
    """The pools of several tenants, over one connection. `tenants=None`: of all that have work.

    Who goes next is decided by weight, see `runlane_contracts.tenants`: while two tenants have work, one of weight 3
    has three runs taken for each one of a tenant of weight 1. A tenant whose workers drive as many runs as they may
    is passed over until one of them ends. Many workers that know nothing of each other keep the weights together.
    """

    def __init__(
        self,
        connection: Connection,
        tenants: Collection[str] | None = None,
        *,
        layout: Layout | None = None,
        actor_id: str = WORKER,
        now: Now = utc_now,
        new_id: NewId = new_id,
    ) -> None:
        self._wires = Wires(connection, layout or Layout(), now=now, new_id=new_id)
        self._tenants = None if tenants is None else frozenset(tenants)
        self._actor_id = actor_id
        self._turns: dict[str, Turns] = {}

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        url: str,
        tenants: Collection[str] | None = None,
        *,
        user: str | None = None,
        password: str | None = None,
        layout: Layout | None = None,
        name: str = "runlane-worker",
    ) -> AsyncIterator[Self]:
        """Connect as a worker of the platform; see `NatsTransport.connect`."""
        async with connected(url, user=user, password=password, name=name) as (connection, actor_id):
            pools = cls(connection, tenants, layout=layout, actor_id=actor_id)
            try:
                yield pools
            finally:
                await pools.aclose()

    async def aclose(self) -> None:
        """Give back what was made on the connection; the connection stays."""
        await self._wires.close()

    async def claim_any(
        self, pool: str, *, worker_id: str, ttl_s: float, wait_s: float
    ) -> tuple[Claim, WorkTransport] | None:
        """The next run of whoever's turn it is, with its lease taken, or None after `wait_s`."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + wait_s
        pause_s, longest_s = LOOK_EVERY_S
        while True:
            claim = await translated(self._next(pool, worker_id, ttl_s))
            if claim is not None:
                transport = NatsTransport(self._wires, claim.tenant_id, actor_id=self._actor_id)
                return claim, transport
            left_s = ends_at - loop.time()
            if left_s <= 0:
                return None
            await asyncio.sleep(min(pause_s, left_s))
            pause_s = min(longest_s, pause_s * 1.5)

    async def _next(self, pool: str, worker_id: str, ttl_s: float) -> Claim | None:
        waiting = await self._wires.work.tenants(pool)
        weights = {one: (await self._wires.limits.of(one)).weight for one in waiting if self._serves(one)}
        turns = self._turns.setdefault(pool, Turns(phase=_at_random))
        for tenant_id in turns.order(weights.items()):
            if not await self._wires.seats.has_room(tenant_id):
                continue
            claim = await self._wires.claim(tenant_id, pool, worker_id, ttl_s, wait_s=0)
            if claim is not None:
                turns.went(tenant_id, weights[tenant_id])
                return claim
        return None

    def _serves(self, tenant_id: str) -> bool:
        return self._tenants is None or tenant_id in self._tenants


def _at_random() -> float:
    return min(random.expovariate(1.0), MAX_PHASE)
