"""Who may read `/metrics`, which names tenants and agents: the operator's scraper, nobody's client.

With a token set, who shows it, on every port. Without one: on a health port whoever reaches it; on the port of clients
who asks on the machine itself, and not by way of a proxy or of a page whose name was made to point here.
"""

import hmac
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from runlane.hosting.http import bearer_token

_PROXIED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")


class ScrapeGate:
    """Lets scrapers in. `token`: what they have to show, if anything."""

    def __init__(self, token: str | None = None) -> None:
        self._token = token or None

    def admits(self, request: HTTPConnection, *, among_clients: bool) -> bool:
        """Whether this one may read. `among_clients`: on the port that clients reach, too."""
        if self._token is not None:
            return hmac.compare_digest((bearer_token(request) or "").encode(), self._token.encode())
        return not among_clients or is_from_here(request)


def is_from_here(request: HTTPConnection) -> bool:
    """Whether it was made on this machine, for this machine."""
    if any(name in request.headers for name in _PROXIED) or request.client is None:
        return False
    return _is_loopback(request.client.host) and _is_loopback(_host_named(request))


def _host_named(request: HTTPConnection) -> str:
    """Without its port."""
    try:
        return urlsplit("//" + request.headers.get("host", "")).hostname or ""
    except ValueError:
        return ""


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
