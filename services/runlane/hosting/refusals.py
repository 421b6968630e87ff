"""Refusals of access on their way into the audit: noted without waiting, stored in the intake stream.

`note` never waits and never fails. Who is refused is told once the refusal is stored, so that a gateway that is killed
takes none along that anybody has seen; those who are refused at the same time share the wait. What waits to be stored
is bounded, and so is how much one tenant, or everybody who is nobody, may have written down in a while; what does not
fit is counted, and the count is stored instead.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from starlette.types import Scope

from runlane.hosting.authorizer import PRINCIPAL, Principal
from runlane.hosting.telemetry import observe
from runlane.kernel.clock import NewId, Now, new_id, utc_now
from runlane.kernel.errors import KernelError, Permanent, Retryable
from runlane.kernel.publisher import AckFuture, WindowedPublisher
from runlane_contracts.audit import PLATFORM, Refusal, Target
from runlane_contracts.codec import encode, timestamp
from runlane_contracts.envelope import Actor
from runlane_contracts.headers import COMMIT_ID
from runlane_contracts.ids import is_id
from runlane_contracts.problems import Code
from runlane_contracts.subjects import Subjects
from runlane_contracts.telemetry import Attribute, LogEvent, Metric

log = logging.getLogger(__name__)

MAX_WAITING = 4096
BURST, PER_S = 2000.0, 20.0
"""Of one tenant's refusals: so many at once, and so many a second after that."""
MAX_TENANTS = 10_000
_AT_ONCE = 64
_COUNT_EVERY_S = 1.0
_RETRY_S = (0.2, 5.0)
_CLOSE_WITHIN_S = 2.0
TOLD_WITHIN_S = 2.0
"""An answer is not held back longer for its record. A broker that takes nothing so long has more to worry about."""
_WORDS = frozenset({"v1", "runs", "watch", "events", "snapshot", "timeline", "commands", "re-execute", "lease",
                    "previews", "approvals", "pools", "claim", "content", "ws", "metrics"})  # fmt: skip
NOBODY = Actor(kind="user", id="unknown")


@dataclass(slots=True)
class _Budget:
    left: float
    at: float
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class _Waiting:
    refusal: Refusal
    message_id: str
    done: asyncio.Event


class Noted:
    """A refusal that was noted."""

    def __init__(self, done: asyncio.Event | None = None) -> None:
        self._done = done

    async def stored(self) -> None:
        """Returns once it is stored, or counted, or after `TOLD_WITHIN_S`; then it goes on waiting in memory."""
        if self._done is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TOLD_WITHIN_S):
                    await self._done.wait()


