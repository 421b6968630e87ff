"""What verbs print: JSON lines or text on stdout, everything else on stderr."""

import sys
from typing import Any

import click

from runlane_contracts.codec import encode


def emit(value: Any) -> None:
    """One JSON object on a line of its own, at once."""
    sys.stdout.write(encode(value).decode() + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """A line for people, beside the output."""
    click.echo(text, err=True)


_C0, _C1, _BIDI = range(0x20), range(0x7F, 0xA0), (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_INVISIBLE = {**dict.fromkeys((*_C0, *_C1, *_BIDI), ""), ord("\n"): "\n", ord("\t"): "    "}


def printable(text: str) -> str:
    """Text of an agent or a person, without what would move the cursor, color the screen or turn the line around."""
    return text.translate(_INVISIBLE)


def short(value: Any, limit: int = 100) -> str:
    """Any JSON value on one line, cut at `limit` characters."""
    text = value if isinstance(value, str) else encode(value).decode()
    line = " ".join(printable(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def clock(moment: str | None) -> str:
    """The time of day of an RFC 3339 text."""
    return (moment or "")[11:19]
