"""A worker process whose effects are written to a file: `WORKER URL TOKEN POOL BOOK TTL_S CONCURRENCY`.

Over NATS when the URL says so. Each effect takes a while before it happens and after; `begins` and `did` lines say so.
The run's input is `{"side_effect", "calls", "slow_s", "dies"?}`.
"""

import asyncio
import os
import random
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from runlane.client import HttpTransport, NatsTransport, RunContext, ToolInProgress, Worker
from runlane_contracts.codec import decode_json, encode

WORKER = (sys.executable, "-m", "support.effects_worker")


class Book:
    """A file that several processes append to, line by line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, what: str, operation_id: str, run_id: str = "") -> None:
        line = encode({"what": what, "op": operation_id, "run": run_id, "pid": os.getpid()}) + b"\n"
        with self.path.open("ab", buffering=0) as file:
            file.write(line)

    def lines(self, what: str) -> list[dict[str, Any]]:
        raw = self.path.read_bytes() if self.path.exists() else b""
        return [one for line in raw.splitlines() if line.endswith(b"}") and (one := decode_json(line))["what"] == what]


class Effects:
    def __init__(self, book: Book, chance: random.Random) -> None:
        self.book, self.chance = book, chance

    async def agent(self, ctx: RunContext) -> list[str]:
        wish = ctx.input

        async def effect(call: ToolInProgress) -> str:
            self.book.write("begins", call.operation_id, ctx.run_id)
            if wish.get("dies"):
                os._exit(9)
            await self.take_time(wish["slow_s"])
            self.book.write("did", call.operation_id, ctx.run_id)
            await self.take_time(wish["slow_s"])
            return call.operation_id

        results = [
            await ctx.call("act", {"number": number}, effect, side_effect=wish["side_effect"])
            for number in range(wish["calls"])
        ]
        assert len(set(results)) == wish["calls"]
        return results

    async def take_time(self, slow_s: float) -> None:
        """In small steps, so that a process that was stopped hears of its lease before it goes on."""
        left_s = slow_s * self.chance.uniform(0.5, 1.0)
        while left_s > 0:
            await asyncio.sleep(min(0.05, left_s))
            left_s -= 0.05


async def main(url: str, token: str, pool: str, book: str, ttl_s: str, concurrency: str) -> None:
    effects = Effects(Book(Path(book)), random.Random(os.getpid()))
    async with AsyncExitStack() as stack:
        transport = await stack.enter_async_context(
            NatsTransport.connect(url, "demo") if url.startswith("nats") else HttpTransport(url, token)
        )
        worker = Worker(
            transport, pool=pool, agent=effects.agent, ttl_s=float(ttl_s), concurrency=int(concurrency),
            claim_wait_s=2.0,
        )  # fmt: skip
        sys.stdout.write("working\n")
        sys.stdout.flush()
        await worker.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
