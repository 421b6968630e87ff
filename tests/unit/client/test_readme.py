"""The examples of the README run as they are printed."""

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import runlane.client
from runlane.client import (
    Executed,
    HttpTransport,
    NotExecuted,
    RunActions,
    RunContext,
    RunWriter,
    SqliteCheckpointStore,
    ToolInProgress,
    UnknownCall,
    Worker,
)
from runlane.client.checkpoint import opened
from runlane.client.transports.ports import NewRun
from support.eventually import eventually
from support.fake_edge import TOKEN, FakeEdge
from support.memory_lane import MemoryLane, MemoryRun
from support.mortal_lane import RUN, Death, MortalLane
from support.runs import a_short_run, a_waiting_run

README = Path(runlane.client.__file__).parent / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
SECTIONS = re.split(r"^## ", README.read_text(), flags=re.MULTILINE)
EXAMPLES = {
    section.partition("\n")[0]: section.partition("```python\n")[2].partition("```")[0]
    for section in SECTIONS
    if "```python" in section
}


async def play(title: str, **names: Any) -> dict[str, Any]:
    code = compile(EXAMPLES[title], f"README: {title}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    coroutine = eval(code, names)  # noqa: S307 - the project's own text
    assert inspect.iscoroutine(coroutine)
    await coroutine
    return names


async def test_write_a_run():
    lane = MemoryLane()
    async with FakeEdge(lane).serve() as url:
        await play("Write a run", url=url, token=TOKEN)
    (run,) = lane.runs.values()
    assert run.life.status == "completed"
    assert [fact.type for fact in run.facts].count("tool.completed") == 1


async def test_follow_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    lane = MemoryLane()
    story = a_short_run()
    lane.runs["run_1"] = MemoryRun(story.run, list(story.facts))
    async with FakeEdge(lane).serve() as url:
        await play("Follow a run", url=url, token=TOKEN, run_id="run_1", directory=tmp_path)
    assert "completed sha256:" in capsys.readouterr().out
    assert (tmp_path / "run_1.cursor").read_text() == "c12"


async def test_follow_runs_over_restarts(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    lane = MemoryLane()
    story = a_short_run()
    lane.runs["run_1"] = MemoryRun(story.run, list(story.facts))
    async with FakeEdge(lane).serve() as url:
        for _life in range(2):
            await play("Follow runs over restarts", url=url, token=TOKEN, run_id="run_1", directory=tmp_path)
    assert capsys.readouterr().out == ""  # a finished run begins with its snapshot; nothing was left to find out
    kept = opened(await SqliteCheckpointStore(tmp_path / "runs.db").open())
    assert kept.runs["run_1"].cursor == "c12"
    assert kept.pending == ()


@pytest.mark.parametrize(("decision", "sent"), [("approved", "yes"), ("rejected", "no")])
async def test_be_a_worker(monkeypatch: pytest.MonkeyPatch, decision: str, sent: str):
    lane = MemoryLane()
    workers: list[Worker] = []
    run = Worker.run

    async def remembered(self: Worker) -> None:
        workers.append(self)
        await run(self)

    monkeypatch.setattr(Worker, "run", remembered)
    async with asyncio.timeout(20), FakeEdge(lane).serve() as url, asyncio.TaskGroup() as tasks:
        tasks.create_task(play("Be a worker", url=url, token=TOKEN))
        async with HttpTransport(url, TOKEN) as transport:
            await transport.start_run(NewRun(agent="a", run_id="run_1", idempotency_key="k"))
            await eventually(lambda: lane.runs["run_1"].life.status == "waiting")
            await RunActions(transport, "run_1").resolve_approval("send", decision)
        await eventually(lambda: lane.runs["run_1"].life.is_terminal)
        workers[0].stop()
    assert lane.payloads("run_1", "run.completed")[0]["output"] == {"sent": sent}


async def test_act_on_a_run(capsys: pytest.CaptureFixture[str]):
    lane = MemoryLane()
    story = a_waiting_run(approval_id="send")
    lane.runs["run_2"] = MemoryRun(story.run, list(story.facts))
    async with FakeEdge(lane).serve() as url:
        for said in ("done; reads from c7 on show it", "somebody was first: {'decision': 'approved'}"):
            await play("Act on a run", url=url, token=TOKEN, run_id="run_2")
            assert said in capsys.readouterr().out


async def test_without_asyncio(capsys: pytest.CaptureFixture[str]):
    lane = MemoryLane()
    async with FakeEdge(lane).serve() as url:
        await asyncio.to_thread(exec, EXAMPLES["Without asyncio"], {"url": url, "token": TOKEN})
    assert capsys.readouterr().out.splitlines()[-1].endswith("run.completed")


async def test_when_a_worker_is_lost():
    pages: list[int] = []

    async def read(call: ToolInProgress) -> str:
        pages.append(call.arguments["page"])
        return f"page {call.arguments['page']}"

    class Ledger:
        async def find(self, operation_id: str) -> str | None:
            return "receipt" if operation_id == "op1" else None

    names: dict[str, Any] = {"read": read, "ledger": Ledger()}
    for block in BLOCKS:
        if "def reconcile" in block or "def summarise" in block:
            exec(block, names)  # noqa: S102 - the project's own text
    reconcile = names["reconcile"]
    assert await reconcile(None, UnknownCall("c1", "op1", "pay", {})) == Executed("receipt")
    assert await reconcile(None, UnknownCall("c2", "op2", "pay", {})) == NotExecuted()

    async def agent(ctx: RunContext) -> Any:
        ctx.input = {"pages": 3}
        return await names["summarise"](ctx)

    lane = MortalLane(Death(5, written=True))  # right after the first page was kept
    assert await lane.play(agent) == "completed"
    assert pages == [0, 1, 2]
    assert lane.payloads(RUN, "run.completed")[0]["output"] == "page 0 page 1 page 2"


def test_every_example_is_played():
    assert set(EXAMPLES) == {
        "Write a run",
        "Follow a run",
        "Follow runs over restarts",
        "Be a worker",
        "Act on a run",
        "Without asyncio",
    }
    assert len(BLOCKS) == len(EXAMPLES) + 2


async def test_the_example_of_the_writer_module_runs():
    lane = MemoryLane()
    text = inspect.getdoc(inspect.getmodule(RunWriter)) or ""
    example = "\n".join(line[4:] for line in text.splitlines() if line.startswith("    "))
    code = compile(example, "writer", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    await eval(code, {"transport": lane, "RunWriter": RunWriter})  # noqa: S307 - the project's own text
    (run,) = lane.runs.values()
    assert run.life.status == "completed"
