"""A second fold beside the live one: begin it, compare it, make it live, forget the old one."""

from datetime import timedelta
from typing import Any

from msgspec import Struct
from sqlalchemy import ColumnElement, and_, delete, exists, func, insert, literal, or_, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from runlane.kernel.clock import Now, utc_now
from runlane.kernel.errors import Conflict
from runlane.read_store import statements
from runlane.read_store.store import ReadStore
from runlane.read_store.tables import BUILDING, KEPT, LIVE, RETIRED, generations, items, positions, runs
from runlane_contracts.codec import timestamp
from runlane_contracts.cursor import REDUCER_VERSION
from runlane_contracts.reducer import TERMINAL_STATUS
from runlane_contracts.subjects import RunAddress


class Kept(Struct, frozen=True, kw_only=True):
    """A generation that was replaced and not forgotten yet."""

    generation: int
    reducer_version: int
    replaced_at: str


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
    behind: int
    """Runs that the live generation has folded further, though it is quarantined no later in the new one."""
    quarantined: int
    live_quarantined: int
    newly_quarantined: int
    """Runs that stand still in the new one and do not in the live one."""
    other_endings: int
    """Comparable runs that are over in one of them, and not so, or otherwise, in the other."""


class Generations:
    """The rebuild's side of a read store."""

    def __init__(self, store: ReadStore, *, now: Now = utc_now) -> None:
        self._store = store
        self._now = now

    async def live(self) -> int:
        """The generation that readers see."""
        async with self._store.reading() as connection:
            return int((await connection.execute(statements.live_generation())).one().generation)

    async def quarantined(self) -> int:
        """How many runs stand still in the live generation."""
        async with self._store.reading() as connection:
            live = int((await connection.execute(statements.live_generation())).one().generation)
            return await _count(connection, _stand_still(live))

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

    async def kept(self) -> Kept | None:
        """What was live before, if it was not forgotten."""
        async with self._store.reading() as connection:
            row = (await connection.execute(select(generations).where(_was_live))).first()
        if row is None:
            return None
        return Kept(
            generation=row.generation, reducer_version=row.reducer_version, replaced_at=row.replaced_at or ""
        )  # fmt: skip

    async def reopen(self) -> int:
        """The kept generation, to be filled on and gone back to. Another one that is being built is given up.

        Raises:
            Conflict: none is kept, or another version of the reducer folded it: this one cannot go on with it.
        """
        async with self._store.writing() as connection:
            await self._store.one_at_a_time(connection)
            row = (await connection.execute(select(generations).where(_was_live))).first()
            if row is None:
                raise Conflict("nothing is kept to go back to")
            if row.reducer_version != REDUCER_VERSION:
                raise Conflict(f"reducer version {row.reducer_version} folded what is kept, this is {REDUCER_VERSION}")
            others = and_(generations.c.state == BUILDING, generations.c.generation != row.generation)
            await connection.execute(update(generations).where(others).values(state=RETIRED))
            await connection.execute(_set_state(row.generation, BUILDING))
        return int(row.generation)

    async def begin(self) -> int:
        """A new, empty generation. Another one that is being built is given up: its next write conflicts."""
        async with self._store.writing() as connection:
            await connection.execute(update(generations).where(generations.c.state == BUILDING).values(state=RETIRED))
            number = int(await connection.scalar(statements.newest_generation())) + 1
            await connection.execute(
                insert(generations).values(generation=number, state=BUILDING, reducer_version=REDUCER_VERSION)
            )
        return number

    async def compare(self, generation: int) -> Comparison:
        """A new generation beside the live one, in numbers."""
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
                behind=await _behind(connection, live, generation),
                quarantined=await _count(connection, _stand_still(generation)),
                live_quarantined=await _count(connection, _stand_still(live)),
                newly_quarantined=await _newly_quarantined(connection, live, generation),
                other_endings=await _other_endings(connection, live, generation),
            )

    async def unequal(
        self, generation: int, *, limit: int = 100, after: RunAddress | None = None
    ) -> tuple[RunAddress, ...]:
        """Comparable runs whose stored text differs, by address, those after one."""
        async with self._store.reading() as connection:
            live = int((await connection.execute(statements.live_generation())).one().generation)
            return await _unequal(connection, live, generation, limit, after)

    async def unsettled(self, generation: int, *, limit: int = 1000) -> tuple[RunAddress, ...]:
        """Runs of the live generation that cannot be compared just now: folded further in one of the two."""
        async with self._store.reading() as connection:
            live = int((await connection.execute(statements.live_generation())).one().generation)
            query = (
                select(_old.c.tenant_id, _old.c.run_id)
                .outerjoin(_new, and_(_same_run, _new.c.generation == generation))
                .where(
                    _old.c.generation == live,
                    or_(_new.c.run_id.is_(None), _old.c.through_sequence != _new.c.through_sequence),
                )
                .limit(limit)
            )
            return tuple(RunAddress(tenant_id, run_id) for tenant_id, run_id in await connection.execute(query))

    async def switch(self, generation: int, *, projection: str) -> None:
        """Make a generation the live one, for every reader at once. What it replaces is kept, for a way back.

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
            await connection.execute(update(generations).where(generations.c.state == KEPT).values(state=RETIRED))
            await connection.execute(_set_state(live, KEPT, replaced_at=timestamp(self._now())))
            await connection.execute(_set_state(generation, LIVE, replaced_at=None))

    async def give_up(self, generation: int, *, keep: bool = False) -> None:
        """Retire a generation that is being built; `keep`: it goes back to where `reopen` found it."""
        async with self._store.writing() as connection:
            to = KEPT if keep else RETIRED
            await connection.execute(_set_state(generation, to).where(generations.c.state == BUILDING))

    async def forget_kept(self, *, after_s: float) -> None:
        """Retire what was replaced longer ago than this."""
        before = timestamp(self._now() - timedelta(seconds=after_s))
        async with self._store.writing() as connection:
            old = and_(generations.c.state == KEPT, generations.c.replaced_at < before)
            await connection.execute(update(generations).where(old).values(state=RETIRED))

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


# Kept; or on its way back when the process that led it died.
_was_live = or_(
    generations.c.state == KEPT, and_(generations.c.state == BUILDING, generations.c.replaced_at.is_not(None))
)


def _set_state(generation: int, state: str, **more: Any) -> Any:
    return update(generations).where(generations.c.generation == generation).values(state=state, **more)


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


def _stand_still(generation: int) -> ColumnElement[bool]:
    return and_(runs.c.generation == generation, runs.c.quarantined.is_not(None))


def _both(live: int, generation: int) -> ColumnElement[bool]:
    return and_(_same_run, _old.c.generation == live, _new.c.generation == generation)


async def _behind(connection: AsyncConnection, live: int, generation: int) -> int:
    shorter = and_(_new.c.through_sequence < _old.c.through_sequence, _new.c.quarantined.is_(None))
    query = select(func.count()).select_from(_old).join(_new, _both(live, generation)).where(shorter)
    return int(await connection.scalar(query) or 0)


async def _newly_quarantined(connection: AsyncConnection, live: int, generation: int) -> int:
    newly = and_(_new.c.quarantined.is_not(None), _old.c.quarantined.is_(None))
    query = select(func.count()).select_from(_old).join(_new, _both(live, generation)).where(newly)
    return int(await connection.scalar(query) or 0)


async def _other_endings(connection: AsyncConnection, live: int, generation: int) -> int:
    over = or_(_old.c.status.in_(TERMINAL_STATUS), _new.c.status.in_(TERMINAL_STATUS))
    query = (
        select(func.count())
        .select_from(_old)
        .join(_new, _pairs(live, generation))
        .where(over, _old.c.status != _new.c.status)
    )
    return int(await connection.scalar(query) or 0)


async def _unequal(
    connection: AsyncConnection, live: int, generation: int, limit: int, after: RunAddress | None
) -> tuple[RunAddress, ...]:
    query = (
        select(_new.c.tenant_id, _new.c.run_id)
        .join_from(_old, _new, _pairs(live, generation))
        .where(or_(_old.c.run != _new.c.run, _old.c.marks != _new.c.marks, _items_differ(live, generation)))
        .order_by(_new.c.tenant_id, _new.c.run_id)
        .limit(limit)
    )
    if after is not None:
        query = query.where(
            tuple_(_new.c.tenant_id, _new.c.run_id) > tuple_(literal(after.tenant_id), literal(after.run_id))
        )  # fmt: skip
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
