"""The read store: states of runs by generation, lists over them, and how far each stream is folded."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

from msgspec import Struct
from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.exc import DBAPIError, TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from runlane.kernel.errors import Conflict, Retryable
from runlane.read_store import pages, statements
from runlane.read_store.engines import POSTGRESQL, Engines, engines
from runlane.read_store.rows import (
    NOT_STARTED,
    ApprovalRow,
    FinishedRow,
    Loaded,
    RunChange,
    RunRow,
    StreamPosition,
    item_rows,
    listed,
    loaded,
    run_row,
)
from runlane.read_store.tables import (
    BUILDING,
    KEPT,
    LIVE,
    SCHEMA_VERSION,
    generations,
    items,
    metadata,
    positions,
    runs,
    schema_versions,
)
from runlane_contracts.codec import decode_json
from runlane_contracts.cursor import REDUCER_VERSION
from runlane_contracts.subjects import RunAddress

_log = logging.getLogger("runlane.read_store")

MAX_LIMIT = 500
_ADDRESSES_A_QUERY = 500
_AGAIN_S = 0.05
_LOCK = 0x72756E6C616E65  # "runlane"


class Progress(Struct, frozen=True, kw_only=True):
    """How far a generation has folded a stream: what the next write expects to find."""

    generation: int
    reducer_version: int
    projection: str
    stream: str
    position: StreamPosition


class ReadStore:
    """One database, opened. Every call ends within `timeout_s`, or raises `Retryable`."""

    def __init__(self, engines: Engines, *, timeout_s: float) -> None:
        self._engines = engines
        self._timeout_s = timeout_s
        self._upsert_runs = statements.Upsert(engines.writer.dialect, runs)
        self._upsert_items = statements.Upsert(engines.writer.dialect, items)

    @classmethod
    def open(cls, url: str, *, timeout_s: float = 10.0, readers: int = 4) -> Self:
        """Prepare a store at ``sqlite:///path`` or ``postgresql://…``; connects when first used.

        Raises:
            ValueError: another kind of database, or SQLite without a file.
        """
        return cls(engines(url, timeout_s=timeout_s, readers=readers), timeout_s=timeout_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        await self._engines.dispose()

    async def create(self) -> None:
        """Make the tables, and an empty live generation. Tables of another schema version are dropped first.

        Two processes may do it at once. A new SQLite file is switched to writing ahead by one of them, and the other
        is turned away meanwhile, whatever it would be ready to wait.
        """
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        while True:
            try:
                return await self._create()
            except Retryable:
                if asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(_AGAIN_S)

    async def _create(self) -> None:
        async with self.writing() as connection:
            await self.one_at_a_time(connection)
            await connection.run_sync(lambda sync: metadata.create_all(sync, tables=[schema_versions]))
            version = await connection.scalar(select(schema_versions.c.version))
            if version not in {None, SCHEMA_VERSION}:
                await connection.run_sync(metadata.drop_all)
            await connection.run_sync(metadata.create_all)
            if version != SCHEMA_VERSION:
                await connection.execute(delete(schema_versions))
                await connection.execute(insert(schema_versions).values(version=SCHEMA_VERSION))
            if await connection.scalar(statements.newest_generation()) == 0:
                await connection.execute(
                    insert(generations).values(generation=1, state=LIVE, reducer_version=REDUCER_VERSION)
                )

    # --- reading ------------------------------------------------------------------------------------------

    async def load(self, run: RunAddress, *, generation: int | None = None) -> Loaded | None:
        """A run's state and position, of one moment; None if it is not folded by this version of the reducer."""
        return (await self.load_many([run], generation=generation)).get(run)

    async def load_run(self, run: RunAddress) -> Loaded | None:
        """As `load`, but without the items: what a run's status needs, however long the run is."""
        async with self.reading() as connection:
            row = (await connection.execute(statements.runs_of([run], None))).mappings().one_or_none()
        return None if row is None else loaded(row, ())

    async def load_many(
        self, addresses: Sequence[RunAddress], *, generation: int | None = None
    ) -> dict[RunAddress, Loaded]:
        """States and positions of some runs, all of one moment; without those that are not there."""
        found: dict[RunAddress, Loaded] = {}
        async with self.reading() as connection:
            for start in range(0, len(addresses), _ADDRESSES_A_QUERY):
                found |= await _load(connection, addresses[start : start + _ADDRESSES_A_QUERY], generation)
        return found

    async def list_runs(
        self,
        tenant_id: str,
        *,
        status: str | None = None,
        agent: str | None = None,
        session_id: str | None = None,
        limit: int = 50,
        page_token: str | None = None,
    ) -> tuple[list[RunRow], str | None]:
        """A page of a tenant's runs, newest first, and the token of the next one.

        Runs that begin between two pages move nothing: no run is left out or told twice.

        Raises:
            PageTokenInvalid: not a token of this list.
        """
        before = None if page_token is None else pages.after(page_token, fields=2)
        filters = {"status": status, "agent": agent, "session_id": session_id}
        limit = _bounded(limit)
        async with self.reading() as connection:
            found = await connection.execute(statements.newest_runs(tenant_id, filters, limit + 1, before))
            rows = [listed(one) for one in found.mappings()]
        if len(rows) <= limit:
            return rows, None
        last = rows[limit - 1]
        return rows[:limit], pages.page_token(last.created_at, last.run_id)

    async def list_approvals(
        self, tenant_id: str, *, status: str | None = "waiting", limit: int = 50, page_token: str | None = None
    ) -> tuple[list[ApprovalRow], str | None]:
        """A page of a tenant's approvals, the longest asked first, and the token of the next one.

        Raises:
            PageTokenInvalid: not a token of this list.
        """
        after = None if page_token is None else pages.after(page_token, fields=3)
        limit = _bounded(limit)
        async with self.reading() as connection:
            found = (await connection.execute(statements.approvals(tenant_id, status, limit + 1, after))).all()
        rows = [ApprovalRow(run_id=one.run_id, approval=decode_json(one.item)) for one in found[:limit]]
        if len(found) <= limit:
            return rows, None
        last = found[limit - 1]
        return rows, pages.page_token(last.started_at, last.run_id, last.item_key)

    async def finished_runs(
        self, *, ended_before: str, limit: int = 100, after: FinishedRow | None = None
    ) -> list[FinishedRow]:
        """Runs of all tenants that are over since before a moment and whole in the log; the next after another one."""
        place = None if after is None else (after.ended_at, after.tenant_id, after.run_id)
        async with self.reading() as connection:
            found = (await connection.execute(statements.finished_runs(ended_before, _bounded(limit), place))).all()
        return [
            FinishedRow(
                tenant_id=one.tenant_id, run_id=one.run_id, ended_at=one.ended_at,
                retention=_asked_retention(decode_json(one.run)),
            )
            for one in found
        ]  # fmt: skip

    async def progress(self, projection: str, stream: str, *, generation: int | None = None) -> Progress:
        """How far a stream is folded; of the live generation if none is named."""
        async with self.reading() as connection:
            if generation is None:
                live = (await connection.execute(statements.live_generation())).one()
                generation, version = live.generation, live.reducer_version
            else:
                version = REDUCER_VERSION
            query = statements.progress_of(generation, projection, stream)
            row = (await connection.execute(query)).one_or_none()
        position = NOT_STARTED if row is None else StreamPosition(row.epoch, row.stream_seq)
        return Progress(
            generation=generation, reducer_version=version, projection=projection, stream=stream, position=position
        )

    async def folded(self, projection: str) -> dict[str, StreamPosition]:
        """How far each stream is folded in the live generation; without those that are not begun."""
        async with self.reading() as connection:
            live = (await connection.execute(statements.live_generation())).one()
            rows = await connection.execute(statements.progress_of(live.generation, projection))
            return {row.stream: StreamPosition(row.epoch, row.stream_seq) for row in rows}

    # --- writing ------------------------------------------------------------------------------------------

    async def write(self, changes: Sequence[RunChange], *, before: Progress, position: StreamPosition) -> Progress:
        """Store new states and the position they were folded through, all or nothing.

        Raises:
            Conflict: the stream is not folded exactly through `before`, or that generation was replaced: somebody
                else wrote, nothing was written here.
            Retryable: the database could not be reached; nothing is known to be written.
        """
        run_rows = [run_row(before.generation, change) for change in changes]
        rows_of_items = [row for change in changes for row in item_rows(before.generation, change)]
        async with self.writing() as connection:
            state = await _advance(connection, self._engines.dialect, before, position)
            if run_rows:
                await self._upsert_runs.execute(connection, run_rows)
            for change in changes:
                if change.replaced:
                    await connection.execute(statements.delete_items(before.generation, change.run))
                    if state == LIVE and change.is_erased:
                        await _forget_kept(connection, change.run)
            if rows_of_items:
                await self._upsert_items.execute(connection, rows_of_items)
        if any(change.replaced for change in changes):
            await self._forget_the_past()
        return Progress(
            generation=before.generation,
            reducer_version=before.reducer_version,
            projection=before.projection,
            stream=before.stream,
            position=position,
        )

    async def _forget_the_past(self) -> None:
        """Let the write-ahead log go, which still holds what was there before. Readers may hold it back: next time."""
        if self._engines.dialect == POSTGRESQL:  # its vacuum does, in its own time
            return
        try:
            async with asyncio.timeout(self._timeout_s), self._engines.writer.connect() as connection:
                raw: Any = (await connection.get_raw_connection()).driver_connection
                await raw.execute_fetchall("PRAGMA wal_checkpoint(TRUNCATE)")
        except (TimeoutError, PoolTimeout, DBAPIError, OSError) as exc:
            _log.info("the write-ahead log stays for now: %s", type(exc).__name__)

    async def one_at_a_time(self, connection: AsyncConnection) -> None:
        """Hold off others that change tables or generations until the transaction ends."""
        if self._engines.dialect == POSTGRESQL:  # SQLite has one writer anyway
            await connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))

    # --- transactions -------------------------------------------------------------------------------------

    def reading(self) -> Any:
        """A transaction that sees one moment."""
        return self._transaction(self._engines.reader)

    def writing(self) -> Any:
        """A transaction that is stored when its block ends, or not at all."""
        return self._transaction(self._engines.writer)

    @asynccontextmanager
    async def _transaction(self, engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
        try:
            async with asyncio.timeout(self._timeout_s), engine.begin() as connection:
                yield connection
        except (TimeoutError, PoolTimeout) as exc:
            raise Retryable("the read store does not answer") from exc
        except DBAPIError as exc:
            raise Retryable(f"the read store: {type(exc.orig).__name__}") from exc
        except OSError as exc:
            raise Retryable("the read store cannot be reached") from exc


async def _load(
    connection: AsyncConnection, addresses: Sequence[RunAddress], generation: int | None
) -> dict[RunAddress, Loaded]:
    rows = (await connection.execute(statements.runs_of(addresses, generation))).mappings().all()
    if not rows:
        return {}
    texts: dict[RunAddress, list[tuple[str, str]]] = {RunAddress(row["tenant_id"], row["run_id"]): [] for row in rows}
    query = statements.items_of(tuple(texts), rows[0]["generation"])
    for one in await connection.execute(query):
        texts[RunAddress(one.tenant_id, one.run_id)].append((one.item_key, one.item))
    return {run: loaded(row, texts[run]) for run, row in zip(texts, rows, strict=True)}


async def _forget_kept(connection: AsyncConnection, run: RunAddress) -> None:
    """What is kept for a way back must not keep what was erased; on that way it is folded from what is left."""
    kept = await connection.scalar(select(generations.c.generation).where(generations.c.state == KEPT))
    if kept is not None:
        await connection.execute(statements.delete_items(kept, run))
        await connection.execute(statements.delete_run(kept, run))


async def _advance(connection: AsyncConnection, dialect: str, before: Progress, position: StreamPosition) -> str:
    """Move on from where it was expected to be; the state of the generation."""
    state = await connection.scalar(statements.state_of(before.generation))
    if state not in {BUILDING, LIVE}:
        raise Conflict(f"generation {before.generation} was replaced")
    key = {"generation": before.generation, "projection": before.projection, "stream": before.stream}
    values = {"epoch": position.epoch, "stream_seq": position.stream_seq}
    if before.position == NOT_STARTED:
        moved = await connection.execute(
            statements.insert_into(dialect, positions).values(**key, **values).on_conflict_do_nothing()
        )
    else:
        moved = await connection.execute(
            update(positions)
            .where(
                *(positions.c[name] == value for name, value in key.items()),
                positions.c.epoch == before.position.epoch,
                positions.c.stream_seq == before.position.stream_seq,
            )
            .values(**values)
        )
    if moved.rowcount != 1:
        raise Conflict(f"{before.stream} is not folded through {before.position}")
    return str(state)


def _asked_retention(run: Any) -> str | None:
    limits = run.get("limits")
    asked = limits.get("retention") if isinstance(limits, dict) else None
    return asked if isinstance(asked, str) else None


def _bounded(limit: int) -> int:
    return max(1, min(limit, MAX_LIMIT))
