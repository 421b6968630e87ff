"""The keys that JSON Web Tokens are checked with: a secret, a JWKS file, or a JWKS that an issuer serves.

A key is bound to its algorithm before any token is seen (RFC 8725, 3.1): what a token says of itself picks among
these pairs and nothing else, so a public key never serves as an HMAC secret, and `none` is not among them.
"""

import asyncio
import base64
import hashlib
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import httpx
import msgspec
from jwt import PyJWK, PyJWTError

from runlane.hosting.watched_file import WatchedFile
from runlane.kernel.clock import Now
from runlane_contracts.telemetry import LogEvent

log = logging.getLogger(__name__)

SYMMETRIC = frozenset({"HS256", "HS384", "HS512"})
ALGORITHMS = MappingProxyType({
    "RSA": frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}),
    "EC": frozenset({"ES256", "ES384", "ES512"}),
    "OKP": frozenset({"EdDSA"}),
    "oct": SYMMETRIC,
})  # fmt: skip
"""By the kind of key, all that may be asked for."""
_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521", "EdDSA": "Ed25519"}
MAX_JWKS_BYTES = 1024 * 1024
_FETCH_TIMEOUT_S = 5.0
_ASK_AGAIN_S = 10.0
"""For a key nobody knows, an issuer is asked so often at most."""

_THUMBPRINT_OF = {"RSA": ("e", "kty", "n"), "EC": ("crv", "kty", "x", "y"), "OKP": ("crv", "kty", "x"),
                  "oct": ("k", "kty")}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Key:
    """A key and the one algorithm it is used with."""

    jwk: PyJWK
    thumbprint: str
    """Of the key itself (RFC 7638), whatever it is called."""


