"""API keys: long random texts, known here by their hash only, from a setting or from a file that may change."""

import hashlib
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Self

import msgspec
from msgspec import Meta, Struct

from runlane.hosting.authorizer import Principal, Right
from runlane.hosting.settings import AccessSettings
from runlane.hosting.watched_file import WatchedFile
from runlane.kernel.clock import Now, utc_now
from runlane_contracts.ids import TENANT_PATTERN, is_tenant

ID_CHARS = 12
Principals = Mapping[str, Principal]
"""By the SHA-256 of the key, in hex."""


class KeyRecord(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One API key in a key file: the SHA-256 of the key, never the key."""

    tenant_id: Annotated[str, Meta(pattern=TENANT_PATTERN)]
    subject: Annotated[str, Meta(min_length=1, max_length=256)]
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    rights: tuple[Right, ...] = tuple(Right)
    expires_at: Annotated[datetime, Meta(tz=True)] | None = None

    @property
    def key_id(self) -> str:
        """What people call the key: it names it and does not give it away."""
        return self.sha256[:ID_CHARS]

    def principal(self) -> Principal:
        """Who comes with this key."""
        return Principal(self.tenant_id, self.subject, frozenset(self.rights), self.expires_at, f"key:{self.sha256}")


class ApiKeyAuthorizer:
    """Knows the keys that it was made with, and those that are in its file now."""

    def __init__(
        self,
        fixed: Principals = MappingProxyType({}),
        file: WatchedFile[Principals] | None = None,
        *,
        now: Now = utc_now,
    ) -> None:
        self._fixed, self._file, self._now = fixed, file, now

    @classmethod
    def of_tokens(cls, tokens: Iterable[tuple[str, Principal]]) -> Self:
        """Of keys in clear."""
        records = (
            KeyRecord(tenant_id=who.tenant_id, subject=who.subject, sha256=key_hash(token), rights=tuple(who.rights),
                      expires_at=who.expires_at)
            for token, who in tokens
        )  # fmt: skip
        return cls(_by_hash(records))

    @classmethod
    def of_text(cls, text: str) -> Self:
        """Of ``tenant:key,tenant:key`` or ``tenant/subject:key``, each with every right.

        Raises:
            ValueError: another form, or no tenant id.
        """
        return cls.of_tokens(_pair(entry) for entry in text.split(",") if entry.strip())

    @classmethod
    def of_file(cls, path: Path, *, now: Now = utc_now) -> Self:
        """Of a JSON list of `KeyRecord`; a change of the file counts within a second. Raises OSError, ValueError."""
        return cls(file=WatchedFile(path, _principals, now=now), now=now)

    @classmethod
    def of_settings(cls, settings: AccessSettings, *, now: Now = utc_now) -> Self:
        """All keys of the settings.

        Raises:
            ValueError, OSError: they cannot be read.
        """
        text = "" if settings.api_keys is None else settings.api_keys.get_secret_value()
        path = settings.api_keys_file
        file = None if path is None else WatchedFile(path, _principals, now=now)
        return cls(cls.of_text(text).principals, file, now=now)

    @property
    def principals(self) -> Principals:
        """All that are known now. What the file says of a key counts."""
        return self._fixed if self._file is None else {**self._fixed, **self._file.value}

    async def authenticate(self, bearer: str) -> Principal | None:
        """Whose key it is. A look-up by hash: how long it takes says nothing about any key."""
        return self._valid(key_hash(bearer))

    def revalidate(self, principal: Principal) -> Principal | None:
        """See `Authorizer`."""
        return self._valid(principal.credential.removeprefix("key:"))

    def _valid(self, hashed: str) -> Principal | None:
        found = None if self._file is None else self._file.value.get(hashed)
        found = found or self._fixed.get(hashed)
        return None if found is None or found.has_expired(self._now()) else found


def key_hash(token: str) -> str:
    """What is kept of a key. Keys are long and random, so a plain hash cannot be searched backwards."""
    return hashlib.sha256(token.encode()).hexdigest()


def _principals(content: bytes) -> Principals:
    return _by_hash(msgspec.json.decode(content, type=list[KeyRecord]))


def _by_hash(records: Iterable[KeyRecord]) -> Principals:
    return {record.sha256: record.principal() for record in records}


def _pair(entry: str) -> tuple[str, Principal]:
    who, colon, token = entry.strip().partition(":")
    tenant_id, _, subject = who.partition("/")
    if not colon or not token or not is_tenant(tenant_id):
        raise ValueError("API keys are written tenant:key, separated by commas")
    return token, Principal(tenant_id, subject or tenant_id)
