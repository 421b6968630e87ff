"""`runlane runs`: what runs there are."""

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from runlane.cli.link import Link, linked
from runlane.cli.output import emit, printable
from runlane.kernel.clock import utc_now
from runlane_contracts.codec import parse_timestamp

if TYPE_CHECKING:
    from rich.text import Text

COLORS = {
    "running": "green", "waiting": "yellow", "paused": "yellow", "cancelling": "magenta", "lost": "red",
    "failed": "red", "completed": "blue", "cancelled": "dim",
}  # fmt: skip

COLUMNS = ("run", "status", "agent", "facts", "changed")
WIDE_COLUMNS = ("run", "status", "agent", "facts", "started", "changed", "worker")
WIDE = 120


@click.command()
@click.option("--status", help="Only runs in this status.")
@click.option("--agent", help="Only runs of this agent.")
@click.option("--session", "session_id", help="Only runs of this session.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 1000), help="How many at most.")
@linked
async def runs(link: Link, status: str | None, agent: str | None, session_id: str | None, limit: int) -> None:
    """List runs, newest first."""
    listed: list[dict[str, Any]] = []
    async with link.http() as transport:
        page_token: str | None = None
        while len(listed) < limit:
            page = await transport.get_json(
                "/v1/runs",
                {"status": status, "agent": agent, "session_id": session_id, "page_token": page_token,
                 "limit": min(100, limit - len(listed))},
            )  # fmt: skip
            listed += page["runs"]
            page_token = page.get("page_token")
            if not page_token or not page["runs"]:
                break
    if link.json:
        for run in listed:
            emit(run)
        return
    _print_table(listed)


def _print_table(listed: list[dict[str, Any]]) -> None:
    from rich.console import Console  # noqa: PLC0415 - not for --json
    from rich.table import Table  # noqa: PLC0415

    console = Console()
    names = WIDE_COLUMNS if console.width >= WIDE else COLUMNS
    table = Table(box=None, pad_edge=False)
    for name in names:
        # Where there is too little room the agent's name is folded; the run's id is there to be copied.
        table.add_column(name, justify="right" if name == "facts" else "left", no_wrap=name != "agent", overflow="fold")
    now = utc_now()
    for run in listed:
        cells = _cells(run, now)
        table.add_row(*(cells[name] for name in names))
    console.print(table if listed else "no runs")


def _cells(run: dict[str, Any], now: datetime) -> "dict[str, Text]":
    from rich.text import Text  # noqa: PLC0415

    status = str(run.get("status", ""))
    return {
        "run": Text(printable(str(run["run_id"]))),
        "status": Text(status, style=COLORS.get(status, "")),
        "agent": Text(printable(str(run.get("agent") or ""))),
        "facts": Text(str(run.get("through_sequence", ""))),
        "started": Text(_ago(run.get("created_at"), now)),
        "changed": Text(_ago(run.get("updated_at"), now)),
        "worker": Text(printable(str(run.get("worker_id") or ""))),
    }


def _ago(moment: str | None, now: datetime) -> str:
    if not moment:
        return ""
    seconds = max(0.0, (now - parse_timestamp(moment)).total_seconds())
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
