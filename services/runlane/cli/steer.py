"""`runlane cancel`, `pause`, `resume`, `retry`, `reconcile`, `send`: ask something of a run."""

from typing import Any

import click
import msgspec

from runlane.cli.link import Link, linked, resolve_run
from runlane.cli.outcomes import report
from runlane.client.commands import RunActions
from runlane_contracts.codec import decode_json


@click.command()
@click.argument("run")
@click.option("--reason", help="Why; it is recorded.")
@linked
async def cancel(link: Link, run: str, reason: str | None) -> None:
    """End RUN at its next safe point; without an owner it ends at once."""
    async with link.http() as transport:
        actions = RunActions(transport, await resolve_run(transport, run))
        outcome = await actions.settled(await actions.cancel(reason))
    report(link, outcome, f"{actions.run_id} is asked to end")


@click.command()
@click.argument("run")
@linked
async def pause(link: Link, run: str) -> None:
    """Stop RUN at its next safe point, to go on later."""
    async with link.http() as transport:
        actions = RunActions(transport, await resolve_run(transport, run))
        outcome = await actions.settled(await actions.pause())
    report(link, outcome, f"{actions.run_id} is asked to pause")


@click.command()
@click.argument("run")
@linked
async def resume(link: Link, run: str) -> None:
    """Let RUN go on."""
    async with link.http() as transport:
        actions = RunActions(transport, await resolve_run(transport, run))
        outcome = await actions.settled(await actions.resume())
    report(link, outcome, f"{actions.run_id} goes on")


@click.command()
@click.argument("run")
@click.argument("tool_call_id")
@linked
async def retry(link: Link, run: str, tool_call_id: str) -> None:
    """Try the failed call TOOL_CALL_ID of RUN again, as a new call."""
    async with link.http() as transport:
        actions = RunActions(transport, await resolve_run(transport, run))
        outcome = await actions.settled(await actions.retry_tool(tool_call_id))
    report(link, outcome, f"{tool_call_id} is to be tried again")


@click.command()
@click.argument("run")
@click.argument("tool_call_id")
@click.option("--executed/--not-executed", default=None, help="Whether it took effect.")
@click.option("--note", required=True, help="How you know; it is recorded.")
@click.option("--result", help="JSON: what it gave, if you know that too.")
@linked
async def reconcile(
    link: Link,
    run: str,
    tool_call_id: str,
    executed: bool | None,  # noqa: FBT001 - a flag of the command line
    note: str,
    result: str | None,
) -> None:
    """Say what became of TOOL_CALL_ID of RUN, whose worker was lost before it could."""
    if executed is None:  # never guess: what "did not happen" may be done again
        raise click.UsageError("say --executed or --not-executed")
    found = "executed" if executed else "not_executed"
    async with link.http() as transport:
        actions = RunActions(transport, await resolve_run(transport, run))
        outcome = await actions.settled(await actions.reconcile_tool(tool_call_id, found, note, result=_json(result)))
    report(link, outcome, f"{tool_call_id} was {found.replace('_', ' ')}")


def _json(text: str | None) -> Any:
    try:
        return None if text is None else decode_json(text)
    except msgspec.DecodeError as exc:
        raise click.BadParameter(f"not JSON: {exc}", param_hint="--result") from exc


@click.command()
@click.argument("run")
@click.argument("text")
@linked
async def send(link: Link, run: str, text: str) -> None:
    """Say TEXT to RUN; it hears it at its next safe boundary."""
    async with link.http() as transport:
        actions = RunActions(transport, await resolve_run(transport, run))
        outcome = await actions.settled(await actions.send(text))
    report(link, outcome, "sent")
