"""A second fold beside the live one: begin it, compare it, make it live, forget the old one."""

from typing import Any

from msgspec import Struct
from sqlalchemy import ColumnElement, and_, delete, exists, func, insert, or_, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from runlane.kernel.errors import Conflict
from runlane.read_store import statements
from runlane.read_store.store import ReadStore
from runlane.read_store.tables import BUILDING, LIVE, RETIRED, generations, items, positions, runs
from runlane_contracts.cursor import REDUCER_VERSION
from runlane_contracts.subjects import RunAddress


class Comparison(Struct, frozen=True, kw_only=True):
    """How a new fold differs from the live one. Runs are comparable where both are folded as far."""

    runs: int
    live_runs: int
    items: int
    live_items: int
    statuses: dict[str, int]
    live_statuses: dict[str, int]
    comparable: int
    missing: int
    """Runs that only the live generation has."""
    unequal: tuple[RunAddress, ...]
    """Comparable runs whose stored text differs; at most as many as were asked for."""


class Generations:
    """The rebuild's side of a read store."""

    def __init__(self, store: ReadStore) -> None:
        self._store = store

    async def live(self) -> int:
        """The generation that readers see."""
        async with self._store.reading() as connection:
            return int((await connection.execute(statements.live_generation())).one().generation)

    async def building(self) -> tuple[int, int] | None:
        """The generation that is being built and how many messages it has folded; None if there is none."""
        async with self._store.reading() as connection:
            query = (
                select(generations.c.generation, func.coalesce(func.sum(positions.c.stream_seq), 0))
                .outerjoin(positions, positions.c.generation == generations.c.generation)
                .where(generations.c.state == BUILDING)
                .group_by(generations.c.generation)
            )
            row = (await connection.execute(query)).one_or_none()
        return None if row is None else (int(row[0]), int(row[1]))

    async def begin(self) -> int:
        """A new, empty generation. Another one that is being built is given up: its next write conflicts."""
        async with self._store.writing() as connection:
            await connection.execute(update(generations).where(generations.c.state == BUILDING).values(state=RETIRED))
            number = int(await connection.scalar(statements.newest_generation())) + 1
            await connection.execute(
                insert(generations).values(generation=number, state=BUILDING, reducer_version=REDUCER_VERSION)
            )
        return number

    async def compare(self, generation: int, *, limit: int = 100) -> Comparison:
        """A new generation beside the live one."""
        async with self._store.reading() as connection:
            live = int((await connection.execute(statements.live_generation())).one().generation)
            return Comparison(
                runs=await _count(connection, runs.c.generation == generation),
                live_runs=await _count(connection, runs.c.generation == live),
                items=await _count(connection, items.c.generation == generation),
                live_items=await _count(connection, items.c.generation == live),
                statuses=await _statuses(connection, generation),
                live_statuses=await _statuses(connection, live),
                comparable=await _comparable(connection, live, generation),
                missing=await _missing(connection, live, generation),
                unequal=await _unequal(connection, live, generation, limit),
            )

    async def missing(self, generation: int) -> int:
        """How many runs of the live generation another one does not have."""
        async with self._store.reading() as connection:
            live = int((await connection.execute(statements.live_generation())).one().generation)
            return await _missing(connection, live, generation)

    async def switch(self, generation: int, *, projection: str) -> None:
        """Make a generation the live one, for every reader at once.

        Raises:
            Conflict: it is not being built, or is behind the live one on some stream; nothing was changed.
        """
        async with self._store.writing() as connection:
            await self._store.one_at_a_time(connection)
            states = select(generations.c.generation, generations.c.state).with_for_update()
            known = {row.generation: row.state for row in await connection.execute(states)}
            if known.get(generation) != BUILDING:
                raise Conflict(f"generation {generation} is not being built")
            live = next(number for number, state in known.items() if state == LIVE)
            await _must_not_be_behind(connection, generation, live, projection)
            # One after the other: at no time are there two.
            await connection.execute(_set_state(live, RETIRED))
            await connection.execute(_set_state(generation, LIVE))

    async def give_up(self, generation: int) -> None:
        """Retire a generation that is being built."""
        async with self._store.writing() as connection:
            await connection.execute(_set_state(generation, RETIRED).where(generations.c.state == BUILDING))

    async def sweep(self, *, limit: int = 500) -> int:
        """Delete some of what retired generations hold: at most `limit` runs. Returns how many; 0 when done."""
        async with self._store.writing() as connection:
            retired = await connection.scalar(
                select(generations.c.generation).where(generations.c.state == RETIRED).limit(1)
            )
            if retired is None:
                return 0
            some = (
                await connection.execute(
                    select(runs.c.tenant_id, runs.c.run_id).where(runs.c.generation == retired).limit(limit)
                )
            ).all()
            if not some:
                for table in (positions, generations):
                    await connection.execute(delete(table).where(table.c.generation == retired))
                return 1
            for table in (items, runs):
                addressed = tuple_(table.c.tenant_id, table.c.run_id).in_([tuple(row) for row in some])
                await connection.execute(delete(table).where(table.c.generation == retired, addressed))
            return len(some)


