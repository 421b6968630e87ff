"""One connection to the broker that either works or says so.

nats-py's own defaults give up after two minutes, notice a dead peer after six, stop reading for good when a
callback raises, and send what was buffered before a disconnect long after its caller was told that it failed.
Here: reconnect for ever with jitter, notice within 15 s, and nothing unsent survives a disconnect, so what
was reported as failed is not written behind the caller's back.
"""

import asyncio
import contextlib
import logging
import random
import re
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import nats.errors
from nats.aio.client import Client, Server
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from runlane.kernel.errors import KernelError, Permanent, Retryable
from runlane.kernel.faults import trace_of
from runlane_contracts.telemetry import LogEvent

_log = logging.getLogger("runlane.kernel.connection")

CONNECT_TIMEOUT_S = 3
PING_INTERVAL_S = 5
MAX_OUTSTANDING_PINGS = 2
FLUSH_TIMEOUT_S = 5.0
DRAIN_TIMEOUT_S = 5
PENDING_BYTES = 8 * 1024 * 1024
RECONNECT_WAIT_S = (0.05, 2.0)
LOG_EVERY_S = 5.0

Listener = Callable[[], None]
OnClosed = Callable[[], None] | Callable[[], Awaitable[None]]


class Connection:
    """Owns one client. `nc` is there for subscriptions and plain publishes.

    Listeners are plain functions: those for a disconnect run at the moment the link is given up, before
    anything else happens, so that whoever waits for an answer learns that it will not come.
    """

    def __init__(self, client: "_Client", name: str) -> None:
        self.nc: Client = client
        self.name = name
        self.permission_violations = 0
        self.last_error: Exception | None = None
        self._client = client
        self._on_disconnect: list[Listener] = []
        self._on_reconnect: list[Listener] = []
        self._complaints = _Complaints(name)
        self._denied = asyncio.Event()
        self._closing = False
        self._on_closed: OnClosed | None = None
        client.on_link_lost = self._link_lost

    @property
    def is_connected(self) -> bool:
        """Whether a server answers just now, as far as is known."""
        return bool(self.nc.is_connected)

    @property
    def max_payload(self) -> int:
        """What the server takes in one message, headers included."""
        return int(self.nc.max_payload)

    def add_disconnect_listener(self, listener: Listener) -> Listener:
        """Call `listener` whenever the link is lost or closed. Returns what removes it again."""
        return _add(self._on_disconnect, listener)

    def add_reconnect_listener(self, listener: Listener) -> Listener:
        """Call `listener` whenever the link is there again. Returns what removes it again."""
        return _add(self._on_reconnect, listener)

    def new_inbox(self) -> str:
        """A fresh subject under this connection's inbox prefix."""
        return str(self.nc.new_inbox())

    async def request(
        self, subject: str, data: bytes = b"", *, timeout_s: float = 5.0, headers: dict[str, str] | None = None
    ) -> Msg:
        """Ask and wait for one answer.

        Raises:
            Retryable: nobody answers, or not in time, or there is no connection.
            Permanent: the request can never be sent.
        """
        if not self.is_connected:
            raise Retryable("not connected", retry_after_s=0.2)
        try:
            return await self.nc.request(subject, data, timeout=timeout_s, headers=headers)
        except nats.errors.Error as exc:
            raise as_kernel_error(exc, subject) from exc

    @property
    def received_bytes(self) -> int:
        """Of messages, since the start: whoever sends some is alive."""
        return int(self.nc.stats["in_bytes"])

    async def ping(self) -> "asyncio.Future[bool]":
        """Ask the server for a sign of life: the future is done when it comes. It must not be cancelled.

        Raises Retryable when there is no connection.
        """
        if not self.is_connected:
            raise Retryable("not connected", retry_after_s=0.2)
        came: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        await self._client.send_ping(came)
        return came

    async def unsubscribe(self, subscription: Subscription | None) -> None:
        """End a subscription, if there is one; what cannot be ended any more ends with the connection."""
        if subscription is not None and not self.nc.is_closed:
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()

    async def close(self, *, flush_s: float = 2.0) -> None:
        """Send what is buffered, close, and wait until it is closed. Does not hang on a dead peer."""
        self._closing = True
        if self.nc.is_closed:
            return
        with contextlib.suppress(nats.errors.Error, TimeoutError, OSError):
            async with asyncio.timeout(flush_s):
                if self.nc.is_connected:
                    await self.nc.flush()
        self._link_lost()
        try:
            async with asyncio.timeout(flush_s):
                await self.nc.close()
        except (nats.errors.Error, TimeoutError, OSError):
            self._client.abort()

    # --- what the client calls: none of these may raise, it would end the client's read loop -------------

    def _link_lost(self) -> None:
        for listener in tuple(self._on_disconnect):
            _call(listener)

    async def _disconnected(self) -> None:
        self._client.forget_unsent()
        if not self._closing:
            _log.warning("disconnected: %s", self.name, extra={"event": LogEvent.BROKER_DISCONNECTED})
        self._link_lost()

    async def _reconnected(self) -> None:
        _log.info("reconnected: %s", self.name, extra={"event": LogEvent.BROKER_RECONNECTED})
        for listener in tuple(self._on_reconnect):
            _call(listener)

    async def _closed(self) -> None:
        if self._closing or self._on_closed is None:
            return
        extra = {"event": LogEvent.BROKER_ERROR}
        _log.error("connection closed for good: %s: %s", self.name, self.last_error, extra=extra)
        try:
            outcome = self._on_closed()
            if isinstance(outcome, Coroutine):
                await outcome
        except Exception as exc:  # noqa: BLE001 - whatever it is, the client must read on
            _log.error("the handler of a closed connection failed: %s", trace_of(exc))

    async def _error(self, exc: Exception) -> None:
        self.last_error = exc
        text = str(exc).lower()
        if "permissions violation" in text:
            self.permission_violations += 1
        if "authorization violation" in text or "authentication" in text:
            self._denied.set()
        self._complaints.hear(exc)


