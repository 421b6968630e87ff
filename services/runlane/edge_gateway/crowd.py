"""Everyone who follows a run through this gateway, on whatever connection: how many may, and with which rights."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from runlane.edge_gateway.hub import Hubs
from runlane.edge_gateway.meters import Meters
from runlane.hosting.authorizer import Principal
from runlane.hosting.http import ProblemError
from runlane_contracts.problems import Code
from runlane_contracts.resume import EndReason
from runlane_contracts.telemetry import LogEvent

_log = logging.getLogger("runlane.edge_gateway.crowd")

_AT_ONCE = 256
_SOONEST_RETURN_MS = 500

Lost = Callable[[Principal], Code | None]
"""Why a principal that was let in may no longer read; None: it still may. Asked often, costs little."""
OnRefusal = Callable[[Code], None]


class Follower(Protocol):
    """One reader of one run."""

    def tick(self, now: float) -> None:
        """Called about once a second, with the loop's time."""
        ...

    def stop(self, reason: EndReason, *, retry_after_ms: int | None = None) -> None:
        """Say `end` and close. May be called again; the first time counts."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CrowdLimits:
    """How many, and how often they are looked at."""

    total: int = 20_000
    of_tenant: int = 10_000
    retry_after_s: float = 2.0
    tick_s: float = 1.0
    reauthorize_s: float = 1.0
    goodbye_s: float = 5.0
    returns_per_s: float = 500.0
    """How fast those who are told to come back elsewhere do so."""


@dataclass(slots=True)
class _Member:
    principal: Principal
    on_refusal: OnRefusal | None
    refused: bool = False


class Crowd:
    """Who joined and has not left."""

    def __init__(self, limits: CrowdLimits, *, lost: Lost, meters: Meters, jitter: Callable[[], float]) -> None:
        self._limits = limits
        self._lost = lost
        self._meters = meters
        self._jitter = jitter
        self._members: dict[Follower, _Member] = {}
        self._of_tenant: Counter[str] = Counter()
        self._closing = False
        self._nobody = asyncio.Event()

    # --- coming and going ---------------------------------------------------------------------------------

    def check(self, tenant_id: str) -> None:
        """Whether one more may come. Raises ProblemError `overloaded`, `quota_exceeded`, both with `Retry-After`."""
        if self._closing or len(self._members) >= self._limits.total:
            detail = "this gateway is going away" if self._closing else "too many watchers here"
            raise ProblemError(Code.OVERLOADED, detail, retry_after_s=self._retry_after_s())
        if self._of_tenant[tenant_id] >= self._limits.of_tenant:
            self._meters.quota_refusals += 1
            raise ProblemError(
                Code.QUOTA_EXCEEDED, f"the tenant has {self._limits.of_tenant} watches open here",
                retry_after_s=self._retry_after_s(),
            )  # fmt: skip

    @contextmanager
    def joined(self, follower: Follower, principal: Principal, on_refusal: OnRefusal | None = None) -> Iterator[None]:
        """Among them while the block lasts. Raises as `check` does. `on_refusal`: told once why it lost its right."""
        self.check(principal.tenant_id)
        self._members[follower] = _Member(principal, on_refusal)
        self._of_tenant[principal.tenant_id] += 1
        self._meters.watches += 1
        self._meters.watchers = len(self._members)
        try:
            yield
        finally:
            del self._members[follower]
            self._of_tenant[principal.tenant_id] -= 1
            if not self._of_tenant[principal.tenant_id]:
                del self._of_tenant[principal.tenant_id]
            self._meters.watchers = len(self._members)
            if not self._members:
                self._nobody.set()

    def renew(self, follower: Follower, principal: Principal) -> None:
        """It has other credentials now, of the same tenant."""
        member = self._members[follower]
        member.principal, member.refused = principal, False

    def _retry_after_s(self) -> float:
        return self._limits.retry_after_s * (1 + self._jitter())

    # --- while they are here ------------------------------------------------------------------------------

    @asynccontextmanager
    async def ticking(self, hubs: Hubs) -> AsyncIterator[None]:
        """Heartbeats, deadlines and rights, while the block lasts; then everybody is told to come back."""
        tasks = [hubs.start(self._tick_for_ever()), hubs.start(self._authorize_for_ever())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await self.shut_down()

    async def _tick_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._limits.tick_s)
            for done, follower in enumerate(tuple(self._members), 1):
                follower.tick(loop.time())
                if done % _AT_ONCE == 0:
                    await asyncio.sleep(0)  # others go on in between

    async def _authorize_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._limits.reauthorize_s)
            await self._authorize()

    async def _authorize(self) -> None:
        known: dict[tuple[Principal, str], Code | None] = {}  # many watch with the same credentials
        for done, (follower, member) in enumerate(tuple(self._members.items()), 1):
            key = (member.principal, member.principal.credential)
            if key not in known:
                known[key] = self._why_lost(member.principal)
            code = known[key]
            if code is not None and not member.refused:
                member.refused = True
                if member.on_refusal is not None:
                    member.on_refusal(code)
                follower.stop(EndReason.UNAUTHORIZED)
            if done % _AT_ONCE == 0:
                await asyncio.sleep(0)

    def _why_lost(self, principal: Principal) -> Code | None:
        """An authorizer that cannot answer revokes nothing: the credentials held before."""
        try:
            return self._lost(principal)
        except Exception:  # noqa: BLE001
            _log.exception("credentials could not be checked again", extra={"event": LogEvent.SERVICE_FAILED})
            return None

    def _return_ms(self, place: int) -> int:
        return int(_SOONEST_RETURN_MS + (place + self._jitter()) * 1000 / self._limits.returns_per_s)

    async def shut_down(self) -> None:
        """End everyone, each with its cursor; no new ones. Returns when they are gone, or it took too long."""
        self._closing = True
        self._nobody.clear()
        for place, follower in enumerate(tuple(self._members)):
            follower.stop(EndReason.SHUTDOWN, retry_after_ms=self._return_ms(place))
        if self._members:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2 * self._limits.goodbye_s):
                    await self._nobody.wait()
