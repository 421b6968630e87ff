"""`runlane erase`: remove the content of a finished run for good."""

import click

from runlane.cli.control import ask
from runlane.cli.layout import configured_layout
from runlane.cli.link import Link, linked
from runlane.cli.output import emit


@click.command()
@click.argument("run")
@click.option("--reason", required=True, help="Why, for the record. Stays readable: name no person and no content.")
@click.option(
    "--item", "items", multiple=True, metavar="KIND:ID", help="Only this item, such as tool:call_1; repeatable."
)
@click.option(
    "--nats-url", envvar="RUNLANE_NATS_URL", help="The broker. Who: in it, or RUNLANE_NATS_USER and _PASSWORD."
)
@click.option("--timeout-s", default=600.0, show_default=True, help="How long to wait for it.")
@linked
async def erase(
    link: Link, run: str, reason: str, items: tuple[str, ...], nats_url: str | None, timeout_s: float
) -> None:
    """Remove the content of RUN, or of some of its items, from everywhere it is kept. It cannot be undone.

    Sequence, type and the SHA-256 of each payload stay, and that it was erased, when, and why. Only a finished run can
    be erased.
    """
    body = {"tenant_id": link.tenant, "run_id": run, "reason": reason, "items": list(items)}
    async with link.broker(nats_url) as broker:
        report = await ask(broker, configured_layout().subjects, "retention", "erase", body, timeout_s=timeout_s)
    if link.json:
        emit(report)
    else:
        what = "the whole run" if report.get("erased") == ["*"] else ", ".join(report.get("erased", ()))
        click.echo(f"{report['outcome']} {run}  {report['from_sequence']}–{report['to_sequence']}  {what}")
