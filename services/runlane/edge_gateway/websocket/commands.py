"""`command/submit`: the same request that HTTP makes, to the same place, so that nothing about it is another."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import ASGIApp, Message

from runlane.edge_gateway.forward import TIMEOUT_S
from runlane.edge_gateway.websocket.failures import HttpAnswer
from runlane.hosting.http import ProblemError
from runlane_contracts.codec import encode
from runlane_contracts.ids import is_id
from runlane_contracts.problems import Code
from runlane_contracts.websocket import Submit


class CommandsUnderWay:
    """Commands that were handed on. They are finished, whether who sent them is still there or not."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    async def finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for it; it goes on if nobody waits any more."""
        task = asyncio.get_running_loop().create_task(work, name="command")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        await asyncio.shield(task)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits has it; nobody may be waiting any more

    async def drain(self, within_s: float) -> None:
        """Wait for all of them; what takes longer is broken off."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=within_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


class CommandGateway:
    """The command gateway's application: of this process, or what forwards to it."""

    def __init__(self, app: ASGIApp | None, under_way: CommandsUnderWay) -> None:
        self._app = app
        self._under_way = under_way

    async def submit(self, command: Submit, bearer: str) -> HttpAnswer:
        """What the command gateway says.

        Raises:
            ProblemError: `run_not_found`, or `upstream_unavailable`: nobody answers.
        """
        if not is_id(command.run_id):
            raise ProblemError(Code.RUN_NOT_FOUND)
        if self._app is None:
            raise ProblemError(Code.UPSTREAM_UNAVAILABLE, "there is no command gateway")
        exchange = _Exchange(_body(command))
        await self._under_way.finish(self._exchanged(self._app, command, bearer, exchange))
        return HttpAnswer(exchange.status, exchange.headers, bytes(exchange.answer))

    @staticmethod
    async def _exchanged(app: ASGIApp, command: Submit, bearer: str, exchange: "_Exchange") -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await app(_scope(command, bearer, len(exchange.body)), exchange.receive, exchange.send)
        except TimeoutError:
            # It may have been done: the same idempotency key finds out.
            raise ProblemError(Code.UPSTREAM_UNAVAILABLE, "the command gateway did not answer") from None


class _Exchange:
    """One request and its response, in memory."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.status = 500
        self.headers: dict[str, str] = {}
        self.answer = bytearray()
        self._is_read = False

    async def receive(self) -> Message:
        if not self._is_read:
            self._is_read = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await asyncio.Event().wait()  # the client stays until the answer is there
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {
                name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message["headers"]
            }
        else:
            self.answer += message.get("body", b"")


def _body(command: Submit) -> bytes:
    body: dict[str, Any] = {"type": command.type, "payload": command.payload}
    if command.idempotency_key is not None:
        body["idempotency_key"] = command.idempotency_key
    if command.meta is not None:
        body["meta"] = command.meta
    return encode(body)


def _scope(command: Submit, bearer: str, length: int) -> dict[str, Any]:
    path = f"/v1/runs/{command.run_id}/commands"
    headers = [
        (b"authorization", f"Bearer {bearer}".encode("latin-1", "replace")),
        (b"content-type", b"application/json"),
        (b"content-length", str(length).encode()),
    ]
    if command.wait_s > 0:
        headers.append((b"prefer", b"wait=%d" % max(1, round(command.wait_s))))
    if command.traceparent is not None:
        headers.append((b"traceparent", command.traceparent.encode("latin-1", "replace")))
    return {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "POST",
        "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
        "headers": headers, "client": None, "server": None, "state": {}, "extensions": {},
    }  # fmt: skip
