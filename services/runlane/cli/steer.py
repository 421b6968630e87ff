"""`runlane cancel`, `pause`, `resume`, `retry`, `send`: ask something of a run."""

import click

from runlane.cli.link import Link, linked, resolve_run
from runlane.cli.outcomes import report
from runlane.client.commands import RunActions


@click.command()
@click.argument("run")
@click.option("--reason", help="Why; it is recorded.")
@linked
async def cancel(link: Link, run: str, reason: str | None) -> int:
    """End RUN at its next safe point; without an owner it ends at once."""
    async with link.http() as transport:
        actions = RunActions(transport, await resolve_run(transport, run))
        outcome = await actions.cancel(reason)
    return report(link, outcome, f"{actions.run_id} is asked to end")


@click.command()
@click.argument("run")
@linked
async def pause(link: Link, run: str) -> int:
    """Stop RUN at its next safe point, to go on later."""
    async with link.http() as transport:
        actions = RunActions(transport, await resolve_run(transport, run))
        outcome = await actions.pause()
    return report(link, outcome, f"{actions.run_id} is asked to pause")


@click.command()
@click.argument("run")
@linked
async def resume(link: Link, run: str) -> int:
    """Let RUN go on."""
    async with link.http() as transport:
        actions = RunActions(transport, await resolve_run(transport, run))
        outcome = await actions.resume()
    return report(link, outcome, f"{actions.run_id} goes on")


@click.command()
@click.argument("run")
@click.argument("tool_call_id")
@linked
async def retry(link: Link, run: str, tool_call_id: str) -> int:
    """Try the failed call TOOL_CALL_ID of RUN again, as a new call."""
    async with link.http() as transport:
        actions = RunActions(transport, await resolve_run(transport, run))
        outcome = await actions.retry_tool(tool_call_id)
    return report(link, outcome, f"{tool_call_id} is to be tried again")


@click.command()
@click.argument("run")
@click.argument("text")
@linked
async def send(link: Link, run: str, text: str) -> int:
    """Say TEXT to RUN; it hears it at its next safe boundary."""
    async with link.http() as transport:
        actions = RunActions(transport, await resolve_run(transport, run))
        outcome = await actions.send(text)
    return report(link, outcome, "sent")
