"""One broker connection per user in a process: a service's own, or one for each of those that share a process."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from runlane.hosting.settings import CommonSettings
from runlane.kernel.connection import Connection, connect
from runlane_contracts.telemetry import LogEvent

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Credentials:
    """As whom to connect, and where to. No user: everything is allowed."""

    url: str
    user: str | None = None
    password: str | None = None


class Connections:
    """Connects once per broker user, when first asked; closes them all at the end.

    `passwords` by user name; None: the broker has no users. `lost` is set when a connection closed for good: the
    process can do no more and should end.
    """

    def __init__(
        self,
        *,
        url: str,
        passwords: Mapping[str, str] | None,
        instance: str,
        user_of: Mapping[str, str] | None = None,
        wait_s: float = 10.0,
    ) -> None:
        self.lost = asyncio.Event()
        self._url = url
        self._passwords = passwords
        self._user_of = user_of or {}
        self._instance = instance
        self._wait_s = wait_s
        self._open: dict[str, Connection] = {}
        self._opening = asyncio.Lock()

    @classmethod
    def of_settings(cls, settings: CommonSettings, service: str) -> Self:
        """Those of one service in a process of its own."""
        password = settings.broker_password
        user = settings.broker_user(service)
        if user is None or password is None:
            return cls(url=settings.nats_url, passwords=None, instance=settings.instance)
        return cls(
            url=settings.nats_url,
            passwords={user: password},
            user_of={service: user},
            instance=settings.instance,
        )

    def has(self, service: str) -> bool:
        """Whether there is a user of this name to connect as."""
        return self._passwords is not None and self._user_of.get(service, service) in self._passwords

    def credentials(self, service: str) -> Credentials:
        """Of a service's user. Raises KeyError when the broker has users and this is none of ours."""
        if self._passwords is None:
            return Credentials(self._url)
        user = self._user_of.get(service, service)
        return Credentials(self._url, user, self._passwords[user])

    async def of(self, service: str) -> Connection:
        """The service's connection, shared by all who ask under this name. Raises Retryable, Permanent."""
        async with self._opening:
            if service not in self._open:
                who = self.credentials(service)
                self._open[service] = await connect(
                    url=who.url,
                    user=who.user,
                    password=who.password,
                    name=f"{service}/{self._instance}",
                    on_closed=self._closed_for_good,
                    wait_s=self._wait_s,
                )
            return self._open[service]

    async def close(self) -> None:
        """Flush and close them all."""
        for connection in self._open.values():
            await connection.close()
        self._open.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _closed_for_good(self) -> None:
        log.error("a broker connection closed for good", extra={"event": LogEvent.BROKER_ERROR})
        self.lost.set()


@asynccontextmanager
async def connection_of(service: str, connections: Connections | None) -> AsyncIterator[Connection]:
    """The service's connection: of the process it shares, or one of its own that closes at the end."""
    if connections is not None:
        yield await connections.of(service)
        return
    async with Connections.of_settings(CommonSettings(), service) as own:
        yield await own.of(service)
