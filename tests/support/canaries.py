"""Secrets to be planted, and every form in which one of them would be found where it must not be."""

import base64
import binascii
import json
import urllib.parse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from support import secrets

_PREFIX = 12
"""What a vendor's tokens begin with is public; a mask may leave a few characters before it."""


@dataclass(frozen=True)
class Canary:
    """`planted` is the text that goes in; `secret` is what must not come out, in any of its forms."""

    name: str
    planted: str
    secret: str

    def needles(self) -> Iterator[bytes]:
        """Each form, in the middle of whatever it may be part of."""
        plain = self.secret.encode()
        yield plain
        yield plain[::-1]
        yield json.dumps(self.secret)[1:-1].encode()
        yield binascii.hexlify(plain)
        for hexed in (f"%{byte:02X}" for byte in plain), (f"%{byte:02x}" for byte in plain):
            yield "".join(hexed).encode()
        for once in in_base64(plain):
            yield once
            yield from in_base64(once)


def in_base64(data: bytes) -> Iterator[bytes]:
    """What any base64 of a text with `data` somewhere in it holds: one form for each way the bytes can fall."""
    for shift in range(3):
        first, last = -(-8 * shift // 6), 8 * (shift + len(data)) // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            yield encode(b"\0" * shift + data + b"\0\0")[first:last]


def canaries() -> list[Canary]:
    """One for each way in which a secret is written."""
    tokens = {name: token for name, (_, token) in secrets.tokens().items()}
    ways = {
        "anthropic": lambda one: one,
        "github": lambda one: base64.b64encode(f"machine:{one}".encode()).decode(),
        "gitlab": lambda one: "https://x.example/?" + urllib.parse.urlencode({"q": f"a {one}"}),
        "openai project": lambda one: "".join(f"%{byte:02X}" for byte in one.encode()),
        "stripe": lambda one: json.dumps(json.dumps({"key": one})),
        "slack bot": lambda one: base64.b64encode(base64.b64encode(one.encode())).decode(),
        "google": lambda one: f"curl -H 'Authorization: Bearer {one}'",
    }
    made = [Canary(name, write(tokens[name]), tokens[name][_PREFIX:]) for name, write in ways.items()]
    return [*made, Canary("password", "password = 'correct horse battery staple 7'", "horse battery staple")]


def found(haystacks: Iterable[tuple[str, bytes]], planted: Iterable[Canary]) -> list[str]:
    """Which canary is where: `name in place`."""
    needles = [(canary.name, needle) for canary in planted for needle in set(canary.needles())]
    hits = {
        f"{name} in {place}"
        for place, data in haystacks
        for name, needle in needles
        if needle in data
    }  # fmt: skip
    return sorted(hits)