class RefusalLog:
    """What one gateway refused. `async with` it: what waits is stored before it ends, if the broker answers."""

    def __init__(
        self,
        publisher: WindowedPublisher,
        subjects: Subjects,
        service: str,
        *,
        now: Now = utc_now,
        new_id: NewId = new_id,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.noted = 0
        self.dropped = 0
        self.trouble = ""
        """Why refusals wait, while they do."""
        self._publisher, self._subjects, self._service = publisher, subjects, service
        self._now, self._new_id = now, new_id
        self._clock = clock or asyncio.get_running_loop().time
        self._waiting: deque[_Waiting] = deque()
        self._budgets: dict[str, _Budget] = {}
        self._counted_at = -_COUNT_EVERY_S
        self._arrived = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._task: asyncio.Task[None] | None = None

    def of_http(self, scope: Scope, code: Code) -> Noted:
        """A request that was refused. See `OnRefusal`."""
        principal: Principal | None = scope.get(PRINCIPAL)
        action, run_id = _named(scope.get("method", "GET"), scope.get("path", ""))
        return self.note(principal, action, run_id, code)

    def note(self, principal: Principal | None, action: str, run_id: str | None, code: Code) -> Noted:
        """Somebody was refused something. Returns at once; whoever answers them waits for `stored` first."""
        tenant_id = PLATFORM if principal is None else principal.tenant_id
        self.noted += 1
        if not self._may_add(tenant_id):
            return Noted()
        return self._add(
            Refusal(
                tenant_id=tenant_id,
                time=timestamp(self._now()),
                service=self._service,
                actor=NOBODY if principal is None else Actor(kind="user", id=principal.subject),
                action=action,
                target=Target(kind="http", id="-") if run_id is None else Target(kind="run", id=run_id, run_id=run_id),
                outcome=code.value,
            )
        )

    async def __aenter__(self) -> Self:
        observe(Metric.AUDIT_REFUSALS, lambda: [(self.noted, {Attribute.SERVICE: self._service})], rises=True)
        observe(Metric.AUDIT_REFUSALS_DROPPED, lambda: [(self.dropped, {Attribute.SERVICE: self._service})], rises=True)
        self._task = asyncio.get_running_loop().create_task(self._store_all())
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._task is None:
            return
        self._add_counts(at_once=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_WITHIN_S):
                await self._empty.wait()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._waiting:
            log.warning("%d refusals were not recorded", len(self._waiting), extra={"event": LogEvent.REFUSALS_DROPPED})

    # --- bounds ---------------------------------------------------------------------------------------------

    def _may_add(self, tenant_id: str) -> bool:
        now = self._clock()
        budget = self._budgets.get(tenant_id)
        if budget is None:
            if len(self._budgets) >= MAX_TENANTS:
                self._budgets.pop(next(iter(self._budgets)))
            budget = self._budgets[tenant_id] = _Budget(BURST, now)
        budget.left, budget.at = min(BURST, budget.left + (now - budget.at) * PER_S), now
        if budget.left < 1 or len(self._waiting) >= MAX_WAITING:
            budget.dropped += 1
            self.dropped += 1
            if budget.dropped == 1:
                self._arrived.set()
            return False
        budget.left -= 1
        return True

    def _add(self, refusal: Refusal) -> Noted:
        one = _Waiting(refusal, self._new_id("rfs"), asyncio.Event())
        self._waiting.append(one)
        self._arrived.set()
        self._empty.clear()
        return Noted(one.done)

    def _add_counts(self, *, at_once: bool = False) -> None:
        """Of what was dropped, for each tenant; not for each one that was."""
        now = self._clock()
        if not at_once and now - self._counted_at < _COUNT_EVERY_S:
            return
        for tenant_id, budget in self._budgets.items():
            if budget.dropped and len(self._waiting) < MAX_WAITING:
                count, budget.dropped, self._counted_at = budget.dropped, 0, now
                self._add(
                    Refusal(
                        tenant_id=tenant_id, time=timestamp(self._now()), service=self._service, actor=NOBODY,
                        action="refusals", target=Target(kind="http", id="-"), outcome="dropped", count=count,
                    )
                )  # fmt: skip

    # --- storing --------------------------------------------------------------------------------------------

    async def _store_all(self) -> None:
        retry_s = _RETRY_S[0]
        while True:
            self._arrived.clear()
            self._add_counts()
            if not self._waiting:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_COUNT_EVERY_S if self._has_dropped else None):
                        await self._arrived.wait()
                continue
            try:
                await self._store_some()
                retry_s = _RETRY_S[0]
                self._say("")
            except Retryable as exc:
                self._say(str(exc))
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, _RETRY_S[1])

    def _say(self, trouble: str) -> None:
        """Once that they wait, and once that they do no longer."""
        if trouble and not self.trouble:
            log.warning("refusals wait to be recorded: %s", trouble, extra={"event": LogEvent.REFUSALS_WAIT})
        elif self.trouble and not trouble:
            log.info("refusals are recorded again", extra={"event": LogEvent.AUDIT_RESUMED})
        self.trouble = trouble

    @property
    def _has_dropped(self) -> bool:
        return any(budget.dropped for budget in self._budgets.values())

    async def _store_some(self) -> None:
        sent: list[tuple[_Waiting, AckFuture]] = []
        failure: KernelError | None = None
        for one in list(self._waiting)[:_AT_ONCE]:
            subject = self._subjects.intake(one.refusal.tenant_id, self._service)
            try:
                future = await self._publisher.send(subject, encode(one.refusal), {COMMIT_ID: one.message_id})
            except KernelError as exc:
                failure = exc
                break
            sent.append((one, future))
        done: set[str] = set()
        for one, future in sent:
            try:
                await future
            except Permanent as exc:
                log.error("a refusal cannot be recorded: %s", exc, extra={"event": LogEvent.REFUSALS_DROPPED})  # noqa: TRY400
                self.dropped += 1
            except KernelError as exc:
                failure = failure or exc
                continue
            done.add(one.message_id)
            one.done.set()
        self._waiting = deque(one for one in self._waiting if one.message_id not in done)
        if not self._waiting:
            self._empty.set()
        if failure is not None:
            raise failure if isinstance(failure, Retryable) else Retryable(str(failure))


def _named(method: str, path: str) -> tuple[str, str | None]:
    """What was asked for, without what was put into the path, and the run it was about."""
    parts = path.split("/")
    action = f"{method} " + "/".join(part if not part or part in _WORDS else "*" for part in parts)
    run_id = parts[3] if len(parts) > 3 and parts[1:3] == ["v1", "runs"] and is_id(parts[3]) else None
    return action[:128], run_id
