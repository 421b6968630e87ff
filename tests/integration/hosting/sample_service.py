"""A service as small as one can be, run as a process by `test_service.py`."""

import asyncio
import os
from contextlib import asynccontextmanager

from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from runlane.hosting.connections import connection_of
from runlane.hosting.health import Health
from runlane.hosting.http import application
from runlane.hosting.http_server import HttpAddress
from runlane.hosting.service import Running, main

NAME = "projector"


@asynccontextmanager
async def serve(connections=None):
    draining = asyncio.Event()

    async def health():
        return Health(ready=connection.is_connected)

    async def drain():
        draining.set()

    async def hello(_request):
        return PlainTextResponse("hello")

    async def endless(_request):
        async def lines():
            yield b"begun\n"
            await draining.wait()
            yield b"ended\n"

        return StreamingResponse(lines())

    async def stumble():
        if os.environ.get("STUMBLE"):
            await asyncio.sleep(0.2)
            raise ZeroDivisionError

    async with connection_of(NAME, connections) as connection, asyncio.TaskGroup() as tasks:
        tasks.create_task(stumble())
        yield Running(
            name=NAME,
            health=health,
            asgi=application([Route("/", hello), Route("/endless", endless)]),
            listen=HttpAddress("127.0.0.1", int(os.environ["SAMPLE_PORT"])),
            drain=drain,
        )
        if os.environ.get("HANG"):
            await asyncio.sleep(600)


if __name__ == "__main__":
    main(NAME, serve)
