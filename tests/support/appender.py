"""A process that appends to runs until it is killed, and says on stdout what was acknowledged.

Run as ``python -m support.appender URL PREFIX``; each line is ``run event_id sequence``, written after the append
returned.
"""

import asyncio
import sys

from runlane.kernel.clock import new_id, utc_now
from runlane.kernel.connection import connect
from runlane.kernel.errors import Retryable
from runlane.kernel.nats_event_log import NatsEventLog
from runlane.kernel.run_log import RunLog, RunLogs
from runlane_contracts.lifecycle import RunLifecycle
from support.builders import AGENT, SYSTEM, a_run, created, leased, said
from support.nats import SMALL

RUNS = 4
WRITERS = 3


async def main(url: str, prefix: str) -> None:
    connection = await connect(url=url, name="appender", wait_s=30)
    logs = RunLogs(NatsEventLog(connection, SMALL), now=utc_now, new_id=new_id)
    async with asyncio.TaskGroup() as tasks:
        for number in range(RUNS):
            run = logs.of(a_run(f"shared_{number}"))
            for writer in range(WRITERS):
                tasks.create_task(append(run, f"{prefix}_{number}_{writer}"))


async def append(run: RunLog, prefix: str) -> None:
    await until_written(lambda: run.transact(_begin, lease_epoch=0, actor=SYSTEM))
    number = 0
    while True:
        number += 1
        event_id = f"{prefix}_{number}"
        placed = await until_written(
            lambda event_id=event_id: run.append([said(event_id, event_id=event_id)], lease_epoch=1, actor=AGENT)
        )
        sys.stdout.write(f"{run.address.run_id} {event_id} {placed[0][1]}\n")
        sys.stdout.flush()


async def until_written(write):
    while True:
        try:
            return await write()
        except Retryable as exc:
            await asyncio.sleep(exc.retry_after_s)


def _begin(run: RunLifecycle):
    return [] if run.exists else [created(), leased()]


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