class KeySet:
    """Keys by what a token says of itself. Does not change; a change makes another set."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._by_name: dict[tuple[str | None, str], Key] = {}
        by_algorithm: dict[str, list[Key]] = {}
        for key in keys:
            by_algorithm.setdefault(key.jwk.algorithm_name, []).append(key)
            if isinstance(key.jwk.key_id, str):
                self._by_name[key.jwk.key_id, key.jwk.algorithm_name] = key
        for algorithm, same in by_algorithm.items():
            if len(same) == 1:  # a token that names no key means the only one
                self._by_name[None, algorithm] = same[0]
        self.thumbprints = frozenset(key.thumbprint for same in by_algorithm.values() for key in same)

    def find(self, key_id: str | None, algorithm: str) -> Key | None:
        """The key that a token of this header is checked with."""
        return self._by_name.get((key_id, algorithm))


class KeySource(Protocol):
    """Where the keys are."""

    @property
    def keys(self) -> KeySet:
        """Those that count now."""
        ...

    async def ask_again(self) -> None:
        """A token names a key that is not among them: find out whether it is new. Never raises."""
        ...


class FixedKeys:
    """They do not change."""

    def __init__(self, keys: KeySet) -> None:
        self.keys = keys

    async def ask_again(self) -> None:
        """See `KeySource`."""


class KeyFile:
    """A JWKS file; a change counts within a second."""

    def __init__(self, path: Path, algorithms: Sequence[str], *, now: Now) -> None:
        """Reads it. Raises OSError, ValueError."""
        self._file = WatchedFile(path, lambda content: keys_of_jwks(content, algorithms), now=now)

    @property
    def keys(self) -> KeySet:
        """See `KeySource`."""
        return self._file.value

    async def ask_again(self) -> None:
        """See `KeySource`."""


class ServedKeys:
    """A JWKS that an issuer serves: fetched now and then, and when a token names a key that is not in it."""

    def __init__(self, url: str, algorithms: Sequence[str], client: httpx.AsyncClient, *, now: Now) -> None:
        self.keys = KeySet()
        self._url, self._client, self._now = url, client, now
        # Whatever is served is public: nothing in it can be a secret that proves anything.
        self._algorithms = [name for name in algorithms if name not in SYMMETRIC]
        self._content = b""
        self._asked_at = float("-inf")
        self._asking = asyncio.Lock()

    async def ask_again(self) -> None:
        """See `KeySource`. Asks the issuer every ten seconds at most; those who come meanwhile wait with the first."""
        async with self._asking:
            now = self._now().timestamp()
            if abs(now - self._asked_at) >= _ASK_AGAIN_S:
                self._asked_at = now
                await self.fetch()

    async def fetch(self) -> bool:
        """Ask the issuer. What cannot be fetched or read leaves the keys as they were, and is False."""
        try:
            async with asyncio.timeout(_FETCH_TIMEOUT_S):
                content = await self._get()
            if content != self._content:
                self.keys = keys_of_jwks(content, self._algorithms)
                self._content = content
                log.info(
                    "%d keys from %s", len(self.keys.thumbprints), self._url, extra={"event": LogEvent.ACCESS_CHANGED}
                )
        except (httpx.HTTPError, TimeoutError, ValueError) as exc:
            complaint = f"{type(exc).__name__} {exc}"
            log.warning("no keys from %s: %s", self._url, complaint, extra={"event": LogEvent.ACCESS_UNREADABLE})
            return False
        return True

    async def _get(self) -> bytes:
        async with self._client.stream("GET", self._url) as reply:
            reply.raise_for_status()
            content = bytearray()
            async for chunk in reply.aiter_bytes():
                content += chunk
                if len(content) > MAX_JWKS_BYTES:
                    raise ValueError("more than a JWKS can be")
            return bytes(content)

    async def keep_fresh(self, every_s: float) -> None:
        """Fetch for ever: at once, then every so often, sooner while it fails."""
        retry_s = 1.0
        while True:
            fetched = await self.fetch()
            retry_s = 1.0 if fetched else min(2 * retry_s, every_s)
            await asyncio.sleep(every_s if fetched else retry_s)


@asynccontextmanager
async def served_keys(url: str, algorithms: Sequence[str], *, every_s: float, now: Now) -> AsyncIterator[ServedKeys]:
    """The keys at a URL, kept fresh while the block lasts. An issuer that is not there yet is waited for meanwhile."""
    async with httpx.AsyncClient(follow_redirects=False, trust_env=False, timeout=_FETCH_TIMEOUT_S) as client:
        served = ServedKeys(url, algorithms, client, now=now)
        task = asyncio.get_running_loop().create_task(served.keep_fresh(every_s))
        try:
            yield served
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def keys_of_secret(secret: bytes, algorithms: Sequence[str]) -> KeySet:
    """One secret, for tokens signed with an HMAC.

    Raises:
        ValueError: it is shorter than what it signs (RFC 7518, 3.2).
    """
    for name in algorithms:
        if 8 * len(secret) < int(name[2:]):
            raise ValueError(f"a secret for {name} has at least {int(name[2:]) // 8} bytes")
    entry = {"kty": "oct", "k": base64.urlsafe_b64encode(secret).rstrip(b"=").decode()}
    return KeySet(Key(PyJWK(entry, name), _thumbprint(entry)) for name in algorithms)


def keys_of_jwks(content: bytes, algorithms: Sequence[str]) -> KeySet:
    """The keys of a JSON Web Key Set (RFC 7517) that check signatures, for these algorithms only.

    Raises:
        ValueError: it is no key set.
    """
    try:
        document: Any = msgspec.json.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise ValueError(f"no JSON: {exc}") from exc
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError('no key set: {"keys": [...]}')
    return KeySet(key for entry in entries for key in _keys_of(entry, algorithms))


def _keys_of(entry: dict[str, Any], algorithms: Sequence[str]) -> Iterator[Key]:
    for name in _algorithms_of(entry, algorithms):
        with suppress(PyJWTError):  # what is no key is not one of ours: others share the set
            yield Key(PyJWK(entry, name), _thumbprint(entry))


def _algorithms_of(entry: dict[str, Any], allowed: Sequence[str]) -> list[str]:
    operations = entry.get("key_ops")
    if entry.get("use", "sig") != "sig" or (isinstance(operations, list) and "verify" not in operations):
        return []
    fitting = ALGORITHMS.get(str(entry.get("kty")), frozenset())
    said, curve = entry.get("alg"), entry.get("crv")
    return [
        name
        for name in allowed
        if name in fitting and (said is None or said == name) and (name not in _CURVES or _CURVES[name] == curve)
    ]


def _thumbprint(entry: dict[str, Any]) -> str:
    named = {name: entry.get(name) for name in _THUMBPRINT_OF[entry["kty"]]}
    return hashlib.sha256(msgspec.json.encode(named, order="sorted")).hexdigest()
