"""`runlane demo`: a real agent with a scripted model; it streams, calls tools, and asks for one approval."""

import click

from runlane.cli.link import Link, linked
from runlane.cli.output import emit, say


@click.command("demo")
@click.option("--times", type=click.IntRange(1, 100), default=1, show_default=True, help="Runs, one after another.")
@click.option("--fast", is_flag=True, help="Do not pause between words.")
@click.option("--crash", is_flag=True, help="Kill a worker in the middle of a tool call, and watch another go on.")
@linked
async def demo(link: Link, times: int, fast: bool, crash: bool) -> None:  # noqa: FBT001 - flags of the command line
    """Start a demo agent that asks for your approval; with --crash, a show of what survives a dead worker."""
    if crash:
        from runlane.cli.crash_demo import CrashDemo  # noqa: PLC0415

        async with link.http() as transport:
            await CrashDemo(
                transport, *link.address(), watch=lambda run_id: link.hint(f"watch {run_id}"), as_json=link.json
            ).show()
        return
    from runlane.adapters.demo_agent import PROMPT, Pace, demo_agent  # noqa: PLC0415 - a second to import
    from runlane.adapters.live import record_pydantic_ai  # noqa: PLC0415
    from runlane.cli.outcomes import require_completed  # noqa: PLC0415

    def started(run_id: str) -> None:
        if link.json:
            emit({"run_id": run_id})
        else:
            click.echo(run_id)
            say(f"follow it with: {link.hint(f'watch {run_id}')}")

    async with link.http() as transport:
        for _ in range(times):
            agent = demo_agent(Pace(word_s=0.0, tool_s=0.0) if fast else None)
            require_completed(link, await record_pydantic_ai(transport, agent, PROMPT, started=started))
