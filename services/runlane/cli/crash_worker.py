"""A worker of `runlane demo --crash`, as a process of its own so that it can be killed like one."""

import asyncio
import os
import sys
from pathlib import Path

from runlane.adapters.order_agent import Book, OrderDesk
from runlane.client import HttpTransport, Worker

TTL_S = 3.0


async def _work(pool: str, worker_id: str, book: str, stalls_in: str = "") -> None:
    desk = OrderDesk(Book(Path(book)), worker_id, stalls_in=stalls_in)
    async with HttpTransport(os.environ["RUNLANE_URL"], os.environ["RUNLANE_TOKEN"]) as transport:
        worker = Worker(
            transport, pool=pool, worker_id=worker_id, agent=desk.agent, reconcile=desk.reconcile, ttl_s=TTL_S
        )
        await worker.run()


if __name__ == "__main__":
    asyncio.run(_work(*sys.argv[1:]))
