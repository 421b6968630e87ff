"""Who is asking: a bearer token becomes a principal, whose tenant and rights come from nowhere else."""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Protocol, Self

import msgspec
from msgspec import Meta, Struct
from starlette.requests import HTTPConnection

from runlane.hosting.http import ProblemError, bearer_token
from runlane.hosting.settings import AccessSettings
from runlane_contracts.ids import TENANT_PATTERN, is_tenant
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
    """Who asks, for which tenant, with which rights."""

    tenant_id: str
    subject: str
    rights: frozenset[Right] = EVERY_RIGHT

    def may(self, right: Right) -> bool:
        """Whether the right is among its own."""
        return right in self.rights


class Authorizer(Protocol):
    """Knows tokens."""

    async def authenticate(self, bearer: str) -> Principal | None:
        """Whose token it is; None for one that is not (or no longer) valid."""
        ...


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


class KeyRecord(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One API key in a key file: the SHA-256 of the key, never the key."""

    tenant_id: Annotated[str, Meta(pattern=TENANT_PATTERN)]
    subject: str
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    rights: tuple[Right, ...] = tuple(Right)


@dataclass(frozen=True, kw_only=True)
class ApiKeyAuthorizer:
    """Long random keys, known here by their hash only."""

    principals: Mapping[str, Principal] = field(repr=False)
    """By the SHA-256 of the key, in hex."""

    @classmethod
    def of_tokens(cls, tokens: Iterable[tuple[str, Principal]]) -> Self:
        """Of keys in clear."""
        return cls(principals={key_hash(token): principal for token, principal in tokens})

    @classmethod
    def of_text(cls, text: str) -> Self:
        """Of ``tenant:key,tenant:key`` or ``tenant/subject:key``, each with every right.

        Raises:
            ValueError: another form, or no tenant id.
        """
        return cls.of_tokens(_pair(entry) for entry in text.split(",") if entry.strip())

    @classmethod
    def of_file(cls, path: Path) -> Self:
        """Of a JSON list of `KeyRecord`.

        Raises:
            OSError, msgspec.MsgspecError.
        """
        records = msgspec.json.decode(path.read_bytes(), type=list[KeyRecord])
        return cls(
            principals={
                record.sha256: Principal(record.tenant_id, record.subject, frozenset(record.rights))
                for record in records
            }
        )

    @classmethod
    def of_settings(cls, settings: AccessSettings) -> Self:
        """All keys of the settings.

        Raises:
            ValueError, OSError, msgspec.MsgspecError: they cannot be read.
        """
        text = "" if settings.api_keys is None else settings.api_keys.get_secret_value()
        known = dict(cls.of_text(text).principals)
        if settings.api_keys_file is not None:
            known |= cls.of_file(settings.api_keys_file).principals
        return cls(principals=known)

    async def authenticate(self, bearer: str) -> Principal | None:
        """Whose key it is. Takes as long for every key, known or not."""
        asked = key_hash(bearer)
        found: Principal | None = None
        for known, principal in self.principals.items():
            if hmac.compare_digest(known, asked):
                found = principal
        return found


def key_hash(token: str) -> str:
    """What is kept of a key. Keys are long and random, so a plain hash cannot be searched backwards."""
    return hashlib.sha256(token.encode()).hexdigest()


def _pair(entry: str) -> tuple[str, Principal]:
    who, colon, token = entry.strip().partition(":")
    tenant_id, _, subject = who.partition("/")
    if not colon or not token or not is_tenant(tenant_id):
        raise ValueError("API keys are written tenant:key, separated by commas")
    return token, Principal(tenant_id, subject or tenant_id)