async def connect(
    *,
    url: str,
    user: str | None = None,
    password: str | None = None,
    name: str,
    inbox_prefix: str | None = None,
    on_closed: OnClosed | None = None,
    wait_s: float = 10.0,
) -> Connection:
    """Connect, trying for `wait_s` seconds; from then on reconnect for ever.

    `on_closed` is called when the client closed by itself, which it does on a protocol error: the process
    should end or connect anew.

    Raises:
        Retryable: no server answered in time.
        Permanent: the server knows neither user nor password.
    """
    client = _Client()
    connection = Connection(client, name)
    connection._on_closed = on_closed  # noqa: SLF001 - set here so that a connection that never was calls nobody
    options: dict[str, Any] = {"user": user, "password": password} if user is not None else {}
    options["inbox_prefix"] = inbox_prefix or (f"_INBOX_{user}" if user is not None else "_INBOX")
    try:
        await _first_connect(connection, url.split(","), options, wait_s)
    except BaseException:
        connection._closing = True  # noqa: SLF001
        client.abort()
        raise
    return connection


async def _first_connect(connection: Connection, urls: list[str], options: dict[str, Any], wait_s: float) -> None:
    client = connection._client  # noqa: SLF001
    attempt = asyncio.ensure_future(
        client.connect(
            servers=urls,
            name=connection.name,
            error_cb=connection._error,  # noqa: SLF001
            disconnected_cb=connection._disconnected,  # noqa: SLF001
            reconnected_cb=connection._reconnected,  # noqa: SLF001
            closed_cb=connection._closed,  # noqa: SLF001
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.2,  # type: ignore[arg-type]
            reconnect_to_server_handler=_next_server,
            connect_timeout=CONNECT_TIMEOUT_S,
            ping_interval=PING_INTERVAL_S,
            max_outstanding_pings=MAX_OUTSTANDING_PINGS,
            flush_timeout=FLUSH_TIMEOUT_S,
            drain_timeout=DRAIN_TIMEOUT_S,
            pending_size=PENDING_BYTES,
            **options,
        )
    )
    denied = asyncio.ensure_future(connection._denied.wait())  # noqa: SLF001
    try:
        await asyncio.wait({attempt, denied}, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        if attempt.done():
            attempt.result()
        elif denied.done():
            raise Permanent(f"{connection.name}: the server refuses the user or its password")
        else:
            raise Retryable(f"{connection.name}: no server at {','.join(urls)}: {connection.last_error}")
    except nats.errors.Error as exc:
        raise as_kernel_error(exc, "connect") from exc
    finally:
        for task in (attempt, denied):
            task.cancel()
        await asyncio.gather(attempt, denied, return_exceptions=True)


def as_kernel_error(exc: Exception, what: str) -> KernelError:
    """What an error of the client means to a caller."""
    if isinstance(exc, (nats.errors.MaxPayloadError, nats.errors.BadSubjectError)):
        return Permanent(f"{what}: {exc!r}")
    if isinstance(exc, nats.errors.Error) and type(exc).__name__ == "BadHeaderError":
        return Permanent(f"{what}: {exc!r}")
    if isinstance(exc, nats.errors.NoRespondersError):
        return Retryable(f"{what}: nobody answers")
    return Retryable(f"{what}: {exc!r}")


_HEADER = re.compile(rb"^[ \t]*([!-9;-~]+)[ \t]*:([^\r\n]*)", re.MULTILINE)


class _Client(Client):
    """nats-py's client, with four holes closed and headers read faster."""

    def __init__(self) -> None:
        super().__init__()
        self.on_link_lost: Listener = lambda: None

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        """As nats-py does it, which looks at every character of every name in Python: half of a page's cost."""
        return {name.decode(): value.strip().decode("utf-8", "replace") for name, value in _HEADER.findall(raw)}

    def abort(self) -> None:
        """Drop the socket at once. A frozen peer would let a polite close wait for ever for its buffer to drain."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()

    async def send_ping(self, came: "asyncio.Future[bool]") -> None:
        """Send a ping whose answer is told; nobody waits for it here."""
        await self._send_ping(came)

    def forget_unsent(self) -> None:
        """What was not sent before the link broke is reported as failed, at once, and is not sent later."""
        self._pending = []
        self._pending_data_size = 0
        for answer in tuple(self._resp_map.values()):
            if not answer.done():
                answer.set_exception(nats.errors.ConnectionReconnectingError())

    async def _connect_to_server(self, s: Any) -> None:
        self.abort()  # of the attempt before, which may have got a socket and no greeting
        await super()._connect_to_server(s)

    async def _process_op_err(self, e: Exception) -> None:
        if not (self.is_closed or self.is_reconnecting):
            self.forget_unsent()
            self.on_link_lost()
            self.abort()
        await super()._process_op_err(e)

    async def _read_loop(self) -> None:
        await super()._read_loop()
        if self.is_connected:  # it ended on an exception of its own: nothing would be read any more
            await self._process_op_err(nats.errors.StaleConnectionError())


def _next_server(servers: list[Server], _info: dict[str, Any]) -> tuple[Server, float]:
    least = min(server.reconnects for server in servers)
    chosen = random.choice([server for server in servers if server.reconnects == least])  # noqa: S311
    first, most = RECONNECT_WAIT_S
    ceiling = min(most, first * 2 ** min(least, 10))
    return chosen, random.uniform(ceiling / 2, ceiling)  # noqa: S311


class _Complaints:
    """Logs what the client complains about: each kind at most once in `LOG_EVERY_S`, with a count."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._said: dict[str, tuple[float, int]] = {}

    def hear(self, exc: Exception) -> None:
        kind = type(exc).__name__
        now = asyncio.get_running_loop().time()
        last, silent = self._said.get(kind, (-LOG_EVERY_S, 0))
        if now - last < LOG_EVERY_S:
            self._said[kind] = (last, silent + 1)
            return
        self._said[kind] = (now, 0)
        extra = {"event": LogEvent.BROKER_ERROR}
        _log.warning("%s: %s: %s (and %d more)", self._name, kind, exc, silent, extra=extra)


def _add(listeners: list[Listener], listener: Listener) -> Listener:
    listeners.append(listener)

    def remove() -> None:
        with contextlib.suppress(ValueError):
            listeners.remove(listener)

    return remove


def _call(listener: Listener) -> None:
    try:
        listener()
    except Exception as exc:  # noqa: BLE001 - whatever it is, the client must read on
        _log.error("a connection listener failed: %s", trace_of(exc))
