"""Every open connection: how many there may be, once a second for each, and the end of all of them."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import datetime

from runlane.edge_gateway.meters import Meters
from runlane.edge_gateway.websocket.limits import SocketLimits
from runlane.edge_gateway.websocket.session import Session
from runlane.hosting.http import ProblemError
from runlane.kernel.clock import Now
from runlane_contracts.problems import Code
from runlane_contracts.resume import EndReason
from runlane_contracts.telemetry import LogEvent

_AT_ONCE = 256

_log = logging.getLogger("runlane.edge_gateway.websocket")


class Sessions:
    """Who is connected."""

    def __init__(self, limits: SocketLimits, *, now: Now, jitter: Callable[[], float], meters: Meters) -> None:
        self.limits = limits
        self._meters = meters
        self.jitter = jitter
        self._now = now
        self._sessions: set[Session] = set()
        self._of_tenant: Counter[str] = Counter()
        self._closing = False
        self._nobody = asyncio.Event()

    def __len__(self) -> int:
        return len(self._sessions)

    @asynccontextmanager
    async def ticking(self, every_s: float = 1.0) -> AsyncIterator[None]:
        """Heartbeats and deadlines, while the block lasts; then everybody is told to come back."""
        task = asyncio.get_running_loop().create_task(self._tick(every_s), name="websocket ticks")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self.shut_down()

    async def _tick(self, every_s: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(every_s)
            now, today = loop.time(), self._now()
            for done, session in enumerate(tuple(self._sessions)):
                _look_at(session, now, today)
                if done % _AT_ONCE == _AT_ONCE - 1:
                    await asyncio.sleep(0)  # others go on in between

    def check(self, tenant_id: str) -> None:
        """Whether there may be one more.

        Raises:
            ProblemError: `overloaded`; `quota_exceeded`: the tenant has as many as it may.
        """
        if self._closing or len(self._sessions) >= self.limits.max_connections:
            raise ProblemError(Code.OVERLOADED, "too many connections here", retry_after_s=2.0)
        if self._of_tenant[tenant_id] >= self.limits.max_connections_per_tenant:
            self._meters.quota_refusals += 1
            raise ProblemError(Code.QUOTA_EXCEEDED, "too many connections of this tenant", retry_after_s=5.0)

    @contextlib.contextmanager
    def holding(self, session: Session) -> Iterator[None]:
        """Count it while the block lasts."""
        tenant_id = session.principal.tenant_id
        self._sessions.add(session)
        self._of_tenant[tenant_id] += 1
        self._meters.sockets = len(self._sessions)
        try:
            yield
        finally:
            self._sessions.discard(session)
            self._meters.sockets = len(self._sessions)
            self._of_tenant[tenant_id] -= 1
            if not self._of_tenant[tenant_id]:
                del self._of_tenant[tenant_id]
            if not self._sessions:
                self._nobody.set()

    async def shut_down(self) -> None:
        """End every connection, each watch with its cursor; no new ones. Returns when they are gone, or in time."""
        self._closing = True
        for session in tuple(self._sessions):
            session.stop(EndReason.SHUTDOWN)
        if self._sessions:
            self._nobody.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2 * self.limits.goodbye_s):
                    await self._nobody.wait()


def _look_at(session: Session, now: float, today: datetime) -> None:
    """What fails for one connection must not end the looking at all of them."""
    try:
        session.tick(now, today)
    except Exception:  # noqa: BLE001
        _log.exception("a connection could not be looked at", extra={"event": LogEvent.SERVICE_FAILED})
