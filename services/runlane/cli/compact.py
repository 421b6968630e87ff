"""`runlane compact`: archive finished runs and take them out of the log."""

import click

from runlane.cli.control import ask
from runlane.cli.failures import Failure
from runlane.cli.layout import configured_layout
from runlane.cli.link import Link, linked
from runlane.cli.output import emit, say


@click.command()
@click.argument("run", required=False)
@click.option("--older-than", metavar="AGE", help="This age instead of each class's: 90s, 12h, 30d. Not for RUN.")
@click.option("--dry-run", is_flag=True, help="Say which runs are due.")
@click.option(
    "--nats-url", envvar="RUNLANE_NATS_URL", help="The broker. Who: in it, or RUNLANE_NATS_USER and _PASSWORD."
)
@click.option("--timeout-s", default=600.0, show_default=True, help="How long to wait for it.")
@linked
async def compact(
    link: Link,
    run: str | None,
    older_than: str | None,
    dry_run: bool,  # noqa: FBT001 - a flag
    nats_url: str | None,
    timeout_s: float,
) -> int:
    """Archive every finished run that is past its class's age, or RUN now; then take it out of the log.

    A run that is archived keeps its id, its state and its outcome; its facts are read from the archive. What somebody
    began and did not finish is finished first.
    """
    if run is not None and (older_than is not None or dry_run):
        raise click.UsageError("RUN is archived now: --older-than and --dry-run are for all runs")
    body = {"older_than": older_than, "dry_run": dry_run, "run_id": run}
    if run is not None:
        body["tenant_id"] = link.tenant
    async with link.broker(nats_url) as broker:
        answer = await ask(broker, configured_layout().subjects, "retention", "compact", body, timeout_s=timeout_s)
    reports = [answer] if run is not None else answer["runs"]
    for one in reports:
        if link.json:
            emit(one)
        else:
            click.echo(_line(one))
    failures = sum(one["outcome"] == "failed" for one in reports)
    if run is None:
        done = f"{answer['due']} due" if dry_run else f"{answer['compacted']} archived, {failures} failed"
        say(done)
    if failures:
        raise Failure(
            "failed", f"{failures} runs were not archived; nothing of them was taken out, and they are tried again"
        )
    return 0


def _line(one: dict[str, object]) -> str:
    what = f"{one['outcome']:<10} {one['tenant_id']}/{one['run_id']}"
    if "to_sequence" in one:
        what += f"  {one['from_sequence']}–{one['to_sequence']}"
    if "detail" in one:
        what += f"  {one.get('code', '')} {one['detail']}".rstrip()
    return what
