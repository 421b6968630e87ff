"""An issuer of JSON Web Tokens, and a clock that stands still until it is told."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import get_default_algorithms

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ISSUER, AUDIENCE = "https://login.example", "runlane"


class Clock:
    """Time that is told what it is."""

    def __init__(self, at: datetime = NOON) -> None:
        self.at = at

    def __call__(self) -> datetime:
        return self.at

    def passes(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


class Issuer:
    """Signs tokens with one key, and says which it is."""

    def __init__(self, algorithm: str = "ES256", key_id: str | None = "k1") -> None:
        self.algorithm, self.key_id = algorithm, key_id
        self.key: Any = _made(algorithm)

    @property
    def jwk(self) -> dict[str, Any]:
        """The public half."""
        algorithm: Any = get_default_algorithms()[self.algorithm]
        found = json.loads(algorithm.to_jwk(self.key.public_key()))
        found.pop("key_ops", None)
        return found | {"use": "sig"} | ({"kid": self.key_id} if self.key_id else {})

    def token(self, *, now: datetime = NOON, headers: dict[str, Any] | None = None, **claims: Any) -> str:
        """For an hour for `ann` of `acme` with every right, unless said otherwise; a claim that is None is left out."""
        said = {
            "iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "tenant_id": "acme", "exp": now + timedelta(hours=1),
            "scope": "openid runlane:view runlane:operate runlane:produce",
        } | claims  # fmt: skip
        kept = {name: value for name, value in said.items() if value is not None}
        named = {"kid": self.key_id} if self.key_id else {}
        return jwt.encode(kept, self.key, self.algorithm, headers=named | (headers or {}))


def jwks(*issuers: Issuer, more: tuple[dict[str, Any], ...] = ()) -> bytes:
    """What they serve."""
    return json.dumps({"keys": [*more, *(issuer.jwk for issuer in issuers)]}).encode()


def _made(algorithm: str) -> Any:
    if algorithm.startswith("ES"):
        return ec.generate_private_key(ec.SECP384R1() if algorithm == "ES384" else ec.SECP256R1())
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(65_537, 2048)
