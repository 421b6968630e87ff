"""Connections to SQLite and PostgreSQL, so that the same code runs on both.

Readers see one snapshot per transaction. SQLite has exactly one writing connection (a second would only
wait for the first) and writes ahead, so readers never wait. It does not fsync each commit: after a power cut
the database is whole but may be some transactions old, and the projector folds those again.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import URL, event, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

SQLITE, POSTGRESQL = "sqlite", "postgresql"
_DRIVERS = {SQLITE: "sqlite+aiosqlite", POSTGRESQL: "postgresql+asyncpg", "postgres": "postgresql+asyncpg"}


@dataclass(frozen=True, slots=True)
class Engines:
    """One engine that writes, one that only reads."""

    writer: AsyncEngine
    reader: AsyncEngine

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self.writer.dialect.name

    async def dispose(self) -> None:
        """Close every connection."""
        await self.reader.dispose()
        await self.writer.dispose()


def engines(url: str, *, timeout_s: float, readers: int) -> Engines:
    """Engines for ``sqlite:///path`` or ``postgresql://user@host/name``.

    Raises:
        ValueError: another kind of database, or SQLite without a file.
    """
    parsed = make_url(url)
    backend = parsed.get_backend_name()
    if backend not in _DRIVERS:
        raise ValueError(f"a read store is SQLite or PostgreSQL, not {backend}")
    driven = parsed.set(drivername=_DRIVERS[backend])
    if backend == SQLITE:
        return _sqlite(driven, timeout_s, readers)
    return _postgresql(driven, timeout_s, readers)


def _sqlite(url: URL, timeout_s: float, readers: int) -> Engines:
    if url.database in {None, "", ":memory:"}:
        raise ValueError("a read store in SQLite needs a file")
    arguments: dict[str, Any] = {"timeout": timeout_s, "isolation_level": None}
    writer = create_async_engine(url, pool_size=1, max_overflow=0, pool_timeout=timeout_s, connect_args=arguments)
    reader = create_async_engine(url, pool_size=readers, max_overflow=0, pool_timeout=timeout_s, connect_args=arguments)
    event.listen(writer.sync_engine, "connect", _prepare_writer)
    event.listen(reader.sync_engine, "connect", _prepare_reader)
    # The driver would begin late, at the first change; what was read before would not be part of it.
    event.listen(writer.sync_engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    event.listen(reader.sync_engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    return Engines(writer, reader)


def _prepare_writer(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute("PRAGMA secure_delete=ON")  # what is erased is overwritten
    cursor.execute("PRAGMA wal_autocheckpoint=2000")
    cursor.close()


def _prepare_reader(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA query_only=ON")
    cursor.close()


def _postgresql(url: URL, timeout_s: float, readers: int) -> Engines:
    arguments: dict[str, Any] = {"timeout": timeout_s, "command_timeout": timeout_s}
    writer = create_async_engine(
        url, pool_size=2, max_overflow=2, pool_timeout=timeout_s, pool_pre_ping=True, connect_args=arguments
    )
    reader = create_async_engine(
        url, pool_size=readers, max_overflow=0, pool_timeout=timeout_s, pool_pre_ping=True,
        connect_args=arguments, isolation_level="REPEATABLE READ",
    )  # fmt: skip
    return Engines(writer, reader)
