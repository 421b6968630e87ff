"""Whether the broker answers just now, known within two seconds or so.

The client's own pings notice a dead peer after 15 s, which is right for giving up a connection that may recover, and
too long for whoever waits for an answer. Here a server that is silent for `patience_s` fails what waits, and what is
asked, until it is heard again; the connection stays. Only time in which this process itself was able to listen counts,
so that a machine with too much to do is not taken for a silent broker.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from runlane.kernel.connection import Connection
from runlane.kernel.errors import KernelError, Retryable

_STEP_S = 0.25
_LATE_S = 2 * _STEP_S
RETRY_AFTER_S = 1.0


class Pulse:
    """Asks for a sign of life every `every_s`, while the block lasts."""

    def __init__(self, connection: Connection, *, every_s: float = 0.5, patience_s: float = 2.0) -> None:
        self._connection = connection
        self._every_s = every_s
        self._patience_s = patience_s
        self._silent = False
        self._waiting: set[asyncio.Timeout] = set()

    @property
    def beats(self) -> bool:
        """Whether a server is there and was heard of late."""
        return self._connection.is_connected and not self._silent

    @asynccontextmanager
    async def heard(self) -> AsyncIterator[None]:
        """What is asked inside fails as soon as the broker is silent. Raises Retryable."""
        if self._silent:
            raise Retryable("the broker is silent", retry_after_s=RETRY_AFTER_S)
        limit: asyncio.Timeout | None = None
        try:
            async with asyncio.timeout(None) as limit:
                self._waiting.add(limit)
                yield
        except TimeoutError as exc:
            if limit is None or not limit.expired():
                raise
            raise Retryable("the broker is silent", retry_after_s=RETRY_AFTER_S) from exc
        finally:
            if limit is not None:
                self._waiting.discard(limit)

    async def __aenter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self._beat_for_ever(), name="pulse")
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _beat_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                came = await self._connection.ping()
            except (KernelError, OSError):
                self._silent = False  # that there is no connection says so itself
                continue
            await self._listen(came)

    async def _listen(self, came: "asyncio.Future[bool]") -> None:
        loop = asyncio.get_running_loop()
        listened_s, received = 0.0, self._connection.received_bytes
        while not came.done() and self._connection.is_connected:
            began = loop.time()
            await asyncio.wait({came}, timeout=_STEP_S)
            listened_s += _STEP_S if loop.time() - began < _LATE_S else 0.0
            if self._connection.received_bytes != received:  # it speaks, it only has much to say
                listened_s, received = 0.0, self._connection.received_bytes
            if listened_s >= self._patience_s and not came.done():
                self._fall_silent()
        self._silent = False

    def _fall_silent(self) -> None:
        self._silent = True
        for limit in tuple(self._waiting):
            limit.reschedule(asyncio.get_running_loop().time())
