"""`runlane bridge claude|codex -- ARGS`: run an agent program and record it; its questions become approvals."""

import sys

import click

from runlane.cli.failures import Failure
from runlane.cli.link import Link, linked
from runlane.cli.output import emit, say


@click.command("bridge", context_settings={"ignore_unknown_options": True})
@click.argument("kind", type=click.Choice(["claude", "codex"]))
@click.option("--prompt", help="What to ask it; `-` or nothing reads stdin.")
@click.option("--program", help="The executable, if it is not on PATH under its own name.")
@click.option("--model", help="Which model it should use.")
@click.option("--cwd", type=click.Path(exists=True, file_okay=False), help="Where it works. Default: here.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@linked
async def bridge(
    link: Link, kind: str, prompt: str | None, program: str | None, model: str | None, cwd: str | None,
    arguments: tuple[str, ...],
) -> None:  # fmt: skip
    """Run Claude Code or Codex as one run. ARGUMENTS after `--` go to the program. 1 unless the run is completed."""
    from runlane.adapters.live import Program, record_program  # noqa: PLC0415
    from runlane.adapters.process import NotStarted  # noqa: PLC0415
    from runlane.cli.outcomes import require_completed  # noqa: PLC0415

    if prompt in {None, "-"}:
        prompt = sys.stdin.read()
    asked = Program(
        kind=kind, prompt=prompt or "", executable=program or "", arguments=arguments, cwd=cwd or "", model=model
    )

    def started(run_id: str) -> None:
        if link.json:
            emit({"run_id": run_id})
        else:
            click.echo(run_id)
            approve = link.hint(f"approve {run_id}")
            say(f"follow it with: {link.hint(f'watch {run_id}')}; answer its questions with: {approve}")

    async with link.http() as transport:
        try:
            recorded = await record_program(transport, asked, started=started)
        except NotStarted as exc:
            raise Failure("not_started", str(exc)) from exc
    require_completed(link, recorded)