def _set_state(generation: int, state: str) -> Any:
    return update(generations).where(generations.c.generation == generation).values(state=state)


async def _must_not_be_behind(connection: AsyncConnection, generation: int, live: int, projection: str) -> None:
    new = {row.stream: row for row in await connection.execute(statements.progress_of(generation, projection))}
    for old in await connection.execute(statements.progress_of(live, projection)):
        reached = new.get(old.stream)
        # Another epoch is another history: the new generation folded the one that is there now.
        if reached is None or (reached.epoch == old.epoch and reached.stream_seq < old.stream_seq):
            raise Conflict(f"generation {generation} is behind on {old.stream}")


async def _count(connection: AsyncConnection, where: ColumnElement[bool]) -> int:
    return int(await connection.scalar(select(func.count()).where(where)) or 0)


async def _statuses(connection: AsyncConnection, generation: int) -> dict[str, int]:
    query = select(runs.c.status, func.count()).where(runs.c.generation == generation).group_by(runs.c.status)
    return {status: count for status, count in await connection.execute(query)}  # noqa: C416 - rows are not pairs


_old, _new = runs.alias("old"), runs.alias("new")
_old_items, _new_items = items.alias("old_items"), items.alias("new_items")
_same_run = and_(_old.c.tenant_id == _new.c.tenant_id, _old.c.run_id == _new.c.run_id)


def _pairs(live: int, generation: int) -> ColumnElement[bool]:
    return and_(
        _same_run,
        _old.c.generation == live,
        _new.c.generation == generation,
        _old.c.through_sequence == _new.c.through_sequence,
    )


async def _comparable(connection: AsyncConnection, live: int, generation: int) -> int:
    query = select(func.count()).select_from(_old).join(_new, _pairs(live, generation))
    return int(await connection.scalar(query) or 0)


async def _missing(connection: AsyncConnection, live: int, generation: int) -> int:
    there = exists().where(_same_run, _new.c.generation == generation)
    query = select(func.count()).select_from(_old).where(_old.c.generation == live, ~there)
    return int(await connection.scalar(query) or 0)


async def _unequal(connection: AsyncConnection, live: int, generation: int, limit: int) -> tuple[RunAddress, ...]:
    query = (
        select(_new.c.tenant_id, _new.c.run_id)
        .join_from(_old, _new, _pairs(live, generation))
        .where(or_(_old.c.run != _new.c.run, _old.c.marks != _new.c.marks, _items_differ(live, generation)))
        .order_by(_new.c.tenant_id, _new.c.run_id)
        .limit(limit)
    )
    return tuple(RunAddress(tenant_id, run_id) for tenant_id, run_id in await connection.execute(query))


def _items_differ(live: int, generation: int) -> ColumnElement[bool]:
    """An item of one that the other does not have with the same text."""

    def lacks(one: Any, one_generation: int, other: Any, other_generation: int) -> ColumnElement[bool]:
        twin = exists().where(
            other.c.generation == other_generation,
            other.c.tenant_id == one.c.tenant_id,
            other.c.run_id == one.c.run_id,
            other.c.item_key == one.c.item_key,
            other.c.item == one.c.item,
        )
        return exists().where(
            one.c.generation == one_generation,
            one.c.tenant_id == _new.c.tenant_id,
            one.c.run_id == _new.c.run_id,
            ~twin,
        )

    return or_(
        lacks(_old_items, live, _new_items, generation),
        lacks(_new_items, generation, _old_items, live),
    )
