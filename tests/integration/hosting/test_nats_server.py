import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import nats
import pytest

from runlane.hosting.nats_server import EmbeddedServer, PortTaken, StartFailed, StoreInUse
from support.eventually import eventually
from support.nats import nats_server


async def test_it_is_ready_soon_and_gone_after():
    began = time.monotonic()
    async with nats_server() as server:
        assert time.monotonic() - began < 3.0
        client = await nats.connect(server.url)
        await client.close()
        pid = server.pid
    assert not _alive(pid)


async def test_a_killed_server_comes_back_on_the_same_port_with_its_data():
    async with nats_server(keep=True) as server:
        client = await nats.connect(server.url, reconnect_time_wait=0.05, max_reconnect_attempts=-1, error_cb=_quiet)
        stream = client.jetstream()
        await stream.add_stream(name="S", subjects=["s"])
        await stream.publish("s", b"kept")
        url, pid = server.url, server.pid
        server.kill9()
        await eventually(lambda: server.restarts == 1)
        assert (server.url, server.pid != pid) == (url, True)
        await eventually(lambda: client.is_connected)
        assert (await stream.get_msg("S", 1)).data == b"kept"
        await client.close()


async def test_a_taken_port_is_named(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = EmbeddedServer(directory=tmp_path, port=taken.getsockname()[1])
        with pytest.raises(PortTaken, match="is taken"):
            await server.start()
    await server.start()  # nothing of the failed attempt is in the way
    await server.stop()


async def test_a_store_has_one_server(tmp_path):
    async with nats_server(directory=tmp_path):
        with pytest.raises(StoreInUse):
            await EmbeddedServer(directory=tmp_path).start()


async def test_a_server_that_refuses_its_configuration_says_why(tmp_path):
    with pytest.raises(StartFailed, match="no_such_option"):
        await EmbeddedServer(directory=tmp_path, extra=("no_such_option: 1",)).start()


async def test_passwords_are_readable_by_the_owner_only(tmp_path):
    async with nats_server(users=True, directory=tmp_path):
        assert (tmp_path / "server.conf").stat().st_mode & 0o777 == 0o600


async def test_it_dies_with_a_parent_that_is_killed(tmp_path):
    script = textwrap.dedent(f"""
        import asyncio, pathlib
        from runlane.hosting.nats_server import EmbeddedServer
        async def main():
            async with EmbeddedServer(directory=pathlib.Path({str(tmp_path)!r})) as server:
                print(server.pid, flush=True)
                await asyncio.sleep(60)
        asyncio.run(main())
    """)
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    try:
        pid = int(await asyncio.to_thread(parent.stdout.readline))
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        async with EmbeddedServer(directory=tmp_path):  # waits for the orphan's lock
            assert not _alive(pid)
    finally:
        parent.stdout.close()


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


async def _quiet(_error):
    pass
