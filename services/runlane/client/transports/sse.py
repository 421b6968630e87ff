"""Server-sent events off the wire: bytes in, frames out."""

from typing import NamedTuple

MAX_FRAME_BYTES = 16 * 1024 * 1024


class SseFrame(NamedTuple):
    """One dispatched event. `id` is None when the frame carried none."""

    event: str
    data: bytes
    id: str | None


class SseOverflow(ValueError):
    """A frame grew beyond `MAX_FRAME_BYTES`."""


class SseParser:
    """Incremental: feed chunks as they come, cut anywhere. Lines end with LF or CRLF. Comments are counted."""

    def __init__(self) -> None:
        self.comments = 0
        self._rest = b""
        self._event = ""
        self._data: list[bytes] = []
        self._id: str | None = None
        self._held_bytes = 0

    def feed(self, chunk: bytes) -> list[SseFrame]:
        """The frames that `chunk` completes."""
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        frames: list[SseFrame] = []
        for line in lines:
            if line.endswith(b"\r"):
                line = line[:-1]  # noqa: PLW2901 - the same line, without its CR
            if line:
                self._take(line)
            elif self._data:
                frames.append(SseFrame(self._event or "message", b"\n".join(self._data), self._id))
                self._reset()
            else:
                self._reset()
        if self._held_bytes + len(self._rest) > MAX_FRAME_BYTES:
            raise SseOverflow(f"a frame is larger than {MAX_FRAME_BYTES} bytes")
        return frames

    def _reset(self) -> None:
        self._event, self._data, self._id, self._held_bytes = "", [], None, 0

    def _take(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        if name == b"data":
            self._data.append(value)
            self._held_bytes += len(value)
        elif name == b"event":
            self._event = value.decode()
        elif name == b"id":
            self._id = value.decode()
        elif not name:
            self.comments += 1
