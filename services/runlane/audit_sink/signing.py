"""Ed25519 keys: the sink's own, and those that are trusted. `cryptography` is loaded when the first one is used."""

import hashlib
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from runlane.audit_sink.chain import Verify

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SEED_BYTES = 32


class Signer:
    """Signs with one key, made from its 32-byte seed."""

    def __init__(self, seed: bytes) -> None:
        if len(seed) != SEED_BYTES:
            raise ValueError(f"an Ed25519 seed has {SEED_BYTES} bytes")
        self._seed = seed

    @cached_property
    def _key(self) -> "Ed25519PrivateKey":
        from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415 - 0.05 s that no start waits for
            Ed25519PrivateKey,
        )

        return Ed25519PrivateKey.from_private_bytes(self._seed)

    @cached_property
    def public_key(self) -> bytes:
        """The 32 bytes that others verify with."""
        return self._key.public_key().public_bytes_raw()

    @cached_property
    def key_id(self) -> str:
        """Follows from the public key."""
        return key_id_of(self.public_key)

    def sign(self, message: bytes) -> bytes:
        """Sign it."""
        return self._key.sign(message)


def from_hex(text: str) -> bytes:
    """Lower-case hex and nothing else: every value has one spelling. Raises ValueError."""
    data = bytes.fromhex(text)
    if data.hex() != text:
        raise ValueError("not lower-case hex")
    return data


def key_id_of(public_key: bytes) -> str:
    """How a public key is named: nobody can give its name to another."""
    return hashlib.sha256(public_key).hexdigest()[:16]


def verifier(public_key: bytes) -> Verify:
    """Checks signatures of one key. Raises ValueError: no such key."""
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415

    key = Ed25519PublicKey.from_public_bytes(public_key)

    def verify(message: bytes, signature: bytes) -> bool:
        try:
            key.verify(signature, message)
        except InvalidSignature:
            return False
        return True

    return verify


def verifiers(public_keys: Iterable[bytes]) -> Mapping[str, Verify]:
    """By key id."""
    return {key_id_of(key): verifier(key) for key in public_keys}
