"""Retention over logs in memory: a run is written, archived, killed at any step, read again."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from runlane.kernel.clock import new_id, utc_now
from runlane.kernel.event_log import StoredCommit, StoredRawCommit
from runlane.kernel.memory_event_log import MemoryEventLog
from runlane.kernel.run_log import RunLogs
from runlane.object_store.archives import Archives
from runlane.object_store.content import Contents
from runlane.object_store.store import Objects
from runlane.retention.compactor import Compactor, Stores
from runlane_contracts import codec, events, reducer
from runlane_contracts.cursor import Position
from runlane_contracts.envelope import Actor, Fact
from runlane_contracts.lifecycle import FactDraft, draft
from runlane_contracts.reducer import State
from runlane_contracts.subjects import RunAddress

RUN = RunAddress("acme", "run_1")
AGENT = Actor(kind="agent", id="a")
T = TypeVar("T")

LIFE: tuple[tuple[events.Payload, ...], ...] = (
    (events.RunCreated(agent="a", input={"text": "CANARY input"}),),
    (events.RunLeased(lease_epoch=1, worker_id="w1"),),
    (events.RunStarted(), events.MessageCompleted(message_id="m1", role="assistant", content="CANARY message")),
    (events.ToolRequested(tool_call_id="c1", name="t", arguments={"x": "CANARY arguments"}),),
    (
        events.ApprovalRequested(
            approval_id="a1", description="CANARY question", risk="low", version=1, action_digest="d", tool_call_id="c1"
        ),
    ),
    (events.ApprovalResolved(approval_id="a1", decision="approved", decided_by="user:u1", version=1),),
    (events.ToolRunning(tool_call_id="c1"), events.ToolCompleted(tool_call_id="c1", result="CANARY result")),
    (events.RunCompleted(output="CANARY output"),),
)
"""Commits of a run from its start to its end."""


class Killed(BaseException):
    """The process died here: nothing after it happened."""


@dataclass
class Fuse:
    """Kills at the n-th call to anything outside, before or after it took effect."""

    at: int = 0
    after: bool = False
    calls: int = 0

    async def __call__(self, work: Callable[[], Awaitable[T]]) -> T:
        self.calls += 1
        if self.calls == self.at and not self.after:
            raise Killed
        result = await work()
        if self.calls == self.at:
            raise Killed
        return result


class FusedObjects(Objects):
    """An object store that blows the fuse."""

    fuse: Fuse = Fuse()

    async def put(self, path: str, data: bytes | Path) -> None:
        await self.fuse(lambda: Objects.put(self, path, data))

    async def delete(self, path: str) -> None:
        await self.fuse(lambda: Objects.delete(self, path))


@dataclass
class MemoryRecord:
    """One family in memory. `lags`: the durable that has not read everything."""

    log: MemoryEventLog
    fuse: Fuse
    lags: str = ""
    overwritten: bool = False

    async def head(self, run: RunAddress) -> StoredRawCommit | None:
        stored = await self.log.head(run)
        return None if stored is None else _raw(stored)

    async def read(self, run: RunAddress) -> AsyncGenerator[StoredRawCommit, None]:
        async for stored in self.log.read(run):
            yield _raw(stored)

    async def waiting(self, run: RunAddress, position: Position) -> str:
        return self.lags

    async def take_out(self, run: RunAddress, *, before: Position, overwrite: bool) -> int:
        async def purge() -> int:
            count = len(self.log._runs[run])
            self.log.purge(run, before=before)
            self.overwritten = overwrite
            return count - len(self.log._runs[run])

        return await self.fuse(purge)


class Filter(MemoryRecord):
    """The view: what is in the log, once somebody looks. `stands` still while it is told to."""

    source: MemoryEventLog
    stands: bool = False

    async def head(self, run: RunAddress) -> StoredRawCommit | None:
        if not self.stands:
            await self._follow(run)
        return await super().head(run)

    async def _follow(self, run: RunAddress) -> None:
        mine = self.log._runs.get(run, [])
        through = mine[-1].commit.last_sequence if mine else 0
        for stored in self.source._runs.get(run, []):
            if stored.commit.first_sequence > through:
                last = self.log._runs.get(run, [])
                after = last[-1].position if last else Position("", 0, stored.commit.first_sequence - 1)
                await self.log.commit(stored.commit, after=after)


@dataclass
class MemoryCommands:
    fuse: Fuse
    erased: list[RunAddress] = field(default_factory=list)

    async def erase(self, run: RunAddress) -> str:
        async def take() -> str:
            self.erased.append(run)
            return ""

        return await self.fuse(take)


class Shelf:
    """Everything, over one folder or bucket and one pair of logs; `restart` forgets what a process knew."""

    def __init__(self, place: Path | str) -> None:
        self.place, self.folder = str(place), Path(place)
        self.log, self.view_log = MemoryEventLog(epoch="log"), MemoryEventLog(epoch="view")
        self.fuse = Fuse()
        self.restart()

    def restart(self, fuse: Fuse | None = None) -> None:
        self.fuse = fuse or Fuse()
        self.objects = FusedObjects(Objects.at(self.place)._open_store)
        self.objects.fuse = self.fuse
        self.record = MemoryRecord(self.log, self.fuse)
        self.view = Filter(self.view_log, self.fuse)
        self.view.source = self.log
        self.commands = MemoryCommands(self.fuse)
        self.archives, self.contents = Archives(self.objects), Contents(self.objects)
        self.run_logs = RunLogs(self.log, now=utc_now, new_id=new_id)
        self.compactor = Compactor(
            Stores(
                run_logs=self.run_logs, log=self.record, view=self.view, commands=self.commands,
                archives=self.archives, contents=self.contents,
            ),
            wait_s=0.05,
        )  # fmt: skip

    async def write(self, *commits: tuple[events.Payload, ...], run: RunAddress = RUN) -> None:
        for payloads in commits:
            drafts: list[FactDraft] = [draft(payload) for payload in payloads]
            await self.run_logs.of(run).transact(lambda _, d=drafts: d, lease_epoch=0, actor=AGENT)
        await self.view.head(run)

    async def state(self, run: RunAddress = RUN) -> State:
        """What a reader of the view holds who was there all the time."""
        state = reducer.initial_state(*run)
        for stored in self.view_log._runs[run]:
            for fact in stored.commit.facts:
                reducer.reduce(state, fact)
        return state

    async def archived_state(self, to_sequence: int, run: RunAddress = RUN) -> State:
        manifest = await self.archives.manifest(run, to_sequence)
        assert manifest is not None
        await self.archives.verify(manifest)
        return (await self.archives.state(manifest)).state

    async def archived(self, to_sequence: int, family: Any = "view", run: RunAddress = RUN) -> list[Fact]:
        manifest = await self.archives.manifest(run, to_sequence)
        assert manifest is not None
        lines = [line async for line in self.archives.all_lines(manifest, family)]
        return [fact for line in lines for fact in codec.decode_commit(line.commit).facts]

    def streams(self, run: RunAddress = RUN) -> list[list[Fact]]:
        """What LOG and VIEW hold."""
        return [[f for one in log._runs[run] for f in one.commit.facts] for log in (self.log, self.view_log)]

    def files(self) -> dict[str, bytes]:
        return {
            path.relative_to(self.folder).as_posix(): path.read_bytes()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file()
        }


def _raw(stored: StoredCommit) -> StoredRawCommit:
    data = codec.encode(stored.commit)
    return StoredRawCommit(
        position=stored.position, commit=codec.decode_raw_commit(data), recorded_at=stored.recorded_at, headers={},
        data=data,
    )  # fmt: skip


def payload_of(fact: Fact) -> Any:
    return msgspec.json.decode(fact.payload)
