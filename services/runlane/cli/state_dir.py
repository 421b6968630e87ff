"""The folder of one `runlane up`: its lock, its secrets, what other verbs need to find it.

nats/            the broker's store
read.sqlite      the read store; can be folded again from the log
objects/         archives of runs, and content of facts; cannot be made again
keys.json        cursor keys, API keys, broker passwords, the audit's signing key; made once, readable by the owner only
api_keys.json    who is let in: keys by their hash; begins with those of keys.json, changed by `runlane keys`
connection.json  where it serves and as whom to ask; readable by the owner only
api_keys.unaudited.json  changes of keys that the audit has not got yet
lock             held while it runs
"""

import fcntl
import os
import secrets
import shlex
import shutil
import sys
from pathlib import Path
from typing import Self

import msgspec
from msgspec import Struct

from runlane_contracts.cursor import CursorKeys

DEFAULT = Path(".runlane")
TENANTS = ("demo", "other")


def option_for(state_dir: Path) -> str:
    """What a verb is told in a shell to find a state directory: nothing when it is the usual one."""
    return "" if state_dir == DEFAULT else f" --state-dir {shlex.quote(str(state_dir))}"


def program() -> str:
    """How a person called us, as it can be typed again: `make up` runs what is not on the PATH."""
    called = sys.argv[0]
    return "runlane" if shutil.which("runlane") or Path(called).name != "runlane" else called


class StateDirInUse(Exception):
    """Another process works on this folder."""


class StateDirBroken(Exception):
    """A file in the folder cannot be read; it is left as it is."""


class Secrets(Struct, frozen=True, kw_only=True):
    """What must be the same after a restart."""

    cursor_key_id: str
    cursor_keys: dict[str, str]  # id → hex
    api_keys: dict[str, str]  # tenant → token
    broker_passwords: dict[str, str]  # user → password
    audit_signing_key: str = ""  # Ed25519 seed, hex

    @classmethod
    def fresh(cls, broker_users: list[str]) -> Self:
        """New random secrets."""
        return cls(
            cursor_key_id="k1",
            cursor_keys={"k1": secrets.token_hex(32)},
            api_keys={tenant: f"rlk_{tenant}_{secrets.token_urlsafe(24)}" for tenant in TENANTS},
            broker_passwords={user: secrets.token_urlsafe(24) for user in broker_users},
            audit_signing_key=secrets.token_hex(32),
        )

    def keys(self) -> CursorKeys:
        """The cursor keys, ready to sign."""
        return CursorKeys(
            current=self.cursor_key_id, keys={key_id: bytes.fromhex(key) for key_id, key in self.cursor_keys.items()}
        )


class ConnectionInfo(Struct, frozen=True, kw_only=True):
    """How other verbs reach a running `runlane up`."""

    url: str
    nats_url: str  # the observer's
    operator_nats_url: str
    worker_nats_url: str
    subscriber_nats_url: str = ""
    tokens: dict[str, str]
    pid: int


class StateDir:
    """`with StateDir(path) as state:` holds the lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    @property
    def nats_store(self) -> Path:
        return self.path / "nats"

    @property
    def broker_log(self) -> Path:
        return self.nats_store / "server.log"

    @property
    def read_store_url(self) -> str:
        return f"sqlite+aiosqlite:///{self.path.absolute() / 'read.sqlite'}"

    @property
    def object_store_url(self) -> str:
        return str(self.path.absolute() / "objects")

    @property
    def api_keys(self) -> Path:
        return self.path / "api_keys.json"

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode().strip() or "unknown"
            os.close(descriptor)
            raise StateDirInUse(f"{self.path} is in use by process {holder}; choose another with --state-dir") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._lock = descriptor
        return self

    def __exit__(self, *_: object) -> None:
        (self.path / "connection.json").unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def secrets(self, broker_users: list[str]) -> Secrets:
        """The folder's secrets; made when it is new, completed when something was added since."""
        path = self.path / "keys.json"
        if not path.exists():
            return self._write_secrets(Secrets.fresh(broker_users))
        try:
            found = msgspec.json.decode(path.read_bytes(), type=Secrets)
        except (OSError, msgspec.MsgspecError) as exc:
            raise StateDirBroken(f"{path} cannot be read: {exc}") from exc
        missing = [user for user in broker_users if user not in found.broker_passwords]
        if not missing and found.audit_signing_key:
            return found
        more = {user: secrets.token_urlsafe(24) for user in missing}
        return self._write_secrets(
            msgspec.structs.replace(
                found,
                broker_passwords={**found.broker_passwords, **more},
                audit_signing_key=found.audit_signing_key or secrets.token_hex(32),
            )
        )

    def announce(self, info: ConnectionInfo) -> None:
        """Let other verbs find this process."""
        write_private(self.path / "connection.json", msgspec.json.encode(info))

    def _write_secrets(self, made: Secrets) -> Secrets:
        write_private(self.path / "keys.json", msgspec.json.encode(made))
        return made


def connection_info(path: Path) -> ConnectionInfo | None:
    """What a running `runlane up` on this folder announced, or None."""
    try:
        return msgspec.json.decode((path / "connection.json").read_bytes(), type=ConnectionInfo)
    except (OSError, msgspec.MsgspecError):
        return None


def audit_signing_key(path: Path) -> str:
    """The seed that signs the audit of this folder, or nothing."""
    try:
        return msgspec.json.decode((path / "keys.json").read_bytes(), type=Secrets).audit_signing_key
    except (OSError, msgspec.MsgspecError):
        return ""


def write_private(path: Path, data: bytes) -> None:
    """Write whole or not at all, for the owner only."""
    part = path.with_suffix(".part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    part.replace(path)
