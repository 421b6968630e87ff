"""The connection on a real server: it works or it says so, and it comes back."""

import asyncio

import pytest

from runlane.kernel.connection import Connection, connect
from runlane.kernel.errors import Permanent, Retryable
from support.nats import nats_server

USERS = """
authorization { users = [
  { user: alice, password: secret, permissions: { publish: ["ok.>"], subscribe: ["_INBOX_alice.>"] } }
] }
"""


async def until_connected(connection: Connection) -> None:
    async with asyncio.timeout(10):
        while not connection.is_connected:
            await asyncio.sleep(0.02)


async def test_no_server_is_retryable_after_the_wait() -> None:
    with pytest.raises(Retryable):
        await connect(url="nats://127.0.0.1:1", name="t", wait_s=0.5)


async def test_a_wrong_password_is_permanent() -> None:
    async with nats_server(extra=USERS) as server:
        with pytest.raises(Permanent):
            await connect(url=server.url, user="alice", password="wrong", name="t")


async def test_a_permission_violation_is_counted_and_the_connection_lives() -> None:
    async with nats_server(extra=USERS) as server:
        connection = await connect(url=server.url, user="alice", password="secret", name="t")
        await connection.nc.publish("forbidden", b"")
        async with asyncio.timeout(5):
            while connection.permission_violations == 0:
                await asyncio.sleep(0.01)
        await connection.nc.flush()
        assert connection.is_connected
        assert connection.new_inbox().startswith("_INBOX_alice.")
        await connection.close()


async def test_listeners_and_the_log_hear_of_a_disconnect_and_of_the_reconnect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="runlane.kernel.connection")
    async with nats_server() as server:
        connection = await connect(url=server.url, name="t")
        heard: list[str] = []
        connection.add_disconnect_listener(lambda: heard.append("gone"))
        remove = connection.add_disconnect_listener(lambda: heard.append("never"))
        connection.add_reconnect_listener(lambda: heard.append("back"))
        remove()
        await server.restart()
        async with asyncio.timeout(10):
            while "back" not in heard:
                await asyncio.sleep(0.02)
        assert heard[0] == "gone"
        assert "never" not in heard
        await connection.close()
    events = [getattr(record, "event", "") for record in caplog.records]
    assert "broker.disconnected" in events[: events.index("broker.reconnected")]
    assert set(events) <= {"broker.disconnected", "broker.reconnected", "broker.error"}


async def test_a_request_ends_when_the_link_is_lost_not_at_its_deadline() -> None:
    """Take the loop over `_resp_map` out of `forget_unsent` and it takes its whole minute."""
    async with nats_server() as server:
        connection = await connect(url=server.url, name="t")
        await connection.nc.subscribe("silent", cb=_say_nothing)
        asking = asyncio.ensure_future(connection.request("silent", timeout_s=60))
        await connection.nc.flush()
        server.kill9()
        with pytest.raises(Retryable):
            await asyncio.wait_for(asking, 5)
        await connection.close()


async def _say_nothing(_message: object) -> None:
    return


async def test_an_error_inside_the_clients_read_loop_leads_to_a_reconnect() -> None:
    """Take `_read_loop` out of the client and it stays deaf for ever while it calls itself connected."""
    async with nats_server() as server:
        connection = await connect(url=server.url, name="t")
        back = asyncio.Event()
        connection.add_reconnect_listener(back.set)
        connection.nc._ps.parse = _explode
        await connection.nc.publish("a", b"")
        connection.nc._transport.write(b"PING\r\n")
        del_once = asyncio.get_running_loop().create_task(_restore(connection))
        await asyncio.wait_for(back.wait(), 10)
        await del_once
        await connection.close()


async def _explode(_data: bytes) -> None:
    raise ValueError("boom")


async def _restore(connection: Connection) -> None:
    while connection.is_connected:
        await asyncio.sleep(0.01)
    del connection.nc._ps.parse


async def test_a_frozen_server_with_a_full_socket_is_given_up_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take `abort` out of `_process_op_err`: the close waits for its buffer to drain, which it never does."""
    monkeypatch.setattr("runlane.kernel.connection.PING_INTERVAL_S", 0.3)
    monkeypatch.setattr("runlane.kernel.connection.FLUSH_TIMEOUT_S", 0.3)
    async with nats_server() as frozen, nats_server() as healthy:
        connection = await connect(url=frozen.url, name="t")
        connection.nc._setup_server_pool(healthy.url)
        back = asyncio.Event()
        connection.add_reconnect_listener(back.set)
        frozen.pause()
        await _fill(connection)
        await asyncio.wait_for(back.wait(), 15)
        assert connection.nc.connected_url.port == healthy.port
        frozen.cont()
        await connection.close()


async def _fill(connection: Connection) -> None:
    for _ in range(16):
        if connection.is_connected:
            await connection.nc.publish("a", b"x" * 1_000_000)


async def test_close_does_not_hang_on_a_frozen_server() -> None:
    async with nats_server() as server:
        connection = await connect(url=server.url, name="t")
        server.pause()
        for _ in range(6):
            await connection.nc.publish("a", b"x" * 1_000_000)
        await asyncio.wait_for(connection.close(flush_s=0.5), 5)
        server.cont()


async def test_a_close_by_the_server_for_good_calls_on_closed() -> None:
    closed = asyncio.Event()
    async with nats_server() as server:
        connection = await connect(url=server.url, name="t", on_closed=closed.set)
        connection.nc._transport.write(b"NONSENSE\r\n")
        await asyncio.wait_for(closed.wait(), 5)
        with pytest.raises(Retryable):
            await connection.request("a")
