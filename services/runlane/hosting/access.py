"""Who is let in, as the settings say: with an API key, or with a token of an issuer that is trusted."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from runlane.hosting.api_keys import ApiKeyAuthorizer
from runlane.hosting.authorizer import Authorizer, Principal, Right
from runlane.hosting.revoked_tokens import nothing_revoked, revoked_in
from runlane.hosting.settings import AccessSettings, SettingsInvalid
from runlane.hosting.token_keys import ALGORITHMS, SYMMETRIC, FixedKeys, KeyFile, KeySource, keys_of_secret, served_keys
from runlane.hosting.web_tokens import TokenAuthorizer, TokenRules, looks_like_a_token
from runlane.kernel.clock import Now, utc_now

_EVERY_ALGORITHM = frozenset().union(*ALGORITHMS.values())
_LOOPBACK = ("http://127.0.0.1:", "http://localhost:", "http://[::1]:")


class EitherAuthorizer:
    """API keys and web tokens side by side."""

    def __init__(self, keys: ApiKeyAuthorizer, tokens: TokenAuthorizer) -> None:
        self._keys, self._tokens = keys, tokens

    async def authenticate(self, bearer: str) -> Principal | None:
        """See `Authorizer`."""
        found = await self._keys.authenticate(bearer)
        return await self._tokens.authenticate(bearer) if found is None and looks_like_a_token(bearer) else found

    def revalidate(self, principal: Principal) -> Principal | None:
        """See `Authorizer`."""
        return self._keys.revalidate(principal) or self._tokens.revalidate(principal)


@asynccontextmanager
async def authorizer_of(settings: AccessSettings, *, now: Now = utc_now) -> AsyncIterator[Authorizer]:
    """What the settings say, while the block lasts.

    Raises:
        SettingsInvalid: they say nothing sensible, or name a file that cannot be read.
    """
    async with AsyncExitStack() as stack:
        try:
            authorizer = await _made(settings, stack, now)
        except (ValueError, OSError) as exc:
            raise SettingsInvalid(f"who is let in: {exc}") from exc
        yield authorizer


async def _made(settings: AccessSettings, stack: AsyncExitStack, now: Now) -> Authorizer:
    keys = ApiKeyAuthorizer.of_settings(settings, now=now)
    source = await _source(settings, stack, now)
    if source is None:
        return keys
    path = settings.jwt_revoked_file
    is_revoked = nothing_revoked if path is None else revoked_in(path, now=now)
    return EitherAuthorizer(keys, TokenAuthorizer(_rules(settings), source, now=now, is_revoked=is_revoked))


async def _source(settings: AccessSettings, stack: AsyncExitStack, now: Now) -> KeySource | None:
    secret, path, url = settings.jwt_secret, settings.jwt_jwks_file, settings.jwt_jwks_url
    given = [one for one in (secret, path, url) if one is not None]
    if len(given) > 1:
        raise ValueError("only one of RUNLANE_JWT_SECRET, RUNLANE_JWT_JWKS_FILE, RUNLANE_JWT_JWKS_URL")
    if secret is not None:
        return FixedKeys(keys_of_secret(secret.get_secret_value().encode(), _algorithms(settings, "HS256", SYMMETRIC)))
    asymmetric = _EVERY_ALGORITHM - SYMMETRIC
    if path is not None:
        return KeyFile(path, _algorithms(settings, "RS256,ES256,EdDSA", _EVERY_ALGORITHM), now=now)
    if url is not None:
        if not url.startswith(("https://", *_LOOPBACK)):
            raise ValueError("RUNLANE_JWT_JWKS_URL: https, or http on loopback")
        algorithms = _algorithms(settings, "RS256,ES256,EdDSA", asymmetric)
        return await stack.enter_async_context(
            served_keys(url, algorithms, every_s=settings.jwt_jwks_refresh_s, now=now)
        )
    return None


def _algorithms(settings: AccessSettings, default: str, allowed: frozenset[str]) -> list[str]:
    names = [name.strip() for name in (settings.jwt_algorithms or default).split(",") if name.strip()]
    wrong = [name for name in names if name not in allowed]
    if wrong or not names:
        raise ValueError(f"RUNLANE_JWT_ALGORITHMS: {', '.join(wrong)} cannot be used with these keys")
    return names


def _rules(settings: AccessSettings) -> TokenRules:
    if not settings.jwt_issuer or not settings.jwt_audience:
        raise ValueError("tokens need RUNLANE_JWT_ISSUER and RUNLANE_JWT_AUDIENCE: whose they are, and meant for whom")
    words = [word.strip() for word in settings.jwt_default_rights.split(",") if word.strip()]
    return TokenRules(
        issuer=settings.jwt_issuer,
        audience=settings.jwt_audience,
        leeway_s=settings.jwt_leeway_s,
        tenant_claim=settings.jwt_tenant_claim,
        subject_claim=settings.jwt_subject_claim,
        rights_claim=settings.jwt_rights_claim,
        rights_prefix=settings.jwt_rights_prefix,
        default_rights=frozenset(Right(word) for word in words),
    )
