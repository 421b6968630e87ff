"""Single keys from a terminal, and what they mean where a run asks for a decision."""

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

Decision = Literal["approved", "rejected"]
ESCAPE = "\x1b"


@contextmanager
def keys_of_terminal(on_key: Callable[[str], None]) -> Iterator[None]:
    """Tell each key at once, unechoed. Does nothing where stdin is no terminal; Ctrl-C stays what it is."""
    if not sys.stdin.isatty():
        yield
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    loop = asyncio.get_running_loop()

    def arrived() -> None:
        pressed = os.read(fd, 64).decode(errors="ignore")
        if not pressed:  # the terminal is gone
            loop.remove_reader(fd)
        elif pressed[0] == ESCAPE:
            on_key(ESCAPE)  # an arrow or a function key comes as several; none of them means anything here
        else:
            for key in pressed:
                on_key(key)

    tty.setcbreak(fd)
    loop.add_reader(fd, arrived)
    try:
        yield
    finally:
        loop.remove_reader(fd)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


@dataclass(frozen=True, slots=True)
class Chosen:
    """What somebody decided, of exactly what was shown to them."""

    approval: dict[str, Any]
    decision: Decision


@dataclass(slots=True)
class Choice:
    """Which open approval is meant, and whether the decision still waits to be confirmed. Pure: keys in, choices out.

    A decision takes two keys, and the second counts only while the approval is as it was shown at the first: one that
    is decided elsewhere, or changes, in between is not decided by a key that was meant for another.
    """

    selected: str | None = None
    asked: Chosen | None = None
    said: str = ""
    sending: bool = False
    _open: list[dict[str, Any]] = field(default_factory=list)

    def see(self, approvals: list[dict[str, Any]]) -> None:
        """What is open now, as it is drawn."""
        self._open = approvals
        ids = [one["id"] for one in approvals]
        if self.selected not in ids:
            self.selected = ids[0] if ids else None
        if self.asked is not None and self.asked.approval not in approvals:
            self.asked = None

    @property
    def current(self) -> dict[str, Any] | None:
        """The approval that keys decide."""
        return next((one for one in self._open if one["id"] == self.selected), None)

    def press(self, key: str) -> Chosen | None:
        """One key; a decision once it is confirmed."""
        if self.sending:
            return None
        if self.asked is not None:
            chosen, self.asked = self.asked, None
            return chosen if key in "yY" else None
        current = self.current
        if current is None:
            return None
        self.said = ""
        match key:
            case "a" | "A":
                self.asked = Chosen(dict(current), "approved")
            case "x" | "X":
                self.asked = Chosen(dict(current), "rejected")
            case "n" | "N" | "\t":
                ids = [one["id"] for one in self._open]
                self.selected = ids[(ids.index(current["id"]) + 1) % len(ids)]
            case _:
                pass
        return None
