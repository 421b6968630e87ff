"""Worker processes of one pool against the whole product, to be killed at will.

async with crew(running, "pool", book) as workers:
    worker = await workers.hire()
    run_id = await workers.start("run", side_effect="unsafe")
"""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from runlane.cli.state_dir import connection_info
from runlane.client import HttpTransport
from runlane.client.transports.ports import NewRun
from runlane.kernel.clock import utc_now
from runlane_contracts.events import Limits
from support.children import ENVIRONMENT
from support.effects_worker import WORKER, Book
from support.eventually import eventually
from support.product import Product


@dataclass
class Crew:
    """Workers of one pool, over one transport, and the runs they are given."""

    url: str
    token: str
    pool: str
    book: Book
    transport: HttpTransport
    ttl_s: float = 2.0
    concurrency: int = 40
    alive: list[asyncio.subprocess.Process] = field(default_factory=list)

    async def hire(self) -> asyncio.subprocess.Process:
        worker = await asyncio.create_subprocess_exec(
            *WORKER, self.url, self.token, self.pool, str(self.book.path), str(self.ttl_s),
            str(self.concurrency), stdout=asyncio.subprocess.PIPE, env=ENVIRONMENT,
        )  # fmt: skip
        assert worker.stdout is not None
        assert await asyncio.wait_for(worker.stdout.readline(), 20) == b"working\n"
        self.alive.append(worker)
        return worker

    async def kill(self, worker: asyncio.subprocess.Process) -> datetime:
        """`kill -9`; when that was."""
        at = utc_now()
        worker.kill()
        await worker.wait()
        return at

    async def start(self, name: str, *, max_attempts: int = 20, **wish: Any) -> str:
        wish = {"side_effect": "none", "calls": 1, "slow_s": 0.2} | wish
        new = NewRun(
            agent="a", run_id=f"{self.pool}_{name}", idempotency_key=f"{self.pool}_{name}", pool=self.pool, input=wish,
            limits=Limits(max_attempts=max_attempts),
        )  # fmt: skip
        return (await self.transport.start_run(new)).run_id

    async def facts(self, run_id: str) -> list[dict[str, Any]]:
        page = await self.transport.get_json(f"/v1/runs/{run_id}/events", {"limit": 1000})
        return list(page["events"])

    async def run(self, run_id: str) -> dict[str, Any]:
        return dict((await self.transport.get_json(f"/v1/runs/{run_id}/snapshot"))["state"])

    async def ended(self, run_id: str, within_s: float = 60.0) -> dict[str, Any]:
        async def is_over() -> bool:
            return (await self.run(run_id))["run"]["status"] in {"completed", "failed", "cancelled"}

        await eventually(is_over, within_s=within_s)
        return await self.run(run_id)


@asynccontextmanager
async def crew(running: Product, name: str, book: Path, *, over: str = "http", **more: Any) -> AsyncIterator[Crew]:
    info = connection_info(running.state_dir)
    assert info is not None
    url = running.url if over == "http" else info.worker_nats_url
    async with HttpTransport(running.url, running.tokens["demo"]) as transport:
        pool = f"{name}-{over}-{uuid.uuid4().hex[:8]}"  # runs are named after it: a second try has its own
        one = Crew(url, running.tokens["demo"], pool, Book(book), transport, **more)
        try:
            yield one
        finally:
            for worker in one.alive:
                if worker.returncode is None:
                    await one.kill(worker)
