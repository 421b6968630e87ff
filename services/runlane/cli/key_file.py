"""A file of API keys, changed by a person while gateways read it: each change whole or not at all, one at a time."""

import fcntl
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from runlane.cli.failures import Failure
from runlane.cli.key_journal import KeyJournal, changes_between, who_asks
from runlane.cli.state_dir import write_private
from runlane.hosting.api_keys import KeyRecord, key_hash
from runlane.kernel.clock import NewId, Now, new_id, utc_now

Records = list[KeyRecord]


@dataclass(frozen=True, slots=True)
class KeyFile:
    """The keys of one installation, by their hash. What people change is kept in the journal for the audit."""

    path: Path
    now: Now = utc_now
    new_id: NewId = new_id
    who: Callable[[], str] = who_asks

    @property
    def journal(self) -> KeyJournal:
        """Changes that the audit has not got yet."""
        return KeyJournal(self.path.with_suffix(".unaudited.json"))

    def records(self) -> Records:
        """All that are let in. Raises Failure."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=Records)
        except FileNotFoundError as exc:
            raise Failure("no_key_file", f"{self.path} is not there; `runlane up` makes it") from exc
        except (OSError, msgspec.MsgspecError) as exc:
            raise Failure("key_file_unreadable", f"{self.path}: {exc}") from exc

    def begin_with(self, tokens: Iterable[tuple[str, str]]) -> None:
        """Of a new folder: the keys, in clear, of each tenant, with every right. What is there stays as it is."""
        if not self.path.exists():
            self._write([KeyRecord(tenant_id=tenant, subject=tenant, sha256=key_hash(token))
                         for tenant, token in tokens])  # fmt: skip

    def add(self, make: Callable[[str], KeyRecord], *, tenant_id: str) -> str:
        """Let in whom `make` describes, given the hash of the new key. Returns the key, which is kept nowhere."""
        token = new_token(tenant_id)
        with self._changing() as records:
            records.append(make(key_hash(token)))
        return token

    def revoke(self, named: str) -> Records:
        """Let those in no more whose id begins with a text, or the one whose key it is. Raises Failure."""
        with self._changing() as records:
            hashed = key_hash(named)
            found = [one for one in records if one.sha256 == hashed or (named and one.sha256.startswith(named))]
            if not found:
                raise Failure("key_not_found", "no key has this id; `runlane keys list` shows them")
            if len(found) > 1:
                raise Failure("ambiguous_key", f"{len(found)} keys have an id that begins so")
            records.remove(found[0])
        return found

    @contextmanager
    def _changing(self) -> Iterator[Records]:
        with self.locked():
            before = self.records()
            records = list(before)
            yield records
            waiting = self.journal.changes()
            made = changes_between(before, records, who=self.who(), now=self.now, new_id=self.new_id)
            self.journal.keep([*waiting, *made])  # before it counts: nobody is let in unrecorded
            try:
                self._write(records)
            except OSError:
                self.journal.keep(waiting)
                raise

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone with the file and its journal. Raises Failure."""
        self.records()  # of a folder that is not there, the failure by its name; and no lock is left in it
        try:
            lock = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as exc:
            raise Failure("key_file_unwritable", f"{self.path}: {exc.strerror or exc}") from exc
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _write(self, records: Records) -> None:
        write_private(self.path, msgspec.json.format(msgspec.json.encode(records), indent=1))


def new_token(tenant_id: str) -> str:
    """A new key. What it begins with says what it is when it turns up where it should not."""
    return f"rlk_{tenant_id}_{secrets.token_urlsafe(24)}"
