"""`runlane approve`, `runlane reject`: answer what a run asks, for exactly the action that is shown."""

from dataclasses import replace
from typing import Any

import click
import msgspec

from runlane.cli.failures import Failure
from runlane.cli.link import Link, linked, resolve_run
from runlane.cli.outcomes import report
from runlane.cli.output import printable, say, short
from runlane.client.commands import RunActions
from runlane.client.selectors import open_approvals
from runlane.client.transports.http import HttpTransport
from runlane_contracts.codec import decode_json

APPROVAL_ARGUMENT = click.argument("approval_id", required=False)
AS_OPTION = click.option("--as", "as_token", metavar="TOKEN", help="Decide as whoever this API key or JWT belongs to.")


def _as(link: Link, as_token: str | None) -> Link:
    return link if as_token is None else replace(link, token=as_token)


@click.command()
@click.argument("run")
@APPROVAL_ARGUMENT
@click.option("--data", help="JSON to use instead of what was asked for (an edited approval).")
@click.option("--reason", help="Why; it is recorded.")
@AS_OPTION
@linked
async def approve(
    link: Link, run: str, approval_id: str | None, data: str | None, reason: str | None, as_token: str | None
) -> None:
    """Say yes. APPROVAL_ID may be left out when the run asks one thing only."""
    edited = None if data is None else _json(data)
    decision = "approved" if data is None else "modified"
    await _resolve(_as(link, as_token), run, approval_id, decision, edited, reason)


@click.command()
@click.argument("run")
@APPROVAL_ARGUMENT
@click.option("--reason", help="Why; it is recorded.")
@AS_OPTION
@linked
async def reject(link: Link, run: str, approval_id: str | None, reason: str | None, as_token: str | None) -> None:
    """Say no. APPROVAL_ID may be left out when the run asks one thing only."""
    await _resolve(_as(link, as_token), run, approval_id, "rejected", None, reason)


async def _resolve(link: Link, run: str, approval_id: str | None, decision: str, data: Any, reason: str | None) -> None:
    async with link.http() as transport:
        run_id = await resolve_run(transport, run)
        asked = await _asked(transport, run_id, approval_id)
        if not link.json and "description" in asked:
            say(f"{run_id} asks: {printable(str(asked.get('description', '')))}")
            if asked.get("data") is not None:
                say(f"  with {short(asked['data'], 300)}")
        actions = RunActions(transport, run_id)
        outcome = await actions.resolve_approval(
            asked["id"], decision, data=data, reason=reason,
            expected_version=asked.get("version"), action_digest=asked.get("action_digest") or None,
        )  # fmt: skip
        outcome = await actions.settled(outcome)
    report(link, outcome, f"{asked['id']} {decision}")


async def _asked(transport: HttpTransport, run_id: str, approval_id: str | None) -> dict[str, Any]:
    state = (await transport.get_json(f"/v1/runs/{run_id}/snapshot"))["state"]
    if approval_id is not None:
        # One that was decided is sent all the same: the server's answer names the decision.
        item: dict[str, Any] = state["items"].get(f"approval:{approval_id}") or {"id": approval_id}
        return item
    waiting = open_approvals(state)
    if len(waiting) == 1:
        return waiting[0]
    if not waiting:
        raise Failure("approval_not_found", f"{run_id} asks for nothing now")
    asked = "\n".join(f"  {one['id']}  {short(one.get('description', ''))}" for one in waiting)
    raise click.UsageError(f"{run_id} asks for {len(waiting)} approvals; say which:\n{asked}")


def _json(text: str) -> Any:
    try:
        return decode_json(text)
    except msgspec.DecodeError as exc:
        raise click.BadParameter(f"not JSON: {exc}", param_hint="--data") from exc
