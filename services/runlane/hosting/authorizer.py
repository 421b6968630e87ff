"""Who is asking: a bearer token becomes a principal, whose tenant and rights come from nowhere else."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from starlette.requests import HTTPConnection

from runlane.hosting.http import ProblemError, bearer_token
from runlane_contracts.problems import Code

PRINCIPAL = "runlane.principal"
"""Where a request's scope has its principal, once it has one."""


class Right(StrEnum):
    """What a principal may do with the runs of its tenant."""

    VIEW = "view"  # read and watch
    OPERATE = "operate"  # start runs and send commands
    PRODUCE = "produce"  # take leases, state facts, publish previews, claim work


EVERY_RIGHT = frozenset(Right)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks, for which tenant, with which rights, until when. Holds nothing that would let anybody in."""

    tenant_id: str
    subject: str
    rights: frozenset[Right] = EVERY_RIGHT
    expires_at: datetime | None = None
    """In UTC. From then on the credentials are no longer valid; None: they do not end by themselves."""
    credential: str = field(default="", compare=False, repr=False)
    """By which credentials it came in, as the authorizer that made it names them; of no meaning to others."""

    def may(self, right: Right) -> bool:
        """Whether the right is among its own."""
        return right in self.rights

    def has_expired(self, now: datetime) -> bool:
        """Whether its credentials have ended by themselves."""
        return self.expires_at is not None and self.expires_at <= now


class Authorizer(Protocol):
    """Knows tokens."""

    async def authenticate(self, bearer: str) -> Principal | None:
        """Whose token it is; None for one that is not (or no longer) valid."""
        ...

    def revalidate(self, principal: Principal) -> Principal | None:
        """What a principal that was let in earlier is now; None when its credentials were revoked or have expired.

        Never waits and costs little: whoever serves open streams asks once a second for each of them. A change of the
        credentials counts within two seconds.
        """
        ...


def lost(authorizer: Authorizer, principal: Principal, right: Right) -> Code | None:
    """Why a principal that was let in may no longer use a right: `unauthenticated`, `forbidden`; None: it still may."""
    now = authorizer.revalidate(principal)
    if now is None or now.tenant_id != principal.tenant_id:
        return Code.UNAUTHENTICATED
    return None if now.may(right) else Code.FORBIDDEN


async def require(connection: HTTPConnection, authorizer: Authorizer, right: Right) -> Principal:
    """The principal of a request that has the right.

    Raises:
        ProblemError: `unauthenticated`, or `forbidden`.
    """
    bearer = bearer_token(connection)
    principal = None if bearer is None else await authorizer.authenticate(bearer)
    if principal is None:
        raise ProblemError(Code.UNAUTHENTICATED, headers={"WWW-Authenticate": "Bearer"})
    connection.scope[PRINCIPAL] = principal  # whoever records that it was refused later, knows whom
    if not principal.may(right):
        raise ProblemError(Code.FORBIDDEN, f"the right to {right.value} is missing")
    return principal
