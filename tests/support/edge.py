"""An edge gateway's watching part over the view in memory, and clients that speak ASGI or HTTP to it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from runlane.edge_gateway.crowd import Crowd, CrowdLimits
from runlane.edge_gateway.hub import HubLimits, Hubs
from runlane.edge_gateway.memory_view import MemoryView
from runlane.edge_gateway.meters import Meters
from runlane.edge_gateway.planning import Planner
from runlane.edge_gateway.presence import Presence
from runlane.edge_gateway.queries import watch_request
from runlane.edge_gateway.run_state import FoldedStates, NothingFolded, RunStates
from runlane.edge_gateway.watch import Watches
from runlane.edge_gateway.watcher import WatchLimits
from runlane.hosting.authorizer import Principal
from runlane.hosting.http import ProblemError
from runlane.kernel.errors import Retryable
from runlane_contracts.codec import decode_json
from runlane_contracts.cursor import CursorKeys
from runlane_contracts.problems import Code
from runlane_contracts.subjects import RunAddress

KEYS = CursorKeys(current="k1", keys={"k1": b"0123456789abcdef"})
QUICK = WatchLimits(goodbye_s=0.5, stale_retry_s=0.001)


@dataclass(frozen=True)
class Frame:
    """One SSE frame as it came off the wire."""

    event: str
    data: Any
    id: str | None = None


class FrameParser:
    """Bytes to frames, in pieces of any size. `comments` counts heartbeats."""

    def __init__(self) -> None:
        self.comments = 0
        self.retries: list[int] = []
        self._rest = b""

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete now."""
        *blocks, self._rest = (self._rest + data).split(b"\n\n")
        frames = (self._frame(block.decode()) for block in blocks)
        return [frame for frame in frames if frame is not None]

    def _frame(self, block: str) -> Frame | None:
        event, id_, data = "message", None, []
        for line in block.split("\n"):
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            match name:
                case "":
                    self.comments += 1
                case "event":
                    event = value
                case "id":
                    id_ = value
                case "data":
                    data.append(value)
                case "retry":
                    self.retries.append(int(value))
                case _:
                    raise AssertionError(f"not SSE: {line!r}")
        return Frame(event, decode_json("\n".join(data)), id_) if data else None


