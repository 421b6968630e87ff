"""How the servers are, as each of them tells in the system account. Counts only."""

import asyncio
import contextlib
from typing import Any

import msgspec
import nats.errors
from msgspec import Struct

from runlane.kernel.connection import Connection
from runlane.kernel.errors import Retryable
from runlane_contracts.access import SERVER_STATES

QUIET_S = 0.25
"""So long after an answer no other server is expected to answer."""


class _JetStreamStats(Struct, frozen=True):
    storage: int = 0


class _JetStream(Struct, frozen=True):
    stats: _JetStreamStats = _JetStreamStats()


class ServerState(Struct, frozen=True):
    """One server, under the names it uses."""

    server_name: str
    connections: int = 0
    slow_consumers: int = 0
    subscriptions: int = 0
    mem: int = 0
    cpu: float = 0.0
    in_msgs: int = 0
    out_msgs: int = 0
    jetstream: _JetStream = _JetStream()


class _Answer(Struct, frozen=True):
    data: ServerState


_decode = msgspec.json.Decoder(_Answer).decode


async def server_states(connection: Connection, *, timeout_s: float = 2.0) -> list[ServerState]:
    """Every server that answers, by name. Raises Retryable: none does."""
    found: dict[str, ServerState] = {}
    inbox, arrived = connection.new_inbox(), asyncio.Event()

    async def take(message: Any) -> None:
        with contextlib.suppress(msgspec.MsgspecError):
            state = _decode(message.data).data
            found[state.server_name] = state
        arrived.set()

    try:
        subscription = await connection.nc.subscribe(inbox, cb=take)
        try:
            await connection.nc.publish(SERVER_STATES, b"{}", reply=inbox)
            wait_s = timeout_s
            with contextlib.suppress(TimeoutError):
                while True:
                    async with asyncio.timeout(wait_s):
                        await arrived.wait()
                    arrived.clear()
                    wait_s = QUIET_S
        finally:
            await connection.unsubscribe(subscription)
    except nats.errors.Error as exc:
        raise Retryable(f"{SERVER_STATES}: {exc}") from exc
    if not found:
        raise Retryable(f"{SERVER_STATES}: no server answers")
    return sorted(found.values(), key=lambda state: state.server_name)
