"""The first questions of every request: who is it, may they, and is there such a run.

In this order, and before the body is looked at: what another tenant owns must answer as what does not exist,
whatever is sent.
"""

import asyncio
import re
from dataclasses import dataclass

from starlette.requests import Request

from runlane.hosting.authorizer import Authorizer, Principal, Right, lost, require
from runlane.hosting.http import ProblemError
from runlane.kernel.run_log import RunLog, RunLogs
from runlane_contracts.commands import IdempotencyKey
from runlane_contracts.envelope import Actor
from runlane_contracts.ids import is_id
from runlane_contracts.problems import Code
from runlane_contracts.subjects import RunAddress

MAX_KEY = 200
_TRACEPARENT = re.compile("00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and the run it is about."""

    principal: Principal
    run_log: RunLog

    @property
    def run(self) -> RunAddress:
        """The run's address."""
        return self.run_log.address


class Door:
    """Lets requests in."""

    def __init__(self, authorizer: Authorizer, run_logs: RunLogs, *, look_again_s: float = 0.0) -> None:
        self._authorizer, self._run_logs, self._look_again_s = authorizer, run_logs, look_again_s

    async def principal(self, request: Request, right: Right) -> Principal:
        """Who asks.

        Raises:
            ProblemError: `unauthenticated`, `forbidden`.
        """
        return await require(request, self._authorizer, right)

    def require_still(self, principal: Principal, right: Right) -> None:
        """Who was let in and waits since may still do it.

        Raises:
            ProblemError: `unauthenticated`, `forbidden`.
        """
        code = lost(self._authorizer, principal, right)
        if code is not None:
            raise ProblemError(code, "no longer")

    async def caller(self, request: Request, right: Right) -> Caller:
        """Who asks, about a run of their tenant that exists.

        Raises:
            ProblemError: `unauthenticated`, `forbidden`, `run_not_found`.
            Retryable: the log cannot be read.
        """
        principal = await self.principal(request, right)
        run_id = str(request.path_params["run_id"])
        if not is_id(run_id):
            raise ProblemError(Code.RUN_NOT_FOUND)
        run_log = self._run_logs.of(RunAddress(principal.tenant_id, run_id))
        # A run never ceases to exist, so what is known of it suffices.
        if not run_log.lifecycle.exists and not await self._is_there(run_log):
            self._run_logs.forget(run_log.address)
            raise ProblemError(Code.RUN_NOT_FOUND)
        return Caller(principal, run_log)

    async def _is_there(self, run_log: RunLog) -> bool:
        if (await run_log.load()).exists:
            return True
        if not self._look_again_s:
            return False
        # Any replica may answer, and one may not have what its leader acknowledged a moment ago.
        await asyncio.sleep(self._look_again_s)
        return (await run_log.load()).exists


def user(principal: Principal) -> Actor:
    """The one who asks, as the author of facts."""
    return Actor(kind="user", id=principal.subject)


def traceparent(request: Request) -> str | None:
    """The caller's trace, if it named one in the form of the W3C."""
    text = request.headers.get("traceparent", "")
    return text if _TRACEPARENT.fullmatch(text) else None


def idempotency_key(request: Request, field: IdempotencyKey | None) -> IdempotencyKey | None:
    """The key from the header, in UTF-8, or from the body's field.

    Raises:
        ProblemError: `invalid_request`: both and different, empty, or too long.
    """
    header = request.headers.get("idempotency-key")
    if header is None:
        return field
    header = _utf8(header)
    if not 1 <= len(header) <= MAX_KEY:
        raise ProblemError(Code.INVALID_REQUEST, f"Idempotency-Key: 1 to {MAX_KEY} characters")
    if field is not None and field != header:
        raise ProblemError(Code.INVALID_REQUEST, "Idempotency-Key and idempotency_key differ")
    return header


def _utf8(header: str) -> str:
    """A header is bytes: they are read as UTF-8, as the key is elsewhere, and as they are where they are none."""
    try:
        return header.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return header