@dataclass
class Watching:
    """One watch over ASGI, in process. Reads as fast as it can unless told to `hold`."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    frames: list[Frame] = field(default_factory=list)
    problem: ProblemError | None = None
    refused: bool = False  # the view did not answer
    complete: bool = False
    parser: FrameParser = field(default_factory=FrameParser)
    task: "asyncio.Task[None] | None" = None
    _gone: asyncio.Event = field(default_factory=asyncio.Event)
    _flowing: asyncio.Event = field(default_factory=asyncio.Event)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    leave_after: int | None = None

    def hold(self) -> None:
        """Read nothing until `flow`."""
        self._flowing.clear()

    def flow(self) -> None:
        """Read again."""
        self._flowing.set()

    def leave(self) -> None:
        """Disconnect."""
        self._gone.set()
        self._flowing.set()

    async def receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await self._flowing.wait()
        if self._gone.is_set():
            raise OSError("disconnected")
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        for frame in self.parser.feed(message.get("body", b"")):
            if self.leave_after is None or len(self.frames) < self.leave_after:
                self.frames.append(frame)
        if self.leave_after is not None and len(self.frames) >= self.leave_after:
            self._gone.set()
        self.complete = not message.get("more_body", False)
        self._news.set()

    async def until(self, *events: str, within_s: float = 5.0) -> list[Frame]:
        """All frames so far, once one of these events is among them."""
        async with asyncio.timeout(within_s):
            while not any(frame.event in events for frame in self.frames):
                self._news.clear()
                await self._news.wait()
        return self.frames

    async def facts(self, count: int, within_s: float = 5.0) -> list[Frame]:
        """The fact frames so far, once there are so many."""
        async with asyncio.timeout(within_s):
            while len(found := self.of("fact")) < count:
                self._news.clear()
                await self._news.wait()
        return found

    async def over(self, within_s: float = 5.0) -> list[Frame]:
        """All frames, once the response is over or the watch was refused."""
        assert self.task is not None
        async with asyncio.timeout(within_s):
            await asyncio.wait([self.task])
        self.task.result()
        return self.frames

    def of(self, event: str) -> list[Frame]:
        """The frames of one kind."""
        return [frame for frame in self.frames if frame.event == event]

    @property
    def sequences(self) -> list[int]:
        """The sequences of the facts, as they came."""
        return [frame.data["sequence"] for frame in self.of("fact")]


@dataclass
class Edge:
    """The watching part of a gateway."""

    view: MemoryView
    hubs: Hubs
    watches: Watches
    crowd: Crowd
    meters: Meters
    tasks: asyncio.TaskGroup
    presence: Presence
    allowed: bool = True

    def watch(
        self, run: RunAddress, *, last_event_id: str | None = None, leave_after: int | None = None, hold: bool = False,
        **params: str,
    ) -> Watching:  # fmt: skip
        """Begin to watch."""
        headers = [] if last_event_id is None else [(b"last-event-id", last_event_id.encode())]
        query = "&".join(f"{name.removesuffix('_')}={value}" for name, value in params.items()).encode()
        watching = Watching(leave_after=leave_after)
        if not hold:
            watching.flow()
        watching.task = self.tasks.create_task(self._serve(run, query, headers, watching))
        return watching

    async def _serve(
        self, run: RunAddress, query: bytes, headers: list[tuple[bytes, bytes]], watching: Watching
    ) -> None:
        try:
            request = watch_request(query, headers)
            async with self.presence.hub(run, min_sequence=request.min_sequence) as hub:
                who = Principal(run.tenant_id, "somebody")
                await self.watches.serve(hub, request, who, {"type": "http"}, watching.receive, watching.send)
        except ProblemError as exc:
            watching.problem = exc
        except Retryable:
            watching.refused = True

    def lost(self, _principal: Principal) -> Code | None:
        return None if self.allowed else Code.UNAUTHENTICATED


@asynccontextmanager
async def edge(
    view: MemoryView | None = None,
    *,
    hub_limits: HubLimits | None = None,
    watch_limits: WatchLimits = QUICK,
    folded: FoldedStates | None = None,
    tick_s: float = 0.05,
    max_watchers: int = 10_000,
    of_tenant: int = 10_000,
) -> AsyncIterator[Edge]:
    """A gateway for one test."""
    view = view or MemoryView()
    meters = Meters()
    limits = hub_limits or HubLimits(sweep_s=0.05, linger_s=0.05)
    jitter: Callable[[], float] = lambda: 0.5  # noqa: E731
    states = RunStates(view, folded or NothingFolded())
    crowd_limits = CrowdLimits(
        total=max_watchers, of_tenant=of_tenant, tick_s=tick_s, reauthorize_s=0.05, goodbye_s=watch_limits.goodbye_s
    )
    async with (
        Hubs(view=view, feed=view, states=states, limits=limits, meters=meters, jitter=jitter) as hubs,
        asyncio.TaskGroup() as tasks,
    ):
        crowd = Crowd(crowd_limits, lost=lambda one: made.lost(one), meters=meters, jitter=jitter)  # noqa: PLW0108
        planner = Planner(hubs, KEYS, meters, page_bytes=watch_limits.page_bytes)
        watches = Watches(hubs, crowd, planner, limits=watch_limits, meters=meters, jitter=jitter)
        made = Edge(view, hubs, watches, crowd, meters, tasks, Presence(view, hubs, wait_s=0.5))
        async with crowd.ticking(hubs):
            yield made


def sequences(frames: Sequence[Frame]) -> list[int]:
    """The sequences of the facts among frames."""
    return [frame.data["sequence"] for frame in frames if frame.event == "fact"]
