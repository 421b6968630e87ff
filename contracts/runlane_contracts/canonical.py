"""One spelling of a JSON value, so that two programs hash it alike.

Keys sorted by code point, no spaces, UTF-8 unescaped, and a float written as ECMAScript writes it (a browser
cannot tell ``1.0`` from ``1``, nor ``1e21`` from ``1e+21``). This is RFC 8785 except for two things nobody
meets in practice: RFC 8785 sorts by UTF-16 code unit, and an integer beyond 2^53 is written out here.
"""

import hashlib
from typing import Any

import msgspec

_ENCODER = msgspec.json.Encoder(order="sorted")
_DECODER = msgspec.json.Decoder()


def canonical_json(value: Any) -> bytes:
    """The canonical bytes of a JSON-like value or struct."""
    plain = _DECODER.decode(_ENCODER.encode(value))
    return _ENCODER.encode(_portable(plain))


def sha256_of(value: Any) -> str:
    """``sha256:<hex>`` of the canonical bytes of `value`."""
    return "sha256:" + hashlib.sha256(canonical_json(value)).hexdigest()


def action_digest(name: str, arguments: Any) -> str:
    """What an approval is bound to: the tool's name and exactly these arguments."""
    return sha256_of({"arguments": arguments, "name": name})


def _portable(value: Any) -> Any:
    if isinstance(value, float):
        return msgspec.Raw(ecmascript_number(value).encode())
    if isinstance(value, dict):
        return {key: _portable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_portable(item) for item in value]
    return value


def ecmascript_number(value: float) -> str:
    """A finite float as ``Number.prototype.toString`` spells it: the shortest digits, placed by their magnitude."""
    if value == 0:
        return "0"
    mantissa, _, exponent = f"{abs(value)!r}".partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = fraction.rstrip("0")
    digits = (whole + fraction).lstrip("0")
    point = len(digits) - len(fraction) + int(exponent or 0)  # where the decimal point goes in `digits`
    digits = digits.rstrip("0")
    return ("-" if value < 0 else "") + _placed(digits, point)


def _placed(digits: str, point: int) -> str:
    if len(digits) <= point <= 21:
        return digits.ljust(point, "0")
    if 0 < point <= 21:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"0.{'0' * -point}{digits}"
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{digits[0]}{tail}e{point - 1:+d}"
