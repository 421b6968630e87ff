"""A place in one run's view: `Position` inside, opaque signed text outside.

Text: ``c1.<payload>.<mac>``, base64url without padding, under 256 characters. The MAC covers the text before
it, so no change of a single character survives. The payload is a MessagePack array.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

import msgspec
from msgspec import Struct

REDUCER_VERSION = 1
MAC_BYTES = 16
MAX_LENGTH = 255

Audience = Literal["ui", "ops"]


class Position(Struct, frozen=True, array_like=True):
    """(stream epoch, stream sequence, run sequence). Comparable only within one stream epoch.

    `sequence` is the last fact applied; `stream_seq` the VIEW message that held it, where reading starts.
    """

    epoch: str
    stream_seq: int
    sequence: int


class Scope(Struct, frozen=True, array_like=True):
    """Who may use a cursor, and for what."""

    tenant_id: str
    run_id: str
    audience: Audience = "ui"
    filter_hash: str = ""


class _Body(Struct, frozen=True, array_like=True):
    key_id: str
    tenant_id: str
    run_id: str
    audience: str
    reducer_version: int
    epoch: str
    stream_seq: int
    sequence: int
    filter_hash: str


class CursorInvalid(ValueError):
    """The text was changed, or is not a cursor of ours."""


class CursorForeign(ValueError):
    """A genuine cursor, but of another run, tenant, audience or filter."""


@dataclass(frozen=True, kw_only=True)
class CursorKeys:
    """Signs with `current`; opens what any key in `keys` signed. Keys are at least 16 bytes."""

    current: str
    keys: Mapping[str, bytes]

    def __post_init__(self) -> None:
        if self.current not in self.keys:
            raise ValueError(f"no key {self.current!r}")
        if any(len(key) < 16 for key in self.keys.values()):
            raise ValueError("a cursor key has at least 16 bytes")

    def seal(self, position: Position, scope: Scope) -> str:
        """The text for a position, under the current key."""
        body = _encode(_ENCODER.encode(_Body(
            self.current, scope.tenant_id, scope.run_id, scope.audience, REDUCER_VERSION,
            position.epoch, position.stream_seq, position.sequence, scope.filter_hash,
        )))  # fmt: skip
        signed = "c1." + body
        return signed + "." + _mac(self.keys[self.current], signed)

    def open(self, text: str, scope: Scope) -> Position:
        """The position in `text`.

        Raises:
            CursorInvalid: not signed by us, or changed.
            CursorForeign: of another scope.
        """
        body = self._verify(text)
        if (body.tenant_id, body.run_id, body.audience, body.filter_hash) != (
            scope.tenant_id, scope.run_id, scope.audience, scope.filter_hash,
        ):  # fmt: skip
            raise CursorForeign("the cursor belongs to another run, tenant, audience or filter")
        return Position(body.epoch, body.stream_seq, body.sequence)

    def _verify(self, text: str) -> _Body:
        version, _, rest = text.partition(".")
        payload, _, mac = rest.partition(".")
        if len(text) > MAX_LENGTH or version != "c1" or not payload or not mac:
            raise CursorInvalid("not a cursor")
        try:
            body = _DECODER.decode(_decode(payload))
        except (ValueError, msgspec.MsgspecError) as exc:
            raise CursorInvalid("not a cursor") from exc
        key = self.keys.get(body.key_id)
        if key is None or not hmac.compare_digest(_mac(key, f"c1.{payload}").encode(), mac.encode()):
            raise CursorInvalid("the cursor was changed, or its key is retired")
        return body


def filter_hash(types: tuple[str, ...]) -> str:
    """Eight hex digits for a set of fact types; empty for no filter."""
    if not types:
        return ""
    return hashlib.sha256(",".join(sorted(set(types))).encode()).hexdigest()[:8]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Body)


def _mac(key: bytes, text: str) -> str:
    mac = _keyed(key).copy()
    mac.update(text.encode())
    return _encode(mac.digest()[:MAC_BYTES])


@cache
def _keyed(key: bytes) -> hmac.HMAC:
    """Preparing the key costs as much as all the rest, and a gateway seals a cursor for every fact it shows."""
    return hmac.new(key, digestmod="sha256")


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def _decode(text: str) -> bytes:
    return base64.b64decode(text.encode() + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
