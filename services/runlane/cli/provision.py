"""`runlane provision`: make the broker's streams, buckets and consumers match the layout."""

import click

from runlane.cli.layout import configured_layout
from runlane.cli.link import Link, linked
from runlane.cli.output import emit, say
from runlane.kernel import provision as kernel
from runlane.kernel.clock import utc_now


@click.command()
@click.option(
    "--nats-url", envvar="RUNLANE_NATS_URL", help="The broker. Who: in it, or RUNLANE_NATS_USER and _PASSWORD."
)
@click.option(
    "--pool", "pools", multiple=True, default=["default"], show_default=True, help="Pools to make durables for."
)
@click.option("--dry-run", is_flag=True, help="Say what would be done.")
@linked
async def provision(link: Link, nats_url: str | None, pools: tuple[str, ...], dry_run: bool) -> None:  # noqa: FBT001
    """Make the broker match the layout of the RUNLANE_… settings. Twice does nothing the second time.

    What could only be mended by losing data or a position is refused and named.
    """
    async with link.broker(nats_url) as broker:
        made = await kernel.provision(
            broker, configured_layout(), now=utc_now, pools=[(link.tenant, pool) for pool in pools], dry_run=dry_run
        )
    for change in made.changes:
        if link.json:
            emit({"change": change.kind, "name": change.name, "settings": list(change.settings), "dry_run": dry_run})
        else:
            click.echo(f"{change.kind} {change.name}  {', '.join(change.settings)}".rstrip())
    would = "would change" if dry_run else "changed"
    say(f"{len(made.changes)} {would}, {made.unchanged} as they should be")
