"""Web tokens that are not accepted any more although their time is not over: a file that an operator edits."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from runlane.hosting.authorizer import Principal
from runlane.hosting.watched_file import WatchedFile
from runlane.kernel.clock import Now

_Moment = Annotated[datetime, Meta(tz=True)]
IsRevoked = Callable[[Principal, str, float], bool]
"""Whether a token of this principal, with this `jti` and this `iat`, is revoked."""


class Revocation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One line of the file: a token by its `jti`, or all of a subject, of one tenant or any, issued before a moment."""

    jti: Annotated[str, Meta(min_length=1)] | None = None
    subject: Annotated[str, Meta(min_length=1)] | None = None
    tenant_id: str | None = None
    before: _Moment | None = None

    def __post_init__(self) -> None:
        """Raises ValueError: it would mean every token, or two things at once."""
        if (self.jti is None) == (self.subject is None):
            raise ValueError("a revocation names a jti or a subject")

    def is_about(self, principal: Principal, jti: str, issued_at: float) -> bool:
        """Whether the token is meant. One that does not say when it was issued is as old as can be."""
        if self.tenant_id not in {None, principal.tenant_id}:
            return False
        if self.jti is not None:
            return self.jti == jti
        return self.subject == principal.subject and (
            self.before is None or issued_at < self.before.astimezone(UTC).timestamp()
        )


def nothing_revoked(_principal: Principal, _jti: str, _issued_at: float) -> bool:
    """No token is."""
    return False


def revoked_in(path: Path, *, now: Now) -> IsRevoked:
    """What a file says; a change counts within a second. Raises OSError, ValueError: it cannot be read."""
    file: WatchedFile[Sequence[Revocation]] = WatchedFile(path, _decoded, now=now)

    def is_revoked(principal: Principal, jti: str, issued_at: float) -> bool:
        return any(one.is_about(principal, jti, issued_at) for one in file.value)

    return is_revoked


def _decoded(content: bytes) -> Any:
    return msgspec.json.decode(content, type=list[Revocation])
