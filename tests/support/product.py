"""The whole product as a person starts it: `runlane up` as a process, and a plain HTTP client for it."""

import asyncio
import json
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx

READY_WITHIN_S = 30.0


@dataclass
class Product:
    """A running `runlane up`. `stop()` and `start()` again continue on the same folder."""

    state_dir: Path
    extra: tuple[str, ...] = ()
    url: str = ""
    nats_url: str = ""
    tokens: dict[str, str] = field(default_factory=dict)
    ready_s: float = 0.0
    process: asyncio.subprocess.Process | None = None

    async def start(self) -> "Product":
        loop = asyncio.get_running_loop()
        began = loop.time()
        port = self.url.rsplit(":", 1)[1] if self.url else "0"
        with (self.state_dir.parent / f"{self.state_dir.name}.stderr").open("ab") as stderr:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "runlane.cli", "up", "--json", "--state-dir", str(self.state_dir),
                "--http", f"127.0.0.1:{port}", "--nats-port", "0", *self.extra,
                stdout=asyncio.subprocess.PIPE, stderr=stderr,
            )  # fmt: skip
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), READY_WITHIN_S)
        assert line, f"runlane up ended: {self.said()[-2000:]}"
        ready = json.loads(line)
        assert ready["ready"] is True
        self.url, self.nats_url, self.tokens = ready["url"], ready["nats_url"], ready["tokens"]
        self.ready_s = loop.time() - began
        return self

    async def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), 20)

    def said(self) -> str:
        return (self.state_dir.parent / f"{self.state_dir.name}.stderr").read_text(errors="replace")

    @property
    def broker_pid(self) -> int:
        """Of the embedded nats-server."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for pid in map(int, children):
            if b"nats-server" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        raise AssertionError("no nats-server among its children")

    def client(self, tenant: str = "demo", **kw: Any) -> "Wire":
        return Wire(self.url, self.tokens[tenant], **kw)

    async def cli(self, *arguments: str, check: bool = True) -> tuple[int, str, str]:
        """Run a verb of the command line as a person would."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "runlane.cli", *arguments, "--state-dir", str(self.state_dir),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env={k: v for k, v in os.environ.items() if not k.startswith("RUNLANE_")},
        )  # fmt: skip
        out, err = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode is not None
        if check:
            assert process.returncode == 0, err.decode()
        return process.returncode, out.decode(), err.decode()


@asynccontextmanager
async def product(state_dir: Path, *extra: str) -> AsyncIterator[Product]:
    """Started, and surely ended."""
    running = Product(state_dir, extra)
    try:
        yield await running.start()
    finally:
        if running.process is not None and running.process.returncode is None:
            try:
                await running.stop()
            except TimeoutError:
                running.process.kill()
                await running.process.wait()


@dataclass
class Frame:
    event: str
    data: Any
    id: str | None


class Wire:
    """HTTP as one tenant, deliberately plain."""

    def __init__(self, url: str, token: str) -> None:
        self.http = httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=20)
        self.written: dict[str, int] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    async def start_run(self, **body: Any) -> str:
        body = {"agent": "test", "input": {}, "dispatch": "external"} | body
        reply = await self.http.post("/v1/runs", json=body, headers={"Prefer": "wait=15"})
        assert reply.status_code == 201, reply.text
        self.written[reply.json()["run_id"]] = reply.json()["sequence"]
        return str(reply.json()["run_id"])

    async def lease(self, run_id: str, worker_id: str = "w1", ttl_s: float = 60) -> int:
        reply = await self.http.post(f"/v1/runs/{run_id}/lease", json={"worker_id": worker_id, "ttl_s": ttl_s})
        assert reply.status_code == 201, reply.text
        return int(reply.json()["lease_epoch"])

    async def append(self, run_id: str, epoch: int, *events: dict[str, Any]) -> list[dict[str, Any]]:
        body = {"lease_epoch": epoch, "events": list(events)}
        reply = await self.http.post(f"/v1/runs/{run_id}/events", json=body)
        assert reply.status_code == 200, reply.text
        self.written[run_id] = reply.json()["events"][-1]["sequence"]
        return list(reply.json()["events"])

    async def command(
        self, run_id: str, type_: str, payload: dict[str, Any] | None = None, wait_s: int = 5
    ) -> httpx.Response:
        return await self.http.post(
            f"/v1/runs/{run_id}/commands", json={"type": type_, "payload": payload or {}},
            headers={"Idempotency-Key": str(uuid.uuid4()), "Prefer": f"wait={wait_s}"},
        )  # fmt: skip

    async def facts(self, run_id: str) -> list[dict[str, Any]]:
        out: list[dict[str, Any]] = []
        query: dict[str, Any] = {"min_sequence": self.written.get(run_id, 0)}
        while True:
            reply = await self.http.get(f"/v1/runs/{run_id}/events", params=query)
            assert reply.status_code == 200, reply.text
            out += reply.json()["events"]
            if not reply.json().get("has_more"):
                return out
            query = {"cursor": reply.json()["cursor"]}

    async def view(self, run_id: str) -> dict[str, Any]:
        reply = await self.http.get(f"/v1/runs/{run_id}", params={"min_sequence": self.written.get(run_id, 0)})
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    async def snapshot(self, run_id: str) -> dict[str, Any]:
        reply = await self.http.get(f"/v1/runs/{run_id}/snapshot", params={"min_sequence": self.written.get(run_id, 0)})
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    @asynccontextmanager
    async def watch(
        self, run_id: str, last_event_id: str | None = None, **params: Any
    ) -> AsyncIterator[AsyncIterator[Frame]]:
        headers = {"Last-Event-ID": last_event_id} if last_event_id else {}
        async with self.http.stream("GET", f"/v1/runs/{run_id}/watch", params=params, headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            yield _frames(response)


async def _frames(response: httpx.Response) -> AsyncIterator[Frame]:
    event, data, id_ = "message", "", None
    async for line in response.aiter_lines():
        if not line:
            if data:
                yield Frame(event, json.loads(data), id_)
            event, data, id_ = "message", "", None
        elif line.startswith("event:"):
            event = line[6:].strip()
        elif line.startswith("data:"):
            data += line[5:].removeprefix(" ")
        elif line.startswith("id:"):
            id_ = line[3:].strip()


def fact(type_: str, **payload: Any) -> dict[str, Any]:
    return {"type": type_, "payload": payload}
