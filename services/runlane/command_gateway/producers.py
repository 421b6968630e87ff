"""Routes for producers that speak HTTP: take and keep a lease, state facts, show previews, claim work."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runlane.command_gateway.commands import run_address
from runlane.command_gateway.quota import TokenBuckets
from runlane.command_gateway.settings import CommandGatewaySettings
from runlane.hosting.authorizer import Authorizer, Principal, Right, require
from runlane.hosting.http import ProblemError, Response204, decode_body, json_response
from runlane.kernel.errors import Fenced, Retryable
from runlane.kernel.lease import Lease, LeaseDesk, LeaseHeld
from runlane.kernel.run_log import RunLogs
from runlane.kernel.work import Invitation, WorkQueue
from runlane_contracts import codec
from runlane_contracts.envelope import Actor
from runlane_contracts.ids import WorkerId, is_id
from runlane_contracts.lifecycle import FactDraft, Refused, RunLifecycle
from runlane_contracts.previews import Preview, PreviewBatch
from runlane_contracts.problems import Code
from runlane_contracts.subjects import RunAddress, Subjects

T = TypeVar("T")

MAX_PREVIEWS = 256
MAX_PREVIEW_BYTES = 256 * 1024

Ttl = Annotated[float, Meta(ge=0.5, le=3600)]
Epoch = Annotated[int, Meta(ge=0)]
PublishPreviews = Callable[[str, bytes], Awaitable[None]]


class TakeBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/runs/{run_id}/lease`."""

    worker_id: WorkerId
    ttl_s: Ttl = 30.0


class HoldBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`PUT` and `DELETE /v1/runs/{run_id}/lease`."""

    worker_id: WorkerId
    lease_epoch: Epoch


class EventsBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/runs/{run_id}/events`."""

    lease_epoch: Epoch
    events: list[FactDraft]
    expected_sequence: Annotated[int, Meta(ge=0)] | None = None


class PreviewsBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/runs/{run_id}/previews`."""

    lease_epoch: Epoch
    previews: Annotated[list[Preview], Meta(max_length=MAX_PREVIEWS)]


class ClaimBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/pools/{pool}/claim`."""

    worker_id: WorkerId
    ttl_s: Ttl = 30.0
    wait_s: Annotated[float, Meta(ge=0, le=60)] = 0.0


class ProducerRoutes:
    """Writing over HTTP. Whatever is refused changed nothing."""

    def __init__(
        self,
        *,
        settings: CommandGatewaySettings,
        authorizer: Authorizer,
        run_logs: RunLogs,
        leases: LeaseDesk,
        work: WorkQueue,
        publish_previews: PublishPreviews,
        preview_quota: TokenBuckets,
        subjects: Subjects,
    ) -> None:
        self._settings, self._authorizer, self._run_logs, self._leases = settings, authorizer, run_logs, leases
        self._work, self._publish_previews, self._preview_quota = work, publish_previews, preview_quota
        self._subjects = subjects

    def routes(self) -> list[Route]:
        """What this serves."""
        return [
            Route("/v1/runs/{run_id}/lease", self.take_lease, methods=["POST"]),
            Route("/v1/runs/{run_id}/lease", self.renew_lease, methods=["PUT"]),
            Route("/v1/runs/{run_id}/lease", self.release_lease, methods=["DELETE"]),
            Route("/v1/runs/{run_id}/events", self.append, methods=["POST"]),
            Route("/v1/runs/{run_id}/previews", self.preview, methods=["POST"]),
            Route("/v1/pools/{pool}/claim", self.claim, methods=["POST"]),
        ]

    # -- leases -----------------------------------------------------------------------------------------------

    async def take_lease(self, request: Request) -> Response:
        """201 with the lease epoch, or `lease_held`."""
        _, run, body = await self._asked(request, TakeBody)
        try:
            lease = await self._leases.take(run, body.worker_id, body.ttl_s)
        except LeaseHeld as exc:
            raise ProblemError(Code.LEASE_HELD, f"until {exc.expires_at}") from exc
        return json_response(_lease(lease), 201)

    async def renew_lease(self, request: Request) -> Response:
        """The heartbeat of an owner."""
        _, run, body = await self._asked(request, HoldBody)
        await self._existing(run)
        return json_response(_lease(await self._leases.renew(run, body.worker_id, body.lease_epoch)))

    async def release_lease(self, request: Request) -> Response:
        """Give the run back."""
        _, run, body = await self._asked(request, HoldBody)
        await self._existing(run)
        await self._leases.release(run, body.worker_id, body.lease_epoch)
        return json_response({"released": True})

    # -- facts and previews -----------------------------------------------------------------------------------

    async def append(self, request: Request) -> Response:
        """All or nothing; the same event ids again give the first answer."""
        who, run, body = await self._asked(request, EventsBody)
        written = await self._run_logs.of(run).append(
            body.events, lease_epoch=body.lease_epoch, expected_sequence=body.expected_sequence,
            actor=Actor(kind="agent", id=who.subject),
        )  # fmt: skip
        return json_response({"events": [{"event_id": event_id, "sequence": at} for event_id, at in written]})

    async def preview(self, request: Request) -> Response:
        """202: on its way, and it may vanish."""
        who, run, body = await self._asked(request, PreviewsBody, max_bytes=MAX_PREVIEW_BYTES)
        try:
            await self._leases.check(run, body.lease_epoch)
        except Fenced:
            await self._existing(run)
            raise
        wait_s = self._preview_quota.take(who.tenant_id, len(body.previews))
        if wait_s > 0:
            raise ProblemError(Code.QUOTA_EXCEEDED, "previews per second", retry_after_s=wait_s)
        if body.previews:
            previews = tuple(
                msgspec.structs.replace(one, tenant_id=run.tenant_id, run_id=run.run_id, lease_epoch=body.lease_epoch)
                for one in body.previews
            )
            batch = PreviewBatch(tenant_id=run.tenant_id, run_id=run.run_id, previews=previews)
            await self._publish_previews(self._subjects.preview_raw(*run), codec.encode(batch))
        return json_response({"accepted": len(body.previews)}, 202)

    # -- work -------------------------------------------------------------------------------------------------

    async def claim(self, request: Request) -> Response:
        """A run of the pool with its lease, or 204 when none came within `wait_s`."""
        who = await require(request, self._authorizer, Right.PRODUCE)
        pool = request.path_params["pool"]
        if not is_id(pool):
            raise ProblemError(Code.INVALID_REQUEST, "pool: not a name")
        body = await decode_body(request, ClaimBody, max_bytes=self._settings.max_body_bytes)
        invitation = await self._work.pull(who.tenant_id, pool, wait_s=body.wait_s)
        if invitation is None:
            return Response204()
        lease = await self._accept(invitation, body)
        if lease is None:
            return Response204()
        run = await self._run_logs.of(RunAddress(who.tenant_id, invitation.item.run_id)).load()
        created = run.created
        claimed: dict[str, Any] = {
            "run_id": run.run_id, "agent": created.agent if created else invitation.item.agent,
            "input": created.input if created else None, "sequence": run.sequence, "attempt": run.attempt,
        }  # fmt: skip
        return json_response(claimed | _lease(lease))

    async def _accept(self, invitation: Invitation, body: ClaimBody) -> Lease | None:
        run = RunAddress(invitation.item.tenant_id, invitation.item.run_id)
        try:
            lease = await self._leases.take(run, body.worker_id, body.ttl_s)
        except (LeaseHeld, Refused):
            await invitation.taken()  # somebody drives it, or it is over: nothing to do here
            return None
        except Retryable:
            await invitation.later()
            raise
        await invitation.taken()
        return lease

    # -- parts ------------------------------------------------------------------------------------------------

    async def _asked(
        self, request: Request, type_: type[T], *, max_bytes: int | None = None
    ) -> tuple[Principal, RunAddress, T]:
        who = await require(request, self._authorizer, Right.PRODUCE)
        run = run_address(request, who)
        body = await decode_body(request, type_, max_bytes=max_bytes or self._settings.max_body_bytes)
        return who, run, body

    async def _existing(self, run: RunAddress) -> RunLifecycle:
        known = await self._run_logs.of(run).load()
        if not known.exists:
            raise ProblemError(Code.RUN_NOT_FOUND)
        return known


def _lease(lease: Lease) -> dict[str, Any]:
    return {"lease_epoch": lease.lease_epoch, "expires_at": lease.expires_at, "worker_id": lease.worker_id}
