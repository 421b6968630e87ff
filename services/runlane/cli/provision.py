"""`runlane provision`: make the broker's streams, buckets and consumers match the layout."""

import click

from runlane.cli.layout import configured_layout
from runlane.cli.link import Link, linked
from runlane.cli.output import emit, say
from runlane.kernel import provision as kernel
from runlane.kernel.clock import utc_now
from runlane_contracts.ids import is_id
from runlane_contracts.streams import ConsumerSpec, Layout


@click.command()
@click.option(
    "--nats-url", envvar="RUNLANE_NATS_URL", help="The broker. Who: in it, or RUNLANE_NATS_USER and _PASSWORD."
)
@click.option(
    "--pool", "pools", multiple=True, default=["default"], show_default=True, help="Pools to make durables for."
)
@click.option(
    "--subscriber",
    "subscribers",
    multiple=True,
    metavar="NAME[=SUBJECT]",
    help="Other services to make durables for, on all signals or on some.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be done.")
@linked
async def provision(
    link: Link,
    nats_url: str | None,
    pools: tuple[str, ...],
    subscribers: tuple[str, ...],
    dry_run: bool,  # noqa: FBT001 - a flag
) -> None:
    """Make the broker match the layout of the RUNLANE_… settings. Twice does nothing the second time.

    What could only be mended by losing data or a position is refused and named.
    """
    layout = configured_layout()
    for pool in pools:
        if not is_id(pool):
            raise click.BadParameter(f"{pool!r} is no pool: letters, digits, _ and -, at most 64", param_hint="--pool")
    made_for = [(link.tenant, pool) for pool in pools]
    more = [_subscriber(layout, text) for text in subscribers]
    async with link.broker(nats_url) as broker:
        made = await kernel.provision(broker, layout, now=utc_now, pools=made_for, more=more, dry_run=dry_run)
    for change in made.changes:
        if link.json:
            emit({"change": change.kind, "name": change.name, "settings": list(change.settings), "dry_run": dry_run})
        else:
            click.echo(f"{change.kind} {change.name}  {', '.join(change.settings)}".rstrip())
    for name in made.former_in_use:
        say(f"{name} is of another number of partitions, and in use: stop who uses it, and provision again")
    would = "would change" if dry_run else "changed"
    say(f"{len(made.changes)} {would}, {made.unchanged} as they should be")


def _subscriber(layout: Layout, text: str) -> ConsumerSpec:
    name, _, subject = text.partition("=")
    signals = layout.subjects.all_of("signal").removesuffix(">")
    if not is_id(name) or not (subject or signals).startswith(signals):
        raise click.BadParameter(f"{text!r} is not NAME or NAME={signals}…", param_hint="--subscriber")
    return layout.subscriber_consumer(name, (subject,) if subject else ())
