"""`runlane rebuild`: fold the read store again from the view. Not a replay, and runs no agent again."""

import click

from runlane.cli.control import ask
from runlane.cli.layout import configured_layout
from runlane.cli.link import Link, linked
from runlane.cli.output import emit


@click.command()
@click.option(
    "--nats-url", envvar="RUNLANE_NATS_URL", help="The broker. Who: in it, or RUNLANE_NATS_USER and _PASSWORD."
)
@click.option("--timeout-s", default=600.0, show_default=True, help="How long to wait for it.")
@click.option("--force", is_flag=True, help="Switch even if the fresh one lacks runs that the present one has.")
@linked
async def rebuild(link: Link, nats_url: str | None, timeout_s: float, force: bool) -> None:  # noqa: FBT001 - a flag
    """Build a fresh read store beside the present one, compare, then switch. Readers notice nothing."""
    async with link.broker(nats_url) as broker:
        report = await ask(
            broker, configured_layout().subjects, "projector", "rebuild", {"force": force}, timeout_s=timeout_s
        )
    if link.json:
        emit(report)
        return
    for name, value in report.items():
        click.echo(f"{name}: {value}")
