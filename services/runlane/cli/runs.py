"""`runlane runs`: what runs there are."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from runlane.cli.link import Link, linked
from runlane.cli.output import emit, printable, say
from runlane.client.errors import RequestRefused, Unreachable
from runlane.kernel.clock import utc_now
from runlane_contracts.codec import parse_timestamp

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from runlane.client.transports.http import HttpTransport

COLORS = {
    "running": "green", "waiting": "yellow", "paused": "yellow", "cancelling": "magenta", "lost": "red",
    "failed": "red", "completed": "blue", "cancelled": "dim",
}  # fmt: skip

COLUMNS = ("run", "status", "agent", "facts", "changed")
WIDE_COLUMNS = ("run", "status", "agent", "facts", "started", "changed", "worker")
WIDE = 120
FOLLOW_S = 2.0


@click.command()
@click.option("--status", help="Only runs in this status.")
@click.option("--agent", help="Only runs of this agent.")
@click.option("--session", "session_id", help="Only runs of this session.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 1000), help="How many at most.")
@click.option("--follow", "-f", is_flag=True, help="Go on, and show what changes; until Ctrl-C.")
@linked
async def runs(
    link: Link, status: str | None, agent: str | None, session_id: str | None, limit: int, *, follow: bool
) -> None:
    """List runs, newest first. With --follow the table stays and changes; --json then prints each run that changed."""
    filters = {"status": status, "agent": agent, "session_id": session_id}
    async with link.http() as transport:
        if follow:
            await _follow(link, transport, filters, limit)
            return
        listed = await _listed(transport, filters, limit)
    if link.json:
        for run in listed:
            emit(run)
        return
    from rich.console import Console  # noqa: PLC0415 - not for --json

    console = Console()
    console.print(_table(listed, console.width) if listed else "no runs")


async def _listed(transport: "HttpTransport", filters: dict[str, Any], limit: int) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = []
    page_token: str | None = None
    while len(listed) < limit:
        asked = {**filters, "page_token": page_token, "limit": min(100, limit - len(listed))}
        page = await transport.get_json("/v1/runs", asked)
        listed += page["runs"]
        page_token = page.get("page_token")
        if not page_token or not page["runs"]:
            break
    return listed


async def _follow(link: Link, transport: "HttpTransport", filters: dict[str, Any], limit: int) -> None:
    """Ask again and again; a server that is away is waited for, and said to be."""
    with _following(link) as show:
        while True:
            try:
                show(await _listed(transport, filters, limit), "")
            except Unreachable as exc:
                show(None, f"no answer, trying again: {exc}")
            except RequestRefused as exc:
                if not exc.retryable:
                    raise
                show(None, f"{exc}, trying again")
            await asyncio.sleep(FOLLOW_S)


Show = Callable[[list[dict[str, Any]] | None, str], None]
"""Takes what is listed now, or why it is not known."""


@contextmanager
def _following(link: Link) -> Iterator[Show]:
    known: list[dict[str, Any]] = []
    if link.json:

        def lines(listed: list[dict[str, Any]] | None, trouble: str) -> None:
            nonlocal known
            if listed is None:
                say(f"runlane: {trouble}")
                return
            for run in reversed(listed):
                if run not in known:
                    emit(run)
            known = listed

        yield lines
        return
    from rich.console import Console, Group  # noqa: PLC0415 - not for --json
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console()
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:

        def table(listed: list[dict[str, Any]] | None, trouble: str) -> None:
            nonlocal known
            known = known if listed is None else listed
            drawn = _table(known, console.width) if known else Text("no runs yet", style="dim")
            live.update(Group(drawn, Text(trouble, style="yellow")) if trouble else drawn, refresh=True)

        yield table


def _table(listed: list[dict[str, Any]], width: int) -> "Table":
    from rich.table import Table  # noqa: PLC0415 - not for --json

    names = WIDE_COLUMNS if width >= WIDE else COLUMNS
    table = Table(box=None, pad_edge=False)
    for name in names:
        # Where there is too little room the agent's name is folded; the run's id is there to be copied.
        table.add_column(name, justify="right" if name == "facts" else "left", no_wrap=name != "agent", overflow="fold")
    now = utc_now()
    for run in listed:
        cells = _cells(run, now)
        table.add_row(*(cells[name] for name in names))
    return table


def _cells(run: dict[str, Any], now: datetime) -> "dict[str, Text]":
    from rich.text import Text  # noqa: PLC0415

    status = str(run.get("status", ""))
    return {
        "run": Text(printable(str(run["run_id"]))),
        "status": _status(status, run.get("quarantined")),
        "agent": Text(printable(str(run.get("agent") or ""))),
        "facts": Text(str(run.get("through_sequence", ""))),
        "started": Text(_ago(run.get("created_at"), now)),
        "changed": Text(_ago(run.get("updated_at"), now)),
        "worker": Text(printable(str(run.get("worker_id") or ""))),
    }


def _status(status: str, quarantined: Any) -> "Text":
    """How it stands; and that what is shown of it stands still, where a fact of it cannot be folded."""
    from rich.text import Text  # noqa: PLC0415

    text = Text(status, style=COLORS.get(status, ""))
    if isinstance(quarantined, dict):
        text.append(f" (view stopped before #{quarantined.get('sequence', '')})", style="red")
    return text


def _ago(moment: str | None, now: datetime) -> str:
    if not moment:
        return ""
    seconds = max(0.0, (now - parse_timestamp(moment)).total_seconds())
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
