"""Every statement the read store sends. Values are always bound, never spelled into the text."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from sqlalchemy import ColumnElement, Delete, Select, Table, and_, delete, func, literal, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.dml import Insert

from runlane.read_store.tables import LIVE, generations, items, positions, runs
from runlane_contracts.cursor import REDUCER_VERSION
from runlane_contracts.reducer import TERMINAL_STATUS
from runlane_contracts.subjects import RunAddress

_live = select(generations.c.generation).where(generations.c.state == LIVE).scalar_subquery()
# State of another reducer version must not be folded on; it may still be listed.
_live_of_this_reducer = (
    select(generations.c.generation)
    .where(generations.c.state == LIVE, generations.c.reducer_version == REDUCER_VERSION)
    .scalar_subquery()
)


def runs_of(addresses: Sequence[RunAddress], generation: int | None) -> Select[Any]:
    """Some runs; of the live generation if none is named."""
    return select(runs).where(
        runs.c.generation == (_live_of_this_reducer if generation is None else generation),
        _addressed(runs, addresses),
    )


def items_of(addresses: Sequence[RunAddress], generation: int) -> Select[Any]:
    """The items of some runs, each run's in the order they began."""
    return (
        select(items.c.tenant_id, items.c.run_id, items.c.item_key, items.c.item)
        .where(items.c.generation == generation, _addressed(items, addresses))
        .order_by(items.c.first_sequence)
    )


def delete_items(generation: int, run: RunAddress) -> Delete:
    """All items of a run."""
    return delete(items).where(items.c.generation == generation, _addressed(items, [run]))


def delete_run(generation: int, run: RunAddress) -> Delete:
    """A run, without its items."""
    return delete(runs).where(runs.c.generation == generation, _addressed(runs, [run]))


def _addressed(table: Table, addresses: Sequence[RunAddress]) -> ColumnElement[bool]:
    if len(addresses) == 1:
        return and_(table.c.tenant_id == addresses[0].tenant_id, table.c.run_id == addresses[0].run_id)
    return tuple_(table.c.tenant_id, table.c.run_id).in_([tuple(one) for one in addresses])


_LISTED = (
    "run_id", "status", "created_at", "updated_at", "through_sequence", "agent", "session_id", "pool",
    "worker_id", "trace_id", "ended_at", "quarantined",
)  # fmt: skip


def newest_runs(
    tenant_id: str, filters: dict[str, str | None], limit: int, before: tuple[str, ...] | None
) -> Select[Any]:
    """Runs of a tenant, newest first. `filters`: column name → value, None for any."""
    query = select(*(runs.c[name] for name in _LISTED)).where(runs.c.generation == _live, runs.c.tenant_id == tenant_id)
    for name, value in filters.items():
        if value is not None:
            query = query.where(runs.c[name] == value)
    if before is not None:
        query = query.where(tuple_(runs.c.created_at, runs.c.run_id) < _key(before))
    return query.order_by(runs.c.created_at.desc(), runs.c.run_id.desc()).limit(limit)


def finished_runs(ended_before: str, limit: int, after: tuple[str, ...] | None) -> Select[Any]:
    """Runs of all tenants that ended before a moment and were not archived yet, those that ended first, first."""
    query = select(runs.c.tenant_id, runs.c.run_id, runs.c.ended_at, runs.c.run).where(
        runs.c.generation == _live,
        runs.c.status.in_(sorted(TERMINAL_STATUS)),
        runs.c.ended_at < ended_before,
        ~runs.c.marks.contains('"log.compacted"', autoescape=True),
    )
    if after is not None:
        query = query.where(tuple_(runs.c.ended_at, runs.c.tenant_id, runs.c.run_id) > _key(after))
    return query.order_by(runs.c.ended_at, runs.c.tenant_id, runs.c.run_id).limit(limit)


def approvals(tenant_id: str, status: str | None, limit: int, after: tuple[str, ...] | None) -> Select[Any]:
    """Approvals of a tenant, the longest asked first."""
    query = select(items.c.run_id, items.c.item_key, items.c.started_at, items.c.item).where(
        items.c.generation == _live, items.c.tenant_id == tenant_id, items.c.kind == "approval"
    )
    if status is not None:
        query = query.where(items.c.status == status)
    if after is not None:
        query = query.where(tuple_(items.c.started_at, items.c.run_id, items.c.item_key) > _key(after))
    return query.order_by(items.c.started_at, items.c.run_id, items.c.item_key).limit(limit)


def live_generation() -> Select[Any]:
    """The live generation and the reducer version that folded it."""
    return select(generations.c.generation, generations.c.reducer_version).where(generations.c.state == LIVE)


def state_of(generation: int) -> Select[Any]:
    """The state of a generation, held until the transaction ends."""
    return select(generations.c.state).where(generations.c.generation == generation).with_for_update(read=True)


def progress_of(generation: int, projection: str, stream: str | None = None) -> Select[Any]:
    """How far a generation has folded one stream, or each."""
    query = select(positions.c.stream, positions.c.epoch, positions.c.stream_seq).where(
        positions.c.generation == generation, positions.c.projection == projection
    )
    return query if stream is None else query.where(positions.c.stream == stream)


def newest_generation() -> Select[Any]:
    """The highest number given so far, or 0."""
    return select(func.coalesce(func.max(generations.c.generation), 0))


def insert_into(dialect: str, table: Table) -> Any:
    """An insert that can say what to do with a row that is there already."""
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


class Upsert:
    """An upsert of many rows, spelt once: what is the same for every row is not worked out for each."""

    def __init__(self, dialect: Dialect, table: Table) -> None:
        compiled = upsert(dialect.name, table).compile(dialect=dialect, column_keys=[one.name for one in table.c])
        self._text = str(compiled)
        self._values = itemgetter(*(compiled.positiontup or ()))

    async def execute(self, connection: AsyncConnection, rows: Sequence[dict[str, Any]]) -> None:
        """Insert rows, or take their values. Each has every column."""
        await connection.exec_driver_sql(self._text, [self._values(row) for row in rows])


def upsert(dialect: str, table: Table) -> Insert:
    """Insert, or take the new values of every column that is not part of the key."""
    statement = insert_into(dialect, table)
    changed = {column.name: statement.excluded[column.name] for column in table.c if not column.primary_key}
    result: Insert = statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=changed)
    return result


def _key(values: tuple[str, ...]) -> Any:
    return tuple_(*(literal(value) for value in values))
