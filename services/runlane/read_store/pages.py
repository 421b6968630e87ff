"""Page tokens: where a list goes on. Opaque to clients; never trusted with the tenant."""

import base64

import msgspec

_DECODER = msgspec.json.Decoder(tuple[str, ...])


class PageTokenInvalid(ValueError):
    """The text is not a page token of this list."""


def page_token(*key: str) -> str:
    """The token of the page that starts after the row with this key."""
    return base64.urlsafe_b64encode(msgspec.json.encode(key)).rstrip(b"=").decode()


def after(token: str, *, fields: int) -> tuple[str, ...]:
    """The key in a token.

    Raises:
        PageTokenInvalid: not one of ours.
    """
    try:
        raw = base64.b64decode(token.encode() + b"=" * (-len(token) % 4), altchars=b"-_", validate=True)
        key = _DECODER.decode(raw)
    except (ValueError, msgspec.MsgspecError) as exc:
        raise PageTokenInvalid("not a page token") from exc
    if len(key) != fields or any("\0" in part for part in key):
        raise PageTokenInvalid("not a page token of this list")
    return key
