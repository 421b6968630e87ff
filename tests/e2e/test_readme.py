"""The README, followed word by word: its commands in a shell, its programs as files, on a product that runs."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from support.product import READY_WITHIN_S

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PROGRAMS = dict(re.findall(r"^<!-- (\w+\.py) -->\n```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL))
COMMANDS = re.findall(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
MADE = {name: value for name, value in os.environ.items() if not name.startswith("RUNLANE_")}
PATIENCE_S = 40.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]


class Desk:
    """A folder with the virtual environment and the README's programs in it, and a shell."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / ".venv").symlink_to(sys.prefix)
        for name, text in PROGRAMS.items():
            (folder / name).write_text(text)
        # Where the package is installed from another checkout, this one's code is meant all the same.
        self._environment = {**MADE, "PYTHONPATH": f"{ROOT / 'contracts'}{os.pathsep}{ROOT / 'services'}"}

    @asynccontextmanager
    async def running(self, command: str) -> AsyncIterator[asyncio.subprocess.Process]:
        """A command in the background; ended with its block, as by Ctrl-C."""
        process = await asyncio.create_subprocess_exec(
            "bash", "-c", command, cwd=self.folder, env=self._environment, start_new_session=True,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            limit=1 << 20,
        )  # fmt: skip
        try:
            yield process
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGINT)
                try:
                    await asyncio.wait_for(process.communicate(), 20)
                finally:
                    if process.returncode is None:
                        os.killpg(process.pid, signal.SIGKILL)

    async def run(self, command: str) -> str:
        """What a command says; it has to succeed."""
        async with self.running(command) as process:
            said = (await asyncio.wait_for(process.communicate(), PATIENCE_S))[0].decode()
        assert process.returncode == 0, f"{command}\n{said}"
        return said

    async def until(self, command: str, pattern: str) -> str:
        """What a command says once that matches."""
        said = ""
        for _ in range(int(PATIENCE_S / 0.5)):
            said = await self.run(command)
            if re.search(pattern, said):
                return said
            await asyncio.sleep(0.5)
        raise AssertionError(f"{command} never said {pattern}:\n{said}")


async def hears(process: asyncio.subprocess.Process, pattern: str) -> str:
    """What a background command has said, up to the line that matches."""
    said = ""
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        while not re.search(pattern, said):
            line = await process.stdout.readline()
            assert line, f"it ended before {pattern}:\n{said}"
            said += line.decode()
    return said


@asynccontextmanager
async def runlane_up(desk: Desk, *more: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """What `make up` does, on free ports."""
    command = f".venv/bin/python -m runlane.cli up --http 127.0.0.1:0 --nats-port 0 {' '.join(more)}"
    async with desk.running(f"exec {command}") as process, asyncio.timeout(READY_WITHIN_S) as limit:
        assert re.search(r"http://127\.0\.0\.1:\d+/#token=rlk_demo_", await hears(process, "continues"))
        limit.reschedule(None)
        yield process


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
async def up(desk: Desk) -> AsyncIterator[Desk]:
    async with runlane_up(desk):
        yield desk


def with_env(command: str) -> str:
    (env,) = (block for block in COMMANDS if "runlane env" in block)
    return f"{env}\n{command}"


async def test_the_first_five_minutes(desk: Desk) -> None:
    first = README[README.index("## Run it") : README.index("    make test")]
    runs, watch, approve, crash = re.findall(r"^    (\.venv/bin/runlane .*)$", first, re.MULTILINE)
    async with runlane_up(desk, "--demo"):
        run_id = re.search(r"run_\w+", await desk.until(runs, "waiting"))
        assert run_id is not None
        async with desk.running(watch) as watching:
            assert await desk.run(approve)
            said = await hears(watching, "output:")
        assert "approved by demo" in said
        assert re.search("completed", await desk.run(runs))
        assert "Each once." in await desk.run(crash)
        before = await desk.run(f".venv/bin/runlane replay {run_id[0]} --json")
    async with runlane_up(desk):
        assert await desk.run(f".venv/bin/runlane replay {run_id[0]} --json") == before


async def test_a_run_with_the_sdk_whose_agent_is_killed_while_it_waits(up: Desk) -> None:
    start, approve = re.findall(r"`(\.venv/bin/runlane (?:start|approve) [^`]*)`", README)[:2]
    agent = with_env("exec .venv/bin/python agent.py")
    async with up.running(agent) as first:
        run_id = (await up.run(start)).split()[0]
        await up.until(".venv/bin/runlane runs", f"{run_id} +waiting")
        os.killpg(first.pid, signal.SIGKILL)
    async with up.running(agent):
        await up.run(approve)
        await up.until(".venv/bin/runlane runs", f"{run_id} +completed")
    record = await up.run(f".venv/bin/runlane replay {run_id} --json")
    assert record.count('"type":"approval.requested"') == 1
    assert record.count('"type":"tool.completed"') == 1
    assert record.count('"type":"run.leased"') == 2


async def test_a_run_over_http(up: Desk) -> None:
    (api,) = (block for block in COMMANDS if "api()" in block)
    said = await up.run(with_env(api))
    assert '"lease_epoch":1' in said
    assert "event: end" in said
    assert "hello-1" in await up.run(".venv/bin/runlane runs --status completed")


async def test_a_pydantic_ai_agent(up: Desk) -> None:
    async with up.running(with_env("exec .venv/bin/python mailer.py")) as mailer:
        run_id = (await hears(mailer, r"run_\w+")).split()[-1]
        await up.until(".venv/bin/runlane runs", f"{run_id} +waiting")
        await up.run(".venv/bin/runlane approve latest")
        await asyncio.wait_for(mailer.wait(), PATIENCE_S)
    assert "sent to" in await up.run(f".venv/bin/runlane replay {run_id}")


async def test_other_services_listen(up: Desk) -> None:
    (provision,) = re.findall(r"`(\.venv/bin/runlane provision --subscriber\sbilling)`", README)
    await up.run(provision.replace("\n", " "))
    listening = with_env("exec .venv/bin/python listen.py")
    async with up.running(listening) as observer, up.running(with_env("exec .venv/bin/python billing.py")) as billing:
        heard = asyncio.ensure_future(hears(observer, r"rl\.signal\.demo\.run\.created evt_\w+"))
        while not heard.done():  # nothing says from when on an observer listens
            await up.run(".venv/bin/runlane start --agent nobody")
        assert '"agent":"nobody"' in await heard
        assert await hears(billing, r"rl\.signal\.demo\.run\.created evt_\w+")


def test_every_program_and_command_of_the_readme_is_played() -> None:
    assert set(PROGRAMS) == {"agent.py", "mailer.py", "listen.py", "billing.py"}
    assert len(re.findall(r"^```python$", README, re.MULTILINE)) == len(PROGRAMS)
    assert len(COMMANDS) == 2
