"""How many runs of a tenant are driven at the same time: counted from the leases, nothing else is written.

A seat is a lease entry of a run of a pool that is alive. Its number is the revision that made it, which every renewal
carries on. Who took one looks at those that were there before: where they are as many as the tenant may have, it gives
its own back. All desks see entries in the order of one stream, so however many of them take leases at once, never
more than the bound are kept; and whatever crashes, a lease that is not renewed runs out, and its seat with it.
"""

import asyncio
from collections import Counter
from typing import Final

import msgspec

from runlane.kernel.clock import Now
from runlane.kernel.direct import PAGE_MESSAGES, DirectReader
from runlane.kernel.errors import Retryable
from runlane.kernel.lease import Lease, decode_lease
from runlane.kernel.tenants import TenantBook
from runlane_contracts.subjects import RunAddress

LOOKS: Final = 20
LOOK_AGAIN_S: Final = 0.1
"""A replica that does not show what was just written is behind by about as much."""


class Seats:
    """Counts the seats of tenants that have a bound; those without one cost nothing."""

    def __init__(self, direct: DirectReader, lease_bucket: str, book: TenantBook, *, now: Now) -> None:
        self._direct, self._bucket, self._book, self._now = direct, lease_bucket, book, now

    async def has_room(self, tenant_id: str) -> bool:
        """Whether it is worth trying to take a run. Raises Retryable."""
        most = (await self._book.of(tenant_id)).max_running
        return most is None or len(await self.taken(tenant_id)) < most

    async def keeps(self, run: RunAddress, revision: int) -> bool:
        """Whether the seat that was taken with `revision` may be kept. Raises Retryable: not known."""
        most = (await self._book.of(run.tenant_id)).max_running
        if most is None:
            return True
        for _ in range(LOOKS):
            taken, through = await self._look(run.tenant_id)
            if through >= revision:
                return sum(seat < revision for seat in taken) < most
            await asyncio.sleep(LOOK_AGAIN_S)
        raise Retryable("the replicas of the leases are behind")

    async def taken(self, tenant_id: str) -> list[int]:
        """The numbers of the seats that are taken now. Raises Retryable."""
        return (await self._look(tenant_id))[0]

    async def _look(self, tenant_id: str) -> tuple[list[int], int]:
        """The seats, and the last revision that was seen of the tenant: what came before it was seen too."""
        seats, through = await _seats(self._direct, self._bucket, f"{tenant_id}.*", self._now)
        return list(seats.values()), through


async def seats_by_tenant(direct: DirectReader, lease_bucket: str, *, now: Now) -> Counter[str]:
    """How many seats each tenant has taken now. Raises Retryable."""
    seats, _ = await _seats(direct, lease_bucket, ">", now)
    return Counter(subject.rsplit(".", 2)[1] for subject in seats)


async def _seats(direct: DirectReader, bucket: str, keys: str, now: Now) -> tuple[dict[str, int], int]:
    found: dict[str, int] = {}
    at = now()
    start_seq, through = 1, 0
    while True:
        page = await direct.page(f"KV_{bucket}", f"$KV.{bucket}.{keys}", start_seq)
        for message in page.messages:  # one that is renewed meanwhile is seen again, further on
            through = max(through, message.seq)
            lease = _lease(message.data)
            if lease is not None and lease.seat is not None and lease.is_live(at):
                found[message.subject] = lease.seat or message.seq
            else:
                found.pop(message.subject, None)
        if len(page.messages) < PAGE_MESSAGES and not page.pending:
            return found, through
        start_seq = through + 1


def _lease(data: bytes) -> Lease | None:
    if not data:
        return None  # a marker
    try:
        return decode_lease(data)
    except msgspec.MsgspecError:
        return None
