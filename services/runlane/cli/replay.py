"""`runlane replay`: show the record again. Runs nothing."""

import asyncio
from typing import Any

import click
import msgspec

from runlane.cli.link import Link, linked, resolve_run
from runlane.cli.output import emit
from runlane.client.reader import Connection
from runlane.client.state import RunState
from runlane.client.transports.http import HttpTransport
from runlane_contracts.codec import decode_fact, encode, parse_timestamp
from runlane_contracts.envelope import Fact
from runlane_contracts.timeline import TimelineRow

LONGEST_PAUSE_S = 10.0
PAGE = 500


@click.command()
@click.argument("run")
@click.option("--at", "at_sequence", type=click.IntRange(1), help="How the run stood after this sequence.")
@click.option("--speed", type=click.FloatRange(0.01), help="Play the facts back so many times as fast as they came.")
@click.option("--rows", is_flag=True, help="The record in brief: what is alike is one row with a count. Also --at.")
@linked
async def replay(
    link: Link,
    run: str,
    at_sequence: int | None,
    speed: float | None,
    rows: bool,  # noqa: FBT001 - a flag
) -> None:
    """Show the record of RUN: all of it, or as it stood, or as it happened. Nothing is executed."""
    if speed is not None and (at_sequence is not None or rows):
        raise click.UsageError("--at and --rows show one moment, --speed plays it back: use one of them")
    async with link.http() as transport:
        run_id = await resolve_run(transport, run)
        if rows:
            await _show_rows(link, transport, run_id, at_sequence)
        elif at_sequence is not None:
            _show_state(link, await transport.get_json(f"/v1/runs/{run_id}/snapshot", {"at_sequence": at_sequence}))
        else:
            await _play(link, transport, run_id, speed)


def _show_state(link: Link, snapshot: dict[str, Any]) -> None:
    if link.json:
        emit(snapshot)
        return
    from rich.console import Console  # noqa: PLC0415 - not for --json

    from runlane.cli.timeline import body, footer, header  # noqa: PLC0415

    state = RunState("")
    state.data = snapshot["state"]
    console = Console()
    for line in (header(state, Connection.IDLE, ""), *body(state), *footer(state)):
        console.print(line)


async def _show_rows(link: Link, transport: HttpTransport, run_id: str, at_sequence: int | None) -> None:
    from rich.console import Console  # noqa: PLC0415 - not for --json

    from runlane.cli.rows import row_line  # noqa: PLC0415

    console = Console(soft_wrap=True)
    cursor: str | None = None
    more = True
    while more:
        asked = {"cursor": cursor, "limit": PAGE, "at_sequence": at_sequence}
        page = await transport.get_json(f"/v1/runs/{run_id}/timeline", asked)
        for row in page["rows"]:
            if link.json:
                emit(row)
            else:
                console.print(row_line(msgspec.convert(row, TimelineRow)))
        cursor, more = page["cursor"], page["has_more"]


async def _play(link: Link, transport: HttpTransport, run_id: str, speed: float | None) -> None:
    from runlane.cli.timeline import fact_line, footer  # noqa: PLC0415

    state = RunState(run_id)
    before: Fact | None = None
    cursor: str | None = None
    more = True
    while more:
        page = await transport.get_json(f"/v1/runs/{run_id}/events", {"cursor": cursor, "limit": PAGE})
        for raw in page["events"]:
            fact = decode_fact(encode(raw))
            if speed is not None and before is not None:
                await asyncio.sleep(min(LONGEST_PAUSE_S, _seconds_between(before, fact) / speed))
            before = fact
            key = state.apply(fact)
            if link.json:
                emit(raw)
            else:
                click.echo(fact_line(fact, state.data["items"].get(key or "")))
        cursor, more = page.get("cursor"), bool(page.get("has_more"))
    if not link.json:
        for line in footer(state):
            click.echo(line.plain)


def _seconds_between(before: Fact, after: Fact) -> float:
    return max(0.0, (parse_timestamp(after.occurred_at) - parse_timestamp(before.occurred_at)).total_seconds())
