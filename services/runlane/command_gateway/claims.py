"""`POST /v1/pools/{pool}/claim`: a worker that speaks HTTP asks for a run to execute.

What is bounded is how many claims are looked at once; while more than that are there, tenants take turns by weight.
A tenant whose workers drive as many runs as they may is told that there is none, until one of them ends.
"""

import asyncio
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from runlane.command_gateway.door import Door
from runlane.command_gateway.wire import ClaimBody, Claimed
from runlane.hosting.authorizer import Principal, Right
from runlane.hosting.http import ProblemError, Response204, decode_body, json_response
from runlane.kernel.fair import FairSlots
from runlane.kernel.lease import KeepsSeats, Lease, LeaseDesk, LeaseHeld, NoRoom
from runlane.kernel.run_log import RunLogs
from runlane.kernel.tenants import TenantBook
from runlane.kernel.work import Waiting, WorkBoard
from runlane_contracts.ids import is_id
from runlane_contracts.lifecycle import Refused
from runlane_contracts.problems import Code
from runlane_contracts.subjects import RunAddress

MAX_BODY_BYTES: Final = 16 * 1024
LOOK_EVERY_S: Final = (0.05, 0.5)
"""How often the queue is looked at while somebody waits: at first, and after a while."""


class ClaimsDesk:
    """Finds a run that waits, and takes its lease for the worker."""

    def __init__(
        self,
        door: Door,
        *,
        board: WorkBoard,
        leases: LeaseDesk,
        run_logs: RunLogs,
        limits: TenantBook,
        seats: KeepsSeats,
        claims_at_once: int,
    ) -> None:
        self._door, self._board, self._leases, self._run_logs = door, board, leases, run_logs
        self._limits, self._seats = limits, seats
        self._slots = FairSlots(claims_at_once)

    @property
    def waiting_count(self) -> int:
        """Claims that wait for their turn."""
        return self._slots.waiting_count

    async def post(self, request: Request) -> Response:
        """200 with a run and its lease, or 204: none came in that time."""
        principal = await self._door.principal(request, Right.PRODUCE)
        pool = str(request.path_params["pool"])
        body = await decode_body(request, ClaimBody, max_bytes=MAX_BODY_BYTES)
        if not is_id(pool):
            raise ProblemError(Code.INVALID_REQUEST, "pool: letters, digits, _ and -, at most 64")
        claimed = await self._within(request, principal, pool, body)
        return Response204() if claimed is None else json_response(claimed)

    async def _within(self, request: Request, principal: Principal, pool: str, body: ClaimBody) -> Claimed | None:
        ends_at = asyncio.get_running_loop().time() + body.wait_s
        pause_s, longest_s = LOOK_EVERY_S
        while True:
            claimed = await self._in_turn(principal.tenant_id, pool, body)
            left_s = ends_at - asyncio.get_running_loop().time()
            if claimed is not None or left_s <= 0:
                return claimed
            await asyncio.sleep(min(pause_s, left_s))
            if await request.is_disconnected():  # a run that a dead worker is given stands still for a whole lease
                return None
            self._door.require_still(principal, Right.PRODUCE)  # a worker whose key was revoked gets no more work
            pause_s = min(longest_s, pause_s * 1.5)

    async def _in_turn(self, tenant_id: str, pool: str, body: ClaimBody) -> Claimed | None:
        """A look of its own for each; which tenant looks next goes by weight, and what found nothing was no turn."""
        if not await self._seats.has_room(tenant_id):
            return None
        async with self._slots.of(tenant_id, (await self._limits.of(tenant_id)).weight) as slot:
            try:
                claimed = await self._first(tenant_id, pool, body)
            except NoRoom:
                claimed = None
            if claimed is None:
                slot.unused()
            return claimed

    async def _first(self, tenant_id: str, pool: str, body: ClaimBody) -> Claimed | None:
        """The oldest waiting run that can be had; what is driven already is passed over."""
        after = 0
        while (waiting := await self._board.first(tenant_id, pool, after_seq=after)) is not None:
            after = waiting.stream_seq
            claimed = await self._take(tenant_id, waiting, body)
            if claimed is not None:
                return claimed
        return None

    async def _take(self, tenant_id: str, waiting: Waiting, body: ClaimBody) -> Claimed | None:
        run = RunAddress(tenant_id, waiting.item.run_id)
        try:
            lease = await self._leases.take(run, body.worker_id, body.ttl_s)
        except LeaseHeld:
            return None
        except Refused as exc:
            if exc.code is Code.RUN_TERMINAL:
                await self._board.take_off(waiting.stream_seq)
            return None
        # Should this process end here, the message stays and the lease runs out: it is handed out again.
        await self._board.take_off(waiting.stream_seq)
        return self._claimed(run, lease)

    def _claimed(self, run: RunAddress, lease: Lease) -> Claimed:
        known = self._run_logs.of(run).lifecycle
        created = known.created
        return Claimed(
            run_id=run.run_id,
            lease_epoch=lease.lease_epoch,
            expires_at=lease.expires_at,
            agent=created.agent if created is not None else "",
            input=created.input if created is not None else None,
            sequence=known.sequence,
            attempt=known.attempt,
            session_id=known.session_id,
        )
