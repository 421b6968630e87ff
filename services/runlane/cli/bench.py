"""`runlane bench`: quick numbers of the installation you have. `tests/bench` has the careful ones."""

import asyncio
from dataclasses import dataclass, field
from time import perf_counter

import click

from runlane.cli.link import Link, linked
from runlane.cli.output import emit, say
from runlane.client.reader import RunReader
from runlane.client.transports.http import HttpTransport
from runlane.client.writer import RunWriter
from runlane_contracts import events
from runlane_contracts.envelope import Fact
from runlane_contracts.resume import Synced


@dataclass(slots=True)
class _Numbers:
    commits: int = 0
    facts: int = 0
    append_s: list[float] = field(default_factory=list)
    seen_s: list[float] = field(default_factory=list)
    asked_at: dict[str, float] = field(default_factory=dict)


@click.command()
@click.option("--seconds", default=5.0, show_default=True, type=click.FloatRange(0.5, 600), help="How long to load it.")
@click.option("--writers", default=4, show_default=True, type=click.IntRange(1, 256), help="Runs written at once.")
@click.option(
    "--facts", "per_commit", default=5, show_default=True, type=click.IntRange(1, 500), help="Facts a commit."
)
@linked
async def bench(link: Link, seconds: float, writers: int, per_commit: int) -> None:
    """Write runs as fast as they are taken, watch each, and say how fast that was.

    It writes real runs of the agent `bench`. Numbers are of this client over HTTP: writer, watcher and, with
    `runlane up`, the services share the machine.
    """
    numbers = _Numbers()
    async with link.http() as transport:
        began = perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(writers):
                tasks.create_task(_one_run(transport, numbers, seconds, per_commit))
        took = perf_counter() - began
    result = {
        "seconds": round(took, 2), "writers": writers, "facts_per_commit": per_commit,
        "commits_per_s": round(numbers.commits / took, 1), "facts_per_s": round(numbers.facts / took, 1),
        "append_ms": _percentiles(numbers.append_s), "append_to_seen_ms": _percentiles(numbers.seen_s),
    }  # fmt: skip
    if link.json:
        emit(result)
        return
    for name, value in result.items():
        click.echo(f"{name:<20} {value}")
    say("the careful numbers: pytest tests/bench -m bench")


async def _one_run(transport: HttpTransport, numbers: _Numbers, seconds: float, per_commit: int) -> None:
    writer = await RunWriter.start(transport, agent="bench", redactor=None)
    watching = asyncio.Event()
    async with writer as run, asyncio.TaskGroup() as tasks:
        tasks.create_task(_watch(transport, run.run_id, numbers, watching))
        await watching.wait()
        deadline = perf_counter() + seconds
        count = 0
        while perf_counter() < deadline:
            count += 1
            turn_id = f"t{count}"
            before = numbers.asked_at[f"{run.run_id}/{turn_id}"] = perf_counter()
            notes = [events.TurnCompleted(turn_id=turn_id)] * (per_commit - 1)
            await run.append(events.TurnStarted(turn_id=turn_id), *notes)
            numbers.append_s.append(perf_counter() - before)
            numbers.commits += 1
            numbers.facts += per_commit
        await run.complete()


async def _watch(transport: HttpTransport, run_id: str, numbers: _Numbers, watching: asyncio.Event) -> None:
    async with RunReader(transport, run_id, previews=False) as reader:
        async for item in reader:
            if isinstance(item, Synced):
                watching.set()
            elif isinstance(item, Fact) and item.type == "turn.started" and item.subject is not None:
                asked_at = numbers.asked_at.pop(f"{run_id}/{item.subject.id}", None)
                if asked_at is not None:
                    numbers.seen_s.append(perf_counter() - asked_at)


def _percentiles(values_s: list[float]) -> dict[str, float]:
    ordered = sorted(values_s)
    if not ordered:
        return {}
    return {
        name: round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000, 2)
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0))
    }
