"""`runlane start`: start a run."""

import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from runlane.cli.link import Link, linked
from runlane.cli.output import emit, say
from runlane_contracts.codec import decode_json


@click.command()
@click.option("--agent", required=True, help="Which agent.")
@click.option("--input", "input_text", help="JSON, plain text, @FILE, or - for stdin.")
@click.option("--pool", default="default", show_default=True, help="Whose workers may take it.")
@click.option("--session", "session_id", help="The session it belongs to.")
@click.option("--run-id", help="Your own id; the same id starts one run, however often you ask.")
@click.option("--external", is_flag=True, help="Dispatch to no pool: a producer takes the lease itself.")
@click.option("--cancel-grace-s", type=float, help="How long its owner has to stop after a cancel.")
@linked
async def start(
    link: Link,
    agent: str,
    input_text: str | None,
    pool: str,
    session_id: str | None,
    run_id: str | None,
    external: bool,  # noqa: FBT001 - a flag of the command line
    cancel_grace_s: float | None,
) -> None:
    """Start a run and print its id."""
    from runlane.client.transports.ports import NewRun  # noqa: PLC0415
    from runlane.kernel.clock import new_id  # noqa: PLC0415
    from runlane_contracts.events import Limits  # noqa: PLC0415

    run_id = run_id or new_id("run")
    new = NewRun(
        agent=agent, run_id=run_id, idempotency_key=f"start-{run_id}", input=_input(input_text),
        session_id=session_id, pool=pool, dispatch="external" if external else "pool",
        limits=None if cancel_grace_s is None else Limits(cancel_grace_s=cancel_grace_s),
    )  # fmt: skip
    async with link.http() as transport:
        started = await transport.start_run(new)
    if link.json:
        emit(started)
        return
    click.echo(started.run_id)
    say(f"follow it with: {link.hint(f'watch {started.run_id}')}")


def _input(text: str | None) -> Any:
    if text is None:
        return None
    if text == "-":
        text = sys.stdin.read()
    elif text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8"
            raise click.BadParameter(f"cannot read {text[1:]}: {why}", param_hint="--input") from exc
    try:
        return decode_json(text)
    except msgspec.DecodeError:
        return text
