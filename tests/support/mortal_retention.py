"""A process that takes one run out of the log of a running product, and kills itself at a step.

python -m support.mortal_retention STATE_DIR TENANT RUN STEP before|after [erase]
"""

import asyncio
import dataclasses
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from runlane.cli.state_dir import Secrets, connection_info
from runlane.hosting.connections import Connections
from runlane.kernel.direct import DirectReader
from runlane.kernel.publisher import WindowedPublisher
from runlane.object_store.store import Objects
from runlane.retention.app import _stores
from runlane.retention.compactor import Compactor
from runlane_contracts.envelope import Actor
from runlane_contracts.streams import Layout
from runlane_contracts.subjects import RunAddress

T = TypeVar("T")


class Fuse:
    """Counts what is done to the outside, and ends the process at one of them."""

    def __init__(self, at: int, *, after: bool) -> None:
        self.at, self.after, self.calls = at, after, 0

    async def __call__(self, work: Callable[[], Awaitable[T]]) -> T:
        self.calls += 1
        if self.calls == self.at and not self.after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = await work()
        if self.calls == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        return result


class Fused:
    """Anything, some of whose methods blow the fuse."""

    def __init__(self, of: Any, fuse: Fuse, *names: str) -> None:
        self._of, self._fuse, self._names = of, fuse, names

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._of, name)
        if name not in self._names:
            return found
        return lambda *args, **more: self._fuse(lambda: found(*args, **more))


async def main(state_dir: Path, run: RunAddress, fuse: Fuse, *, erase: bool) -> None:
    info = connection_info(state_dir)
    assert info is not None
    secrets = msgspec.json.decode((state_dir / "keys.json").read_bytes(), type=Secrets)
    url = "nats://" + info.operator_nats_url.rpartition("@")[2]
    async with Connections(url=url, passwords=secrets.broker_passwords, instance="mortal") as connections:
        connection = await connections.of("retention")
        async with DirectReader(connection) as direct, WindowedPublisher(connection) as publisher:
            objects: Any = Fused(Objects.at(str(state_dir / "objects")), fuse, "put", "delete")
            stores = _stores(connection, direct, publisher, Layout(), objects)
            stores = dataclasses.replace(
                stores,
                log=Fused(stores.log, fuse, "take_out"),
                view=Fused(stores.view, fuse, "take_out"),
                commands=Fused(stores.commands, fuse, "erase"),
            )
            stores.run_logs._log.commit = Fused(stores.run_logs._log, fuse, "commit").commit
            compactor = Compactor(stores, wait_s=20)
            if erase:
                await compactor.erase(run, (), "asked to", Actor(kind="user", id="operator"))
            else:
                await compactor.compact(run, "p")


if __name__ == "__main__":
    folder, tenant, run_id, step, when, *more = sys.argv[1:]
    asyncio.run(
        main(Path(folder), RunAddress(tenant, run_id), Fuse(int(step), after=when == "after"), erase=bool(more))
    )
