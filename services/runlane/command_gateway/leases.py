"""`POST|PUT|DELETE /v1/runs/{run_id}/lease`: a producer that speaks HTTP takes, holds and gives back a run."""

from starlette.requests import Request
from starlette.responses import Response

from runlane.command_gateway.door import Door
from runlane.command_gateway.wire import HoldBody, LeaseView, Released, TakeBody
from runlane.hosting.authorizer import Right
from runlane.hosting.http import ProblemError, decode_body, json_response
from runlane.kernel.clock import Now
from runlane.kernel.lease import LeaseDesk, LeaseHeld, NoRoom
from runlane_contracts.codec import parse_timestamp
from runlane_contracts.problems import Code

MAX_BODY_BYTES = 16 * 1024


class LeasesDesk:
    """Ownership over HTTP. What lost it is told `lease_fenced`, on every verb."""

    def __init__(self, door: Door, *, leases: LeaseDesk, now: Now) -> None:
        self._door, self._leases, self._now = door, leases, now

    async def post(self, request: Request) -> Response:
        """Become the owner."""
        caller = await self._door.caller(request, Right.PRODUCE)
        body = await decode_body(request, TakeBody, max_bytes=MAX_BODY_BYTES)
        try:
            lease = await self._leases.take(caller.run, body.worker_id, body.ttl_s)
        except LeaseHeld as exc:
            left_s = (parse_timestamp(exc.expires_at) - self._now()).total_seconds()
            detail = f"held until {exc.expires_at}"
            raise ProblemError(Code.LEASE_HELD, detail, retry_after_s=max(0.0, left_s)) from exc
        except NoRoom as exc:
            detail = "runs of the tenant that workers drive"
            raise ProblemError(Code.QUOTA_EXCEEDED, detail, retry_after_s=exc.retry_after_s) from exc
        return json_response(LeaseView(lease_epoch=lease.lease_epoch, expires_at=lease.expires_at), 201)

    async def put(self, request: Request) -> Response:
        """Stay the owner."""
        caller = await self._door.caller(request, Right.PRODUCE)
        body = await decode_body(request, HoldBody, max_bytes=MAX_BODY_BYTES)
        lease = await self._leases.renew(caller.run, body.worker_id, body.lease_epoch)
        return json_response(LeaseView(lease_epoch=lease.lease_epoch, expires_at=lease.expires_at))

    async def delete(self, request: Request) -> Response:
        """Be the owner no longer."""
        caller = await self._door.caller(request, Right.PRODUCE)
        body = await decode_body(request, HoldBody, max_bytes=MAX_BODY_BYTES)
        await self._leases.release(caller.run, body.worker_id, body.lease_epoch)
        return json_response(Released(lease_epoch=body.lease_epoch))
