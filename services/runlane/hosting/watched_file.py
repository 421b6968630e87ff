"""A file whose content is always the newest: looked at when it is asked for, read again when it changed.

No task and no notification: the one who asks pays a `stat` twice a second at most, which also sees what a container
platform does when it swaps a mounted secret.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from msgspec import MsgspecError

from runlane.kernel.clock import Now
from runlane_contracts.telemetry import LogEvent

T = TypeVar("T")

LOOK_EVERY_S = 0.5
_SETTLED_S = 2.0
"""A file written in the last moments may be written again without a visible change of its time."""
_Stamp = tuple[float, int, int]

log = logging.getLogger(__name__)


class WatchedFile(Generic[T]):
    """The decoded content of one file."""

    def __init__(self, path: Path, decode: Callable[[bytes], T], *, now: Now) -> None:
        """Reads it. `decode` raises ValueError or MsgspecError for content that is none.

        Raises:
            OSError, ValueError: it cannot be read, or is no such file.
        """
        self._path, self._decode, self._now = path, decode, now
        self._looked_at = now().timestamp()
        self._stamp = self._look()
        self._content = path.read_bytes()
        try:
            self._value = decode(self._content)
        except (ValueError, MsgspecError, RecursionError) as exc:
            raise ValueError(f"{path}: {exc}") from exc
        self._complaint = ""

    @property
    def value(self) -> T:
        """The newest content, at most `LOOK_EVERY_S` old.

        A file that is gone or broken leaves what was known and is named in the log: an edit that goes wrong must
        neither lock everybody out nor let anybody in.
        """
        now = self._now().timestamp()
        if abs(now - self._looked_at) >= LOOK_EVERY_S:  # a clock may be set back
            self._looked_at = now
            try:
                self._read_again(now)
            except (OSError, ValueError, MsgspecError, RecursionError) as exc:
                self._complain(str(exc))
        return self._value

    def _read_again(self, now: float) -> None:
        stamp = self._look()
        if stamp == self._stamp and stamp[0] < now - _SETTLED_S and not self._complaint:
            return
        content = self._path.read_bytes()
        if content != self._content:
            self._value = self._decode(content)
            self._content = content
            log.info("%s: read again", self._path.name, extra={"event": LogEvent.ACCESS_CHANGED})
        self._stamp, self._complaint = stamp, ""

    def _look(self) -> _Stamp:
        found = self._path.stat()
        return found.st_mtime, found.st_ino, found.st_size

    def _complain(self, complaint: str) -> None:
        if complaint != self._complaint:
            self._complaint = complaint
            log.error(
                "%s: keeps what was known: %s", self._path.name, complaint, extra={"event": LogEvent.ACCESS_UNREADABLE}
            )
