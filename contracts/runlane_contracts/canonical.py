"""One spelling of a JSON value, so that two programs hash it alike.

Keys sorted by code point, no spaces, UTF-8 unescaped, and a float without a fraction is written as an
integer (a browser cannot tell ``1.0`` from ``1``). This is RFC 8785 for every value an agent sends in
practice; it differs only in that integers beyond 2^53 are written out instead of refused.
"""

import hashlib
from typing import Any

import msgspec

_ENCODER = msgspec.json.Encoder(order="sorted")
_DECODER = msgspec.json.Decoder()


def canonical_json(value: Any) -> bytes:
    """The canonical bytes of a JSON-like value or struct."""
    plain = _DECODER.decode(_ENCODER.encode(value))
    return _ENCODER.encode(_integral(plain))


def sha256_of(value: Any) -> str:
    """``sha256:<hex>`` of the canonical bytes of `value`."""
    return "sha256:" + hashlib.sha256(canonical_json(value)).hexdigest()


def action_digest(name: str, arguments: Any) -> str:
    """What an approval is bound to: the tool's name and exactly these arguments."""
    return sha256_of({"arguments": arguments, "name": name})


def _integral(value: Any) -> Any:
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if isinstance(value, dict):
        return {key: _integral(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_integral(item) for item in value]
    return value
