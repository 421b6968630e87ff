"""JSON Web Tokens (RFC 7519, 9068): signature, issuer, audience and times are checked, claims become a principal."""

import hashlib
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeGuard

import jwt

from runlane.hosting.authorizer import Principal, Right
from runlane.hosting.revoked_tokens import IsRevoked, nothing_revoked
from runlane.hosting.token_keys import Key, KeySet, KeySource
from runlane.kernel.clock import Now
from runlane_contracts.ids import is_tenant

MAX_TOKEN_BYTES = 8192
MAX_REMEMBERED = 4096
"""Tokens whose signature need not be checked again."""
_MAX_SUBJECT = 256
_KIND = "jwt:"
_FAR_S = 253_402_300_799  # the last second that a datetime can name
_RIGHTS = {right.value: right for right in Right}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """What a token must say, and where it says who comes."""

    issuer: str
    audience: str
    leeway_s: float = 10.0
    """By how much the clocks of the issuer and of this machine may differ."""
    tenant_claim: str = "tenant_id"
    subject_claim: str = "sub"
    rights_claim: str = "scope"
    rights_prefix: str = "runlane:"
    """What a value of the rights claim begins with when it is meant for here."""
    default_rights: frozenset[Right] = frozenset()
    """Of tokens without that claim."""


@dataclass(frozen=True, slots=True)
class _Known:
    principal: Principal
    keys: KeySet
    """Those it was checked with. Others: it is checked again."""


class TokenAuthorizer:
    """Lets in whom an issuer vouches for."""

    def __init__(
        self, rules: TokenRules, source: KeySource, *, now: Now, is_revoked: IsRevoked = nothing_revoked
    ) -> None:
        self._rules, self._source, self._now, self._is_revoked = rules, source, now, is_revoked
        self._known: OrderedDict[str, _Known] = OrderedDict()

    async def authenticate(self, bearer: str) -> Principal | None:
        """Whose token it is. For a key that is not known, an issuer that serves its keys is asked for new ones."""
        if not looks_like_a_token(bearer):
            return None
        hashed = hashlib.sha256(bearer.encode()).hexdigest()
        known = self._known.get(hashed)
        if known is None or known.keys is not self._source.keys:
            return await self._check(bearer, hashed)
        self._known.move_to_end(hashed)
        return self.revalidate(known.principal)

    def revalidate(self, principal: Principal) -> Principal | None:
        """See `Authorizer`. Ends with the token, when it is revoked, and when its key is no longer one that counts."""
        if not principal.credential.startswith(_KIND) or principal.has_expired(self._now()):
            return None
        _, thumbprint, issued_at, jti = principal.credential.split(":", 3)
        if thumbprint not in self._source.keys.thumbprints or self._is_revoked(principal, jti, float(issued_at)):
            return None
        return principal

    async def _check(self, bearer: str, hashed: str) -> Principal | None:
        try:
            header = jwt.get_unverified_header(bearer)
            named = (header.get("kid"), str(header.get("alg")))
            if self._source.keys.find(*named) is None:
                await self._source.ask_again()
            keys = self._source.keys
            key = keys.find(*named)
            principal = None if key is None else self._principal(bearer, key)
        except (jwt.PyJWTError, ValueError):
            return None
        if principal is not None:
            self._known[hashed] = _Known(principal, keys)
            if len(self._known) > MAX_REMEMBERED:
                self._known.popitem(last=False)
        return None if principal is None else self.revalidate(principal)

    def _principal(self, bearer: str, key: Key) -> Principal | None:
        rules = self._rules
        claims = jwt.decode(
            bearer, key.jwk, algorithms=[key.jwk.algorithm_name], issuer=rules.issuer, audience=rules.audience,
            options={
                "require": ["exp", "iss", "aud"], "enforce_minimum_key_length": True,
                # Times are compared with this process's own clock; the rest means nothing here.
                "verify_exp": False, "verify_nbf": False, "verify_iat": False, "verify_sub": False, "verify_jti": False,
            },
        )  # fmt: skip
        issued_at, jti = _moment(claims.get("iat", 0)), claims.get("jti", "")
        if issued_at is None or not isinstance(jti, str):
            return None
        credential = f"{_KIND}{key.thumbprint}:{issued_at.timestamp()}:{jti}"
        return principal_of(claims, rules, credential, self._now())


def looks_like_a_token(bearer: str) -> bool:
    """Whether it may be a signed JWT: three parts. No API key has dots."""
    return bearer.count(".") == 2 and len(bearer) <= MAX_TOKEN_BYTES


def principal_of(claims: Mapping[str, Any], rules: TokenRules, credential: str, now: datetime) -> Principal | None:
    """Who a token of this content speaks for; None: for nobody, not yet, or no longer."""
    leeway = timedelta(seconds=rules.leeway_s)
    ends, starts = _moment(claims.get("exp")), _moment(claims.get("nbf", 0))
    if ends is None or starts is None or now < starts - leeway:
        return None
    tenant_id, subject = _claim(claims, rules.tenant_claim), _claim(claims, rules.subject_claim)
    if not isinstance(tenant_id, str) or not is_tenant(tenant_id) or not _is_subject(subject):
        return None
    principal = Principal(tenant_id, subject, rights_of(claims, rules), ends + leeway, credential)
    return None if principal.has_expired(now) else principal


def rights_of(claims: Mapping[str, Any], rules: TokenRules) -> frozenset[Right]:
    """The rights among the words of the claim: a list, or one text with spaces between, as OAuth writes scopes."""
    said = _claim(claims, rules.rights_claim)
    if said is None:
        return rules.default_rights
    words: Sequence[Any] = said.split() if isinstance(said, str) else said if isinstance(said, list) else ()
    meant = (word.removeprefix(rules.rights_prefix) for word in words
             if isinstance(word, str) and word.startswith(rules.rights_prefix))  # fmt: skip
    return frozenset(_RIGHTS[word] for word in meant if word in _RIGHTS)


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """A claim by its name, or by the path to it (`realm_access.roles`)."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _is_subject(subject: Any) -> TypeGuard[str]:
    return isinstance(subject, str) and 1 <= len(subject) <= _MAX_SUBJECT and subject.isprintable()


def _moment(claim: Any) -> datetime | None:
    """A NumericDate: seconds since 1970, maybe with a fraction."""
    if isinstance(claim, bool) or not isinstance(claim, int | float) or not math.isfinite(claim):
        return None
    return datetime.fromtimestamp(min(max(claim, 0), _FAR_S - 86_400), UTC)
