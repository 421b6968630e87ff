"""`POST /v1/runs/{run_id}/previews`: fragments for the display only, fenced like everything an owner does."""

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from runlane.command_gateway.door import Caller, Door
from runlane.command_gateway.events import decode_at
from runlane.command_gateway.quota import Quota
from runlane.command_gateway.wire import MAX_PREVIEWS, PreviewsBody, PreviewsTaken
from runlane.hosting.authorizer import Right
from runlane.hosting.http import ProblemError, decode_body, json_response
from runlane.kernel.clock import Now
from runlane.kernel.lease import LeaseDesk
from runlane.kernel.preview_bus import PreviewBus
from runlane_contracts.events import MAX_NESTING, nests_too_deep
from runlane_contracts.previews import Preview
from runlane_contracts.problems import Code

FRAGMENT_COSTS_BYTES: Final = 256
"""What a fragment costs besides its own size."""

MAX_SEQUENCE: Final = 2**53
"""Beyond that a browser cannot tell two fragments apart."""

_PREVIEW: Final = msgspec.json.Decoder(Preview)


class PreviewsDesk:
    """Takes fragments within the tenant's quota."""

    def __init__(
        self, door: Door, *, leases: LeaseDesk, bus: PreviewBus, quota: Quota, now: Now, max_body_bytes: int
    ) -> None:
        self._door, self._leases, self._bus, self._quota, self._now = door, leases, bus, quota, now
        self._max_body_bytes = max_body_bytes

    async def post(self, request: Request) -> Response:
        """Hand fragments on; what happens to them is counted, not answered."""
        caller = await self._door.caller(request, Right.PRODUCE)
        body = await decode_body(request, PreviewsBody, max_bytes=self._max_body_bytes)
        if len(body.previews) > MAX_PREVIEWS:
            raise ProblemError(Code.INVALID_REQUEST, f"at most {MAX_PREVIEWS} previews, not {len(body.previews)}")
        previews = [self._owned(caller, _fragment(index, raw), body, index) for index, raw in enumerate(body.previews)]
        await self._leases.check(caller.run, body.lease_epoch)
        self._charge(caller.run.tenant_id, sum(len(raw) + FRAGMENT_COSTS_BYTES for raw in body.previews))
        for preview in previews:
            self._bus.publish(caller.run, preview)
        return json_response(PreviewsTaken(accepted=len(previews)), 202)

    def _owned(self, caller: Caller, preview: Preview, body: PreviewsBody, index: int) -> Preview:
        if preview.coalesced is not None and not 1 <= preview.coalesced.first_seq <= preview.preview_seq:
            raise ProblemError(Code.INVALID_REQUEST, "coalesced.first_seq is not from 1 to preview_seq", index=index)
        return msgspec.structs.replace(
            preview, tenant_id=caller.run.tenant_id, run_id=caller.run.run_id, lease_epoch=body.lease_epoch
        )

    def _charge(self, tenant_id: str, size: int) -> None:
        again_in_s = self._quota.take(tenant_id, size, now=self._now())
        if again_in_s > 0:
            raise ProblemError(Code.QUOTA_EXCEEDED, "preview bytes per second", retry_after_s=again_in_s)


def _fragment(index: int, raw: msgspec.Raw) -> Preview:
    """What the filter would drop unseen is refused here, by its place."""
    preview = decode_at(index, raw, _PREVIEW)
    if preview.preview_seq > MAX_SEQUENCE:
        raise ProblemError(Code.INVALID_REQUEST, f"preview_seq: at most {MAX_SEQUENCE}", index=index)
    if nests_too_deep(bytes(raw)):
        raise ProblemError(Code.INVALID_REQUEST, f"data: nests deeper than {MAX_NESTING} levels", index=index)
    return preview
