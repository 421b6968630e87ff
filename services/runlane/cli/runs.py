"""`runlane runs`: what runs there are."""

from datetime import datetime
from typing import Any

import click

from runlane.cli.link import Link, linked
from runlane.cli.output import emit, printable
from runlane.kernel.clock import utc_now
from runlane_contracts.codec import parse_timestamp

COLORS = {
    "running": "green", "waiting": "yellow", "paused": "yellow", "cancelling": "magenta", "lost": "red",
    "failed": "red", "completed": "blue", "cancelled": "dim",
}  # fmt: skip


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
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False)
    for name in ("run", "status", "agent", "facts", "started", "changed", "worker"):
        table.add_column(name, justify="right" if name == "facts" else "left", no_wrap=name != "worker")
    now = utc_now()
    for run in listed:
        status = str(run.get("status", ""))
        table.add_row(
            Text(printable(str(run["run_id"]))),
            Text(status, style=COLORS.get(status, "")),
            Text(printable(str(run.get("agent") or ""))),
            str(run.get("through_sequence", "")),
            _ago(run.get("created_at"), now),
            _ago(run.get("updated_at"), now),
            Text(printable(str(run.get("worker_id") or ""))),
        )
    Console().print(table if listed else "no runs")


def _ago(moment: str | None, now: datetime) -> str:
    if not moment:
        return ""
    seconds = max(0.0, (now - parse_timestamp(moment)).total_seconds())
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
