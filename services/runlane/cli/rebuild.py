"""`runlane rebuild`: fold the read store again from the view. Not a replay, and runs no agent again."""

import click

from runlane.cli.control import ask
from runlane.cli.failures import Failure
from runlane.cli.layout import configured_layout
from runlane.cli.link import Link, linked
from runlane.cli.output import emit


@click.command()
@click.option(
    "--nats-url", envvar="RUNLANE_NATS_URL", help="The broker. Who: in it, or RUNLANE_NATS_USER and _PASSWORD."
)
@click.option("--timeout-s", default=600.0, show_default=True, help="How long to wait for it.")
@click.option("--force", is_flag=True, help="Switch even if the fresh one differs from the present one.")
@click.option("--back", is_flag=True, help="Go back to what the last switch replaced, caught up.")
@linked
async def rebuild(
    link: Link,
    nats_url: str | None,
    timeout_s: float,
    force: bool,  # noqa: FBT001 - a flag
    back: bool,  # noqa: FBT001 - a flag
) -> None:
    """Fold everything again beside what is live, compare the two, then switch. Readers notice nothing.

    Where they differ it is not switched, and the exit code is 1: look at the report, then --force it or mend the fold.
    What was replaced is kept for a day: --back.
    """
    if force and back:
        raise click.UsageError("--back needs no --force")
    async with link.broker(nats_url) as broker:
        report = await ask(
            broker,
            configured_layout().subjects,
            "projector",
            "rebuild",
            {"force": force, "back": back},
            timeout_s=timeout_s,
        )
    if link.json:
        emit(report)
    else:
        for name, value in report.items():
            click.echo(f"{name}: {value}")
    if not report["switched"]:
        raise Failure("invalid_state", f"not switched: {report.get('reason', '')}")
