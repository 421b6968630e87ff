"""`runlane re-execute`: a new run from an old one. Not a replay, which shows, and not a rebuild, which folds."""

import click

from runlane.cli.link import Link, linked, resolve_run
from runlane.cli.output import emit, say


@click.command("re-execute")
@click.argument("run")
@click.option("--from-checkpoint", is_flag=True, help="From where its agent last stood; else from its input.")
@click.option("--allow-unsafe", is_flag=True, help="Although it executed tools that are not safe to execute twice.")
@click.option("--pool", help="Whose workers may take it. Default: as before.")
@click.option("--external", is_flag=True, help="Dispatch to no pool: a producer takes the lease itself.")
@click.option("--run-id", help="Id of the new run; the same id starts one run, however often you ask.")
@linked
async def re_execute(
    link: Link,
    run: str,
    from_checkpoint: bool,  # noqa: FBT001 - a flag
    allow_unsafe: bool,  # noqa: FBT001 - a flag
    pool: str | None,
    external: bool,  # noqa: FBT001 - a flag
    run_id: str | None,
) -> None:
    """Execute RUN, which is over, again: as a new run, whose id is printed. `latest` is the newest run."""
    from runlane.kernel.clock import new_id  # noqa: PLC0415

    new_run_id = run_id or new_id("run")
    async with link.http() as transport:
        started = await transport.re_execute(
            await resolve_run(transport, run),
            idempotency_key=f"re-execute-{new_run_id}",
            from_="checkpoint" if from_checkpoint else "input",
            allow_unsafe=allow_unsafe,
            new_run_id=new_run_id,
            pool=pool,
            dispatch="external" if external else None,
        )
    if link.json:
        emit(started)
        return
    click.echo(started.run_id)
    say(f"follow it with: {link.hint(f'watch {started.run_id}')}")
