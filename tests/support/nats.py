"""A real nats-server on loopback for one test. Fails where there is none; never skips."""

import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from runlane.hosting.nats_server import Cluster, EmbeddedServer
from runlane_contracts.access import broker_users
from runlane_contracts.streams import MIB, Layout

SMALL = Layout(max_bytes=64 * MIB)


@dataclass(kw_only=True)
class NatsServer(EmbeddedServer):
    """With the means to harm it. It keeps its port and its store over `kill9` and `restart`."""

    sync_interval: str = "always"

    def _config(self, ports_dir: Path) -> str:
        return super()._config(ports_dir).replace("sync_interval: always", f"sync_interval: {self.sync_interval}")

    def kill9(self) -> None:
        """Kill it as a crash would, and see it gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    async def start(self) -> None:
        """Start it, or start it again after `kill9`."""
        if self._lock_fd is None:
            await super().start()
        else:
            await self._launch()

    async def restart(self) -> None:
        """Kill it if it runs, and start it again. Not while it is kept (`keep=True`): then it does so itself."""
        self.kill9()
        await self._launch()

    def pause(self) -> None:
        """Freeze it: connections stay open, nothing answers. It is frozen when this returns."""
        os.kill(self.pid or 0, signal.SIGSTOP)
        while Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "T":
            time.sleep(0.001)

    def cont(self) -> None:
        """Thaw it."""
        os.kill(self.pid or 0, signal.SIGCONT)


@asynccontextmanager
async def nats_server(
    *,
    users: bool = False,
    layout: Layout = SMALL,
    directory: Path | None = None,
    extra: str = "",
    keep: bool = False,
    sync_interval: str = "always",
) -> AsyncIterator[NatsServer]:
    """A server that runs now: `url`, `url_of(user)`, `passwords`, `pid`, `kill9()`, `restart()`, `pause()`, `cont()`.

    `users=True`: the users of `access.py`, each with the password `pw-<name>`; else everything is allowed.
    `keep=True`: it starts again by itself after `kill9`. `sync_interval="2m"` where many writes have to be fast
    and no power is cut.
    """
    own = Path(tempfile.mkdtemp(prefix="runlane-nats-")) if directory is None else directory
    passwords = {user.name: f"pw-{user.name}" for user in broker_users(layout)} if users else None
    server = NatsServer(
        directory=own, layout=layout, passwords=passwords, extra=(extra,), keep=keep, sync_interval=sync_interval
    )
    try:
        async with server:
            yield server
    finally:
        if directory is None:
            shutil.rmtree(own, ignore_errors=True)


@asynccontextmanager
async def nats_cluster(*, layout: Layout) -> AsyncIterator[list[NatsServer]]:
    """Three servers that know each other, each with a directory of its own. Ready when a leader answers."""
    ports = [free_port() for _ in range(3)]
    root = Path(tempfile.mkdtemp(prefix="runlane-cluster-"))
    servers = [
        NatsServer(
            directory=root / f"n{n}",
            layout=layout,
            server_name=f"n{n}",
            cluster=Cluster(
                name="test",
                listen=f"127.0.0.1:{port}",
                routes=tuple(f"nats://127.0.0.1:{other}" for other in ports),
            ),
            keep=False,
            sync_interval="2m",
        )
        for n, port in enumerate(ports)
    ]
    try:
        async with AsyncExitStack() as stack:
            for server in servers:
                await stack.enter_async_context(server)
            yield servers
    finally:
        shutil.rmtree(root, ignore_errors=True)


def free_port() -> int:
    """A port nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
