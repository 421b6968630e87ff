"""What people may see of a piece of content: all of it, a copy without the secrets, or nothing. Pure.

Text is searched like everything else that goes to people, JSON string by string. What cannot be searched is kept from
them: packed files, and what is too large. Other binary content (a picture, say) is shown if no secret stands in it.
"""

import codecs
from typing import Literal

import msgspec
from msgspec import Struct

from runlane.masking.masker import mask_text, walk_value
from runlane.masking.scanner import Scanner
from runlane_contracts.codec import decode_json, encode

MAX_SEARCHED_BYTES = 16 * 1024 * 1024

Shown = Literal["as_it_is", "masked", "vaulted"]

_PACKED = (b"\x1f\x8b", b"PK\x03\x04", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ\x00", b"7z\xbc\xaf\x27\x1c", b"Rar!")
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"), (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip
"""The longer ones first: one of them begins with a shorter one."""


class Seen(Struct, frozen=True):
    """`view`: the copy that is shown, where it is `masked`."""

    shown: Shown
    view: bytes | None = None


VAULTED = Seen("vaulted")
AS_IT_IS = Seen("as_it_is")


def seen(data: bytes, media_type: str, scanner: Scanner) -> Seen:
    """What people may see of this content."""
    if len(data) > MAX_SEARCHED_BYTES or data.startswith(_PACKED):
        return VAULTED
    encoding = next((name for mark, name in _MARKS if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeError:
        return VAULTED if scanner.spans(data) else AS_IT_IS
    masked = _masked_json(text, media_type, scanner)
    if masked is None:
        masked, found = mask_text(text, scanner)
        if not found:
            return AS_IT_IS
    return Seen("masked", masked.encode(encoding))


def _masked_json(text: str, media_type: str, scanner: Scanner) -> str | None:
    """JSON without its secrets, which escapes may hide; None: it is no JSON, or holds none."""
    kind = media_type.partition(";")[0].strip().lower()
    if not kind.endswith(("/json", "+json")):
        return None
    try:
        value = decode_json(text)
        masked = walk_value(value, lambda one: mask_text(one, scanner)[0])
    except (msgspec.MsgspecError, RecursionError):
        return None
    return None if masked == value else encode(masked).decode()
