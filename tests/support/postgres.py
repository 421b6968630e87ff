"""A private PostgreSQL on loopback, as a child of the test. A test that needs one fails without it."""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg

from support.nats import free_port


def _program(name: str) -> str:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    if found:
        return str(found[-1])
    elsewhere = shutil.which(name)
    if elsewhere is None:
        raise RuntimeError(f"no PostgreSQL server here ({name} is missing): apt-get install postgresql")
    return elsewhere


class PostgresServer:
    """A running server; every test gets an empty database of its own."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._databases = 0

    async def new_database(self) -> str:
        """The URL of an empty database."""
        self._databases += 1
        name = f"test_{self._databases}"
        connection = await asyncpg.connect(host="127.0.0.1", port=self._port, user="runlane", database="postgres")
        try:
            await connection.execute(f"CREATE DATABASE {name}")
        finally:
            await connection.close()
        return f"postgresql://runlane@127.0.0.1:{self._port}/{name}"


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A server on a fresh store, gone with the block. Not for durability: it does not fsync."""
    directory = Path(tempfile.mkdtemp(prefix="runlane-postgres-"))
    who = _ordinary_user(directory)
    data, port = directory / "data", free_port()
    subprocess.run(
        [_program("initdb"), "-D", data, "-A", "trust", "-U", "runlane", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"],
        check=True, stdout=subprocess.DEVNULL, cwd=directory, **who,
    )  # fmt: skip
    with (directory / "log").open("ab") as log:
        server = subprocess.Popen(
            [_program("postgres"), "-D", data, "-h", "127.0.0.1", "-p", str(port), "-k", directory, "-c", "fsync=off"],
            stdout=log, stderr=log, cwd=directory, **who,
        )  # fmt: skip
    try:
        _wait_until_ready(server, directory / "log")
        yield PostgresServer(port)
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        shutil.rmtree(directory, ignore_errors=True)


def _ordinary_user(directory: Path) -> dict[str, Any]:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    user = pwd.getpwnam("postgres")
    os.chown(directory, user.pw_uid, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _wait_until_ready(server: "subprocess.Popen[bytes]", log: Path, within_s: float = 30.0) -> None:
    give_up_at = time.monotonic() + within_s
    while b"ready to accept connections" not in log.read_bytes():
        if server.poll() is not None or time.monotonic() > give_up_at:
            raise RuntimeError(log.read_text()[-2000:])
        time.sleep(0.02)
