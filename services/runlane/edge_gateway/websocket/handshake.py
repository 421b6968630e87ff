"""Who may open a connection: where a page comes from, and which token it brought. Pure.

A program sends `Authorization: Bearer …`. A page cannot set headers on a WebSocket, so it offers its token as a
subprotocol beside `runlane.v1`. In the address a token would end in logs and histories; it is refused there.
"""

import base64
import binascii
from collections.abc import Iterable
from urllib.parse import parse_qsl, urlsplit

from runlane.hosting.http import ProblemError
from runlane_contracts.problems import Code
from runlane_contracts.websocket import SUBPROTOCOL, TOKEN_SUBPROTOCOL

_DEFAULT_PORTS = frozenset({80, 443})
_IN_THE_ADDRESS = frozenset({"token", "access_token", "api_key", "authorization"})
Headers = Iterable[tuple[bytes, bytes]]


def check_origin(headers: Headers, allowed: frozenset[str]) -> None:
    """Let in what is no page, a page of this very host, and the pages that were named.

    Raises:
        ProblemError: `forbidden`.
    """
    origin, host = _header(headers, b"origin"), _header(headers, b"host")
    if origin is None or origin.lower() in allowed:
        return
    if host is None or _place(origin) is None or _place(origin) != _place(f"//{host}"):
        raise ProblemError(Code.FORBIDDEN, "pages of this origin may not connect")


def check_address(query: bytes) -> None:
    """Refuse a token in the address.

    Raises:
        ProblemError: `invalid_request`.
    """
    names = {name.lower() for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True)}
    if names & _IN_THE_ADDRESS:
        raise ProblemError(Code.INVALID_REQUEST, "a token is never sent in the address")


def token_of(headers: Headers, subprotocols: Iterable[str]) -> str | None:
    """The token of a header, else that of a subprotocol; None: there is none that can be read."""
    scheme, _, bearer = (_header(headers, b"authorization") or "").partition(" ")
    if scheme.lower() == "bearer" and bearer.strip():
        return bearer.strip()
    offered = [one.removeprefix(TOKEN_SUBPROTOCOL) for one in subprotocols if one.startswith(TOKEN_SUBPROTOCOL)]
    return _decoded(offered[0]) if len(offered) == 1 else None


def chosen(subprotocols: Iterable[str]) -> str | None:
    """The subprotocol that is spoken; a token is never repeated."""
    return SUBPROTOCOL if SUBPROTOCOL in subprotocols else None


def _decoded(text: str) -> str | None:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode() or None
    except (binascii.Error, ValueError):
        return None


def _place(url: str) -> tuple[str, int | None] | None:
    """Host and port; None: there is none. TLS may end in front of us, so the scheme says nothing."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if not parts.hostname:
        return None
    return parts.hostname.lower(), None if port in _DEFAULT_PORTS else port


def _header(headers: Headers, name: bytes) -> str | None:
    found = [value.decode("latin-1").strip() for key, value in headers if key.lower() == name]
    return found[0] if found else None
