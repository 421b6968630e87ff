"""The services as processes of their own, as a cluster runs them; without containers.

async with fleet(folder) as all_:
    await all_.stop("projector", signal.SIGKILL)
"""

import asyncio
import os
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx

from runlane.hosting.nats_server import EmbeddedServer
from runlane.kernel.clock import utc_now
from runlane.kernel.connection import connect
from runlane.kernel.provision import provision
from runlane_contracts.access import broker_users, inbox_prefix
from runlane_contracts.streams import Layout
from support.product import Wire

SERVICES = ("redaction_filter", "projector", "run_supervisor", "metrics_aggregator", "command_gateway", "edge_gateway")
TOKEN = "rlk_demo_0123456789abcdef"
TOKEN_OTHER = "rlk_other_0123456789abcdef"


class Fleet:
    """One process per service."""

    def __init__(self, environment: dict[str, str], passwords: dict[str, str], folder: Path, url: str) -> None:
        self._environment, self._passwords, self._folder, self.url = environment, passwords, folder, url
        self.processes: dict[str, asyncio.subprocess.Process] = {}

    async def start(self, name: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            self.processes[name] = await asyncio.create_subprocess_exec(
                sys.executable, "-m", f"runlane.{name}", stdout=log, stderr=log,
                env={**self._environment, "RUNLANE_NATS_USER": name, "RUNLANE_NATS_PASSWORD": self._passwords[name]},
            )  # fmt: skip

    async def stop(self, name: str, number: int = signal.SIGTERM) -> int:
        process = self.processes.pop(name)
        if process.returncode is None:
            process.send_signal(number)
        return await asyncio.wait_for(process.wait(), 20)

    def said(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()[-3000:]

    async def answers(self) -> None:
        async with Wire(self.url, TOKEN) as wire:
            for _ in range(600):
                for name, process in self.processes.items():
                    assert process.returncode is None, f"{name} ended: {self.said(name)}"
                try:
                    if (
                        (await wire.http.get("/readyz")).status_code == 200
                        and (await wire.http.get("/v1/runs")).status_code == 200
                        and (await wire.http.get("/v1/commands/cmd_x")).status_code == 404
                    ):
                        return
                except httpx.HTTPError:
                    pass  # not up yet
                await asyncio.sleep(0.05)
        raise AssertionError({name: self.said(name) for name in self.processes})


@asynccontextmanager
async def fleet(folder: Path) -> AsyncIterator[Fleet]:
    layout = Layout()
    passwords = {user.name: secrets.token_hex(8) for user in broker_users(layout)}
    async with EmbeddedServer(directory=folder / "nats", layout=layout, passwords=passwords) as server:
        operator = await connect(url=server.url, user="operator", password=passwords["operator"], name="operator",
                                 inbox_prefix=inbox_prefix("operator"))  # fmt: skip
        await provision(operator, layout, now=utc_now)
        await operator.close()
        edge, command = _free_port(), _free_port()
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("RUNLANE_")},
            "RUNLANE_NATS_URL": server.url,
            "RUNLANE_API_KEYS": f"demo:{TOKEN},other:{TOKEN_OTHER}",
            "RUNLANE_CURSOR_KEYS": f"k1:{secrets.token_hex(16)}",
            "RUNLANE_READ_STORE_URL": f"sqlite:///{folder / 'read.sqlite'}",
            "RUNLANE_EDGE_HTTP_PORT": str(edge),
            "RUNLANE_EDGE_COMMAND_GATEWAY_URL": f"http://127.0.0.1:{command}",
            "RUNLANE_COMMAND_GATEWAY_HTTP_PORT": str(command),
        }
        all_ = Fleet(environment, passwords, folder, f"http://127.0.0.1:{edge}")
        async with AsyncExitStack() as stack:
            for name in SERVICES:
                await all_.start(name)
                stack.push_async_callback(_end, all_, name)
            await all_.answers()
            yield all_


async def _end(all_: Fleet, name: str) -> None:
    if name in all_.processes:
        await all_.stop(name, signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
