"""A fake Runlane beside the test, and the command line pointed at it."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Self

import msgspec
from click.testing import CliRunner, Result

from runlane.cli.main import runlane
from support.fake_edge import TOKEN, FakeEdge
from support.memory_lane import MemoryLane, MemoryRun
from support.runs import Story


class Site:
    """A fake edge in a thread of its own: the verbs run their own loops."""

    def __init__(self) -> None:
        self.lane = MemoryLane()
        self.url = ""
        self.loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _run(self) -> None:
        async def main() -> None:
            async with FakeEdge(self.lane).serve() as self.url:
                self._ready.set()
                await self._stop.wait()

        self.loop.run_until_complete(main())
        self.loop.close()

    def add(self, story: Story) -> str:
        self.lane.runs[story.run.run_id] = MemoryRun(story.run, list(story.facts))
        return story.run.run_id

    def wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run something where the lane lives."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(10)

    def call(self, *args: str) -> Result:
        environment = {"RUNLANE_URL": self.url, "RUNLANE_TOKEN": TOKEN}
        return CliRunner().invoke(runlane, args, env=environment, catch_exceptions=False)

    def json(self, *args: str) -> list[dict[str, Any]]:
        result = self.call(*args, "--json")
        assert result.exit_code == 0, result.output
        return [msgspec.json.decode(line) for line in result.stdout.splitlines()]
