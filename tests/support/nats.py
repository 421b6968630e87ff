"""A real nats-server on loopback for one test. Fails where there is none; never skips."""

import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from runlane.hosting.nats_server import EmbeddedServer
from runlane_contracts.access import broker_users
from runlane_contracts.streams import MIB, Layout

SMALL = Layout(max_bytes=64 * MIB)


class NatsServer(EmbeddedServer):
    """With the means to harm it."""

    def kill9(self) -> None:
        """End it hard. It comes back by itself, on the same port."""
        assert self.pid is not None
        os.kill(self.pid, signal.SIGKILL)

    def pause(self) -> None:
        """Freeze it (SIGSTOP)."""
        assert self.pid is not None
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Thaw it (SIGCONT)."""
        assert self.pid is not None
        os.kill(self.pid, signal.SIGCONT)


@asynccontextmanager
async def nats_server(
    *,
    users: bool = False,
    layout: Layout = SMALL,
    directory: Path | None = None,
    extra: Sequence[str] = (),
) -> AsyncIterator[NatsServer]:
    """A server that runs now: `url`, `url_of(user)`, `passwords`, `pid`, `kill9()`, `pause()`, `resume()`.

    `users=True`: the users of `access.py`, each with the password `pw-<name>`; else everything is allowed.
    """
    own = Path(tempfile.mkdtemp(prefix="runlane-nats-")) if directory is None else directory
    passwords = {user.name: f"pw-{user.name}" for user in broker_users(layout)} if users else None
    server = NatsServer(directory=own, layout=layout, passwords=passwords, extra=tuple(extra))
    try:
        async with server:
            yield server
    finally:
        if directory is None:
            shutil.rmtree(own, ignore_errors=True)
