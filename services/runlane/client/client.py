"""A client of many runs that survives its own restart.

    async with Client(transport, store=SqliteCheckpointStore("runs.db")) as client:
        await client.recover()                       # what the last process asked and never heard of
        async for item in client.follow("run_1"):
            draw(client.state("run_1"))

What it keeps, and when: the state and the cursor of each followed run, at most every `save_every_s`, at the end of a
run and on the way out; a command before it is sent, and until its outcome is known. After a crash the next process
begins at the saved state and reads on from its cursor; what came between the last save and the crash comes again.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Protocol, Self

import msgspec

from runlane.client.backoff import BackoffPolicy
from runlane.client.checkpoint import (
    CheckpointRefused,
    PendingCommand,
    RunCheckpoint,
    opened,
    part_of_commands,
    part_of_run,
    run_part,
)
from runlane.client.checkpoint_stores import CheckpointStore, MemoryCheckpointStore
from runlane.client.commands import ActionOutcome, Intent, RunActions
from runlane.client.reader import Connection, RunReader
from runlane.client.state import RunState
from runlane.client.transports.ports import CommandTransport, Item, NewRun, ReaderTransport, StartedRun
from runlane.kernel.clock import new_id
from runlane_contracts.codec import decode_json, encode
from runlane_contracts.commands import decode_command_payload
from runlane_contracts.resume import End

_log = logging.getLogger("runlane.client")

SAVE_EVERY_S = 1.0

OnRunConnection = Callable[[str, Connection, str], None]
"""Told of each change: which run, how it is connected, why."""


class ClientTransport(ReaderTransport, CommandTransport, Protocol):
    """What a client needs: to watch, to ask, to start."""

    async def start_run(self, new: NewRun) -> StartedRun:
        """Start a run; the same `idempotency_key` starts it once."""
        ...


@dataclass(slots=True)
class _Followed:
    state: RunState
    cursor: str | None = None
    input: Any = None
    connection: Connection = Connection.IDLE
    is_followed: bool = False
    actions: RunActions | None = None


@dataclass(slots=True)
class _Unsaved:
    runs: set[str] = field(default_factory=set)
    forgotten: set[str] = field(default_factory=set)
    commands: bool = False

    def __bool__(self) -> bool:
        return bool(self.runs or self.forgotten or self.commands)


class Client:
    """States of runs, kept current by `follow` and kept over restarts in a checkpoint.

    Promises:
    - A checkpoint is loaded whole or not at all. With `on_broken="refuse"` entering raises `CheckpointRefused`; with
      `"set_aside"` the broken one is moved out of the way, `refused` says why, and the client begins anew.
    - State and cursor are saved as of one moment. An item counts as applied once the next one is asked for: a crash
      while it is handled gives it again, and the state takes no fact twice.
    - A command is in the checkpoint before it leaves; `recover` settles those whose outcome was never heard.
    """

    def __init__(
        self,
        transport: ClientTransport,
        *,
        store: CheckpointStore | None = None,
        save_every_s: float = SAVE_EVERY_S,
        on_broken: Literal["refuse", "set_aside"] = "refuse",
        backoff: BackoffPolicy | None = None,
        on_connection: OnRunConnection | None = None,
    ) -> None:
        self.refused: str | None = None
        """Why the checkpoint that was found was set aside; None: it was not."""
        self._transport = transport
        self._store = store or MemoryCheckpointStore()
        self._save_every_s = save_every_s
        self._on_broken = on_broken
        self._backoff = backoff
        self._on_connection = on_connection
        self._runs: dict[str, _Followed] = {}
        self._pending: dict[str, Intent] = {}
        self._unsaved = _Unsaved()
        self._changed = asyncio.Event()
        self._saving = asyncio.Lock()
        self._saver: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._restore()
        self._saver = asyncio.ensure_future(self._keep_saving())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._saver is not None:
            self._saver.cancel()
            await asyncio.gather(self._saver, return_exceptions=True)
        try:
            await self.flush()
        finally:
            await self._store.close()

    # -- what is known ------------------------------------------------------------------------------------

    @property
    def runs(self) -> Mapping[str, RunState]:
        """The states of all runs that are known here, also those of an earlier process."""
        return {run_id: one.state for run_id, one in self._runs.items()}

    def state(self, run_id: str) -> RunState:
        """The state of a run; empty until it is followed."""
        return self._known(run_id).state

    def connection(self, run_id: str) -> Connection:
        """How the run is connected."""
        return self._known(run_id).connection

    def input(self, run_id: str) -> Any:
        """What the run was started with from here, or None."""
        return self._known(run_id).input

    @property
    def pending(self) -> Mapping[str, Intent]:
        """Commands whose outcome is not known, by idempotency key."""
        return dict(self._pending)

    def forget(self, run_id: str) -> None:
        """Keep nothing of a run any longer. Not while it is followed."""
        if self._known(run_id).is_followed:
            raise ValueError(f"{run_id} is being followed")
        del self._runs[run_id]
        self._unsaved.runs.discard(run_id)
        self._unsaved.forgotten.add(run_id)
        self._changed.set()

    # -- following ----------------------------------------------------------------------------------------

    async def follow(self, run_id: str, *, previews: bool = True) -> AsyncGenerator[Item, None]:
        """Every item of a run from where this client is, over any number of connections, until the run is over.

        The state has taken the item when it is yielded. Ends and raises as `RunReader` does.

        Raises:
            ValueError: the run is being followed already.
        """
        run = self._known(run_id)
        if run.is_followed:
            raise ValueError(f"{run_id} is being followed")
        run.is_followed = True
        reader = RunReader(
            self._transport, run_id, cursor=run.cursor, previews=previews, backoff=self._backoff,
            on_connection=lambda connection, reason: self._turn(run_id, connection, reason),
        )  # fmt: skip
        try:
            async with reader:
                async for item in reader:
                    run.state.apply(item)
                    yield item
                    if reader.pending_cursor is not None:
                        run.cursor = reader.pending_cursor
                        self._note(run_id)
                    if isinstance(item, End):
                        await self.flush()
        finally:
            run.is_followed = False

    # -- acting -------------------------------------------------------------------------------------------

    async def start_run(self, *, agent: str, input: Any = None, run_id: str | None = None, **more: Any) -> StartedRun:  # noqa: A002 - the protocol's word
        """Start a run. Its input is in the checkpoint first; the same `run_id` starts it once, said once or often.

        Raises:
            RequestRefused, Unreachable: as the transport says.
        """
        run_id = run_id or new_id("run")
        run = self._known(run_id)
        run.input = input
        self._note(run_id)
        await self.flush()
        return await self._transport.start_run(
            NewRun(agent=agent, run_id=run_id, idempotency_key=f"start-{run_id}", input=input, **more)
        )

    def actions(self, run_id: str) -> RunActions:
        """What people do to the run; what is sent through it is in the checkpoint until it is settled."""
        run = self._known(run_id)
        if run.actions is None:
            run.actions = RunActions(self._transport, run_id, desk=self, state=run.state)
        return run.actions

    async def recover(self) -> dict[str, ActionOutcome]:
        """Find out what became of each command that is pending, by key. What never arrived is sent now."""
        outcomes: dict[str, ActionOutcome] = {}
        for run_id in {intent.run_id for intent in self._pending.values()}:
            actions = self.actions(run_id)
            actions.unsettled.update({key: one for key, one in self._pending.items() if one.run_id == run_id})
            outcomes |= await actions.recover()
        return outcomes

    async def hold(self, intent: Intent) -> None:
        """Called by `RunActions` before a command leaves: returns when it is kept."""
        self._pending[intent.idempotency_key] = intent
        self._unsaved.commands = True
        await self.flush()

    def release(self, idempotency_key: str) -> None:
        """Called by `RunActions` when an outcome is known."""
        if self._pending.pop(idempotency_key, None) is not None:
            self._unsaved.commands = True
            self._changed.set()

    # -- keeping ------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Save what changed since the last save, now. Raises what the store raises; then it is tried again later."""
        async with self._saving:
            unsaved, self._unsaved = self._unsaved, _Unsaved()
            self._changed.clear()
            if not unsaved:
                return
            try:
                await self._store.save(self._parts(unsaved))
            except BaseException:
                self._unsaved.runs |= unsaved.runs & self._runs.keys()
                self._unsaved.forgotten |= unsaved.forgotten - self._runs.keys()
                self._unsaved.commands |= unsaved.commands
                self._changed.set()
                raise

    def _parts(self, unsaved: _Unsaved) -> dict[str, bytes | None]:
        parts: dict[str, bytes | None] = {run_part(run_id): None for run_id in unsaved.forgotten}
        parts |= dict(part_of_run(self._kept(run_id)) for run_id in unsaved.runs)
        if unsaved.commands:
            name, body = part_of_commands(tuple(_pending(one) for one in self._pending.values()))
            parts[name] = body
        return parts

    def _kept(self, run_id: str) -> RunCheckpoint:
        run = self._runs[run_id]
        has_state = run.state.sequence > 0
        return RunCheckpoint(
            run_id=run_id, cursor=run.cursor if has_state else None, state=run.state.data if has_state else None,
            input=run.input,
        )  # fmt: skip

    async def _keep_saving(self) -> None:
        while True:
            await self._changed.wait()
            try:
                await self.flush()
            except Exception:  # noqa: BLE001 - whatever a store raises: what changed stays to be saved
                _log.warning("the checkpoint could not be saved; trying again", exc_info=True)
            await asyncio.sleep(self._save_every_s)

    async def _restore(self) -> None:
        self._turn("", Connection.RESTORING, "")
        try:
            await self._load()
        except CheckpointRefused as exc:
            await self._store.close()
            if self._on_broken == "refuse":
                self._turn("", Connection.FAILED, exc.reason)
                raise
            self.refused = f"{exc.reason}; it is now {await self._store.set_aside()}"
            await self._load()
        self._turn("", Connection.IDLE, "")

    async def _load(self) -> None:
        checkpoint = opened(await self._store.open())
        pending = [_intent(one) for one in checkpoint.pending]
        for run_id, kept in checkpoint.runs.items():
            run = self._runs[run_id] = _Followed(RunState(run_id), input=kept.input)
            if kept.state is not None:
                run.state.restore(kept.state)
                run.cursor = kept.cursor
        self._pending = {one.idempotency_key: one for one in pending}

    def _known(self, run_id: str) -> _Followed:
        run = self._runs.get(run_id)
        if run is None:
            run = self._runs[run_id] = _Followed(RunState(run_id))
            self._unsaved.forgotten.discard(run_id)
        return run

    def _note(self, run_id: str) -> None:
        self._unsaved.runs.add(run_id)
        self._changed.set()

    def _turn(self, run_id: str, connection: Connection, reason: str) -> None:
        if run_id:
            self._runs[run_id].connection = connection
        if self._on_connection is not None:
            self._on_connection(run_id, connection, reason)


def _pending(intent: Intent) -> PendingCommand:
    return PendingCommand(
        run_id=intent.run_id, type=intent.type, payload=decode_json(encode(intent.payload)),
        idempotency_key=intent.idempotency_key,
    )  # fmt: skip


def _intent(pending: PendingCommand) -> Intent:
    try:
        payload = decode_command_payload(pending.type, encode(pending.payload))
    except (msgspec.MsgspecError, KeyError) as exc:
        raise CheckpointRefused(f"commands: {pending.type[:80]}: {exc}") from exc
    return Intent(pending.run_id, payload, pending.idempotency_key)
