"""Records live agents as runs: starts the run, holds its lease, drives the agent, ends the run."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from runlane.adapters.bridge import Bridge
from runlane.adapters.dialogue import ClaudeDialogue, CodexDialogue, Dialogue
from runlane.adapters.mapping import Statement
from runlane.adapters.process import JsonLineProcess
from runlane.adapters.recordings import mapping_for, statements
from runlane.adapters.scribe import RunSink, Scribe
from runlane.client import HttpTransport, RunActions, RunWriter

if TYPE_CHECKING:
    from pydantic_ai import Agent

Started = Callable[[str], None]
"""Told the run id as soon as the run is durable."""


class Recorded(NamedTuple):
    """A run that was recorded to its end, and the type of its terminal fact."""

    run_id: str
    ended_as: str | None

    @property
    def completed(self) -> bool:
        """Neither failed nor cancelled."""
        return self.ended_as == "run.completed"


PROGRAMS = ("claude", "codex")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """An agent program to run, and what to ask it."""

    kind: str
    prompt: str
    executable: str = ""
    arguments: tuple[str, ...] = ()
    cwd: str = ""
    model: str | None = None

    def dialogue(self) -> Dialogue:
        """How to talk to it."""
        if self.kind == "claude":
            return ClaudeDialogue(self.prompt)
        return CodexDialogue(self.prompt, cwd=self.cwd or str(Path.cwd()), model=self.model)

    def command(self, dialogue: Dialogue) -> list[str]:
        """How to start it."""
        model = ("--model", self.model) if self.kind == "claude" and self.model else ()
        return dialogue.command(self.executable or self.kind, (*model, *self.arguments))


async def record_program(transport: HttpTransport, program: Program, *, started: Started) -> Recorded:
    """Run an agent program as one run.

    Raises:
        NotStarted: the program cannot be started; no run was made.
    """
    dialogue = program.dialogue()
    process = JsonLineProcess(program.command(dialogue), cwd=program.cwd or None, env=dict(os.environ))
    async with process:
        writer = await RunWriter.start(transport, agent=program.kind, input={"prompt": program.prompt})
        started(writer.run_id)
        async with writer, Scribe(RunSink(writer, transport)) as scribe:
            await Bridge(dialogue, process, scribe).run()
    return Recorded(writer.run_id, scribe.ended_as)


async def record_pydantic_ai(
    transport: HttpTransport, agent: "Agent[None, Any]", prompt: str, *, started: Started
) -> Recorded:
    """Run a Pydantic AI agent of this process as one run. What it fails of is the run's failure, and not raised."""
    from runlane.adapters.pydantic_ai_driver import run_agent  # noqa: PLC0415  a second to import

    writer = await RunWriter.start(transport, agent=agent.name or "pydantic-ai", input={"prompt": prompt})
    started(writer.run_id)
    async with writer, Scribe(RunSink(writer, transport)) as scribe:
        await run_agent(agent, prompt, scribe)
    return Recorded(writer.run_id, scribe.ended_as)


async def play_recording(transport: HttpTransport, path: Path, *, started: Started = lambda _: None) -> str:
    """Play a recording as one run; decisions in it are given again, as commands. The run's id."""
    mapping = mapping_for(path)
    writer = await RunWriter.start(transport, agent=path.stem, input={"recording": path.name})
    started(writer.run_id)
    actions = RunActions(transport, writer.run_id)
    async with writer, Scribe(RunSink(writer, transport)) as scribe:
        for said in statements(path, mapping):
            await _say_with_decisions(scribe, actions, said)
    return writer.run_id


async def _say_with_decisions(scribe: Scribe, actions: RunActions, said: list[Statement]) -> None:
    for one in said:
        for decided in await scribe.say([one]):
            said_so = await actions.resolve_approval(decided.approval_id, decided.decision, data=decided.data)
            await actions.settled(said_so)
            await scribe.decision(decided.approval_id)
