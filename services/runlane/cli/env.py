"""`runlane env`: how programs reach a running `runlane up`, as variables for a shell."""

import shlex

import click

from runlane.cli.link import Link, linked
from runlane.cli.output import emit


@click.command()
@linked
async def env(link: Link) -> None:
    """Print how programs reach the `runlane up` of the state directory: eval "$(runlane env)".

    RUNLANE_URL and RUNLANE_TOKEN for HTTP, of --tenant; RUNLANE_OBSERVER_URL and RUNLANE_SUBSCRIBER_URL for services
    that listen on NATS. They are secrets.
    """
    info = link.info()
    found = {
        "RUNLANE_URL": info.url,
        "RUNLANE_TOKEN": link.token_in(info),
        "RUNLANE_OBSERVER_URL": info.nats_url,
        "RUNLANE_SUBSCRIBER_URL": info.subscriber_nats_url,
    }
    if link.json:
        emit(found)
        return
    for name, value in found.items():
        click.echo(f"export {name}={shlex.quote(value)}")
