"""The tables. All of it can be folded again from the VIEW, so a change of shape drops and rebuilds it.

Every row belongs to a *generation*: one complete fold from the first message on. Readers see the live one; a
rebuild fills another beside it and makes it live in one transaction.
"""

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, String, Table, Text

SCHEMA_VERSION = 3
"""Rises with every change of a table."""

BUILDING, LIVE, KEPT, RETIRED = "building", "live", "kept", "retired"
"""Being filled; what readers see; what was seen before, for a way back; to be deleted."""

# Order and equality by code point, as in SQLite and in the cursors, whatever the database's locale.
_Token = String().with_variant(String(collation="C"), "postgresql")

metadata = MetaData()

schema_versions = Table(
    "runlane_schema",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
)

generations = Table(
    "runlane_generations",
    metadata,
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("state", _Token, nullable=False),
    Column("reducer_version", Integer, nullable=False),
    Column("replaced_at", _Token),
    # One is live, at most one is being built, and at most one is kept.
    Index("runlane_one_of_each", "state", unique=True, sqlite_where=Column("state") != RETIRED,
          postgresql_where=Column("state") != RETIRED),
)  # fmt: skip

positions = Table(
    "runlane_positions",
    metadata,
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("projection", _Token, primary_key=True),
    Column("stream", _Token, primary_key=True),
    Column("epoch", _Token, nullable=False),
    Column("stream_seq", BigInteger, nullable=False),
)

runs = Table(
    "runlane_runs",
    metadata,
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("tenant_id", _Token, primary_key=True),
    Column("run_id", _Token, primary_key=True),
    Column("status", _Token, nullable=False),
    Column("agent", _Token),
    Column("session_id", _Token),
    Column("pool", _Token),
    Column("worker_id", _Token),
    Column("trace_id", _Token),
    Column("created_at", _Token, nullable=False),
    Column("updated_at", _Token, nullable=False),
    Column("ended_at", _Token),
    Column("epoch", _Token, nullable=False),
    Column("stream_seq", BigInteger, nullable=False),
    Column("through_sequence", BigInteger, nullable=False),
    Column("run", Text, nullable=False),
    Column("marks", Text, nullable=False),
    Column("quarantined", Text),
    Index("runlane_runs_newest", "generation", "tenant_id", "created_at", "run_id"),
    Index("runlane_runs_by_status", "generation", "tenant_id", "status", "created_at", "run_id"),
    Index("runlane_runs_by_agent", "generation", "tenant_id", "agent", "created_at", "run_id"),
    Index("runlane_runs_by_session", "generation", "tenant_id", "session_id", "created_at", "run_id"),
)

_IS_APPROVAL = Column("kind") == "approval"

items = Table(
    "runlane_items",
    metadata,
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("tenant_id", _Token, primary_key=True),
    Column("run_id", _Token, primary_key=True),
    Column("item_key", _Token, primary_key=True),
    Column("first_sequence", BigInteger, nullable=False),
    Column("kind", _Token, nullable=False),
    Column("status", _Token, nullable=False),
    Column("started_at", _Token, nullable=False),
    Column("item", Text, nullable=False),
    # Approvals are looked for over all runs of a tenant; other items only within their run.
    Index("runlane_approvals", "generation", "tenant_id", "status", "started_at", "run_id", "item_key",
          sqlite_where=_IS_APPROVAL, postgresql_where=_IS_APPROVAL),
)  # fmt: skip
