"""A reader that comes back with its cursor whenever it loses the connection, and checks what it is told."""

import asyncio
import contextlib
from dataclasses import dataclass, field

import httpx

from support.edge import Frame, FrameParser


@dataclass
class ReconnectingReader:
    """Follows a run to its end. `sequences`: every fact it was sent, as it came."""

    http: httpx.AsyncClient
    """Shared: to make one costs more than a watch."""
    run_id: str
    params: dict[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    """It goes away by itself after so many frames, each time."""
    sequences: list[int] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    refusals: list[int] = field(default_factory=list)
    cursor: str | None = None

    async def follow(self) -> "ReconnectingReader":
        """Until `end: run_terminal`, or 204 because nothing is left."""
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if await self._visit():
                    return self
            await asyncio.sleep(0.02)

    async def _visit(self) -> bool:
        params = {"from": "start"} | self.params if self.cursor is None else self.params
        headers = {} if self.cursor is None else {"Last-Event-ID": self.cursor}
        async with self.http.stream("GET", f"/v1/runs/{self.run_id}/watch", params=params, headers=headers) as response:
            if response.status_code == 204:
                return True
            if response.status_code != 200:
                self.refusals.append(response.status_code)
                return False
            parser, seen = FrameParser(), 0
            async for data in response.aiter_raw():
                for frame in parser.feed(data):
                    seen += 1
                    if self._take(frame):
                        return True
                    if self.cut_after is not None and seen >= self.cut_after:
                        return False
        return False

    def _take(self, frame: Frame) -> bool:
        if frame.event == "hello":
            self.outcomes.append(frame.data["outcome"])
            assert frame.data["baseline"]["sequence"] == (self.sequences[-1] if self.sequences else 0)
        elif frame.event == "fact":
            self.sequences.append(frame.data["sequence"])
        elif frame.event == "end":
            self.ends.append(frame.data["reason"])
        if frame.id is not None:
            self.cursor = frame.id
        return frame.event == "end" and frame.data["reason"] == "run_terminal"
