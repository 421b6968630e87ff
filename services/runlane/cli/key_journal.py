"""Who let whom in or out, on its way into the audit.

A change of a key file is written down beside it before it counts, and handed to the audit when the broker answers: at
once, or by the next verb that changes a key, or by the next `runlane up`. So a key can be revoked while the broker is
down, and the audit learns of it all the same. Of a key its id; never the key.
"""

import os
import pwd
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from runlane.cli.failures import Failure
from runlane.cli.state_dir import write_private
from runlane.hosting.api_keys import KeyRecord
from runlane.kernel.clock import NewId, Now
from runlane.kernel.connection import Connection
from runlane.kernel.publisher import WindowedPublisher
from runlane_contracts.access import OPERATOR
from runlane_contracts.audit import Refusal, Target
from runlane_contracts.codec import encode, timestamp
from runlane_contracts.envelope import Actor
from runlane_contracts.headers import COMMIT_ID
from runlane_contracts.streams import Layout

ADDED, REVOKED = "added", "revoked"


class Change(Struct, frozen=True):
    """One line of the journal. The id is the message's: handed over twice, it is stored once."""

    message_id: str
    record: Refusal


@dataclass(frozen=True, slots=True)
class KeyJournal:
    """Changes that the audit has not got yet. Whoever reads or writes it holds the key file's lock."""

    path: Path

    def changes(self) -> list[Change]:
        """The oldest first. Raises Failure."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=list[Change])
        except FileNotFoundError:
            return []
        except (OSError, msgspec.MsgspecError) as exc:
            raise Failure("key_journal_unreadable", f"{self.path}: {exc}") from exc

    def keep(self, changes: Iterable[Change]) -> None:
        """Exactly these, from now on."""
        kept = list(changes)
        if kept:
            write_private(self.path, msgspec.json.format(msgspec.json.encode(kept), indent=1))
        else:
            self.path.unlink(missing_ok=True)

    async def hand_over(self, connection: Connection, layout: Layout) -> int:
        """Give all of them to the audit, and forget them. Returns how many. Raises Failure, KernelError."""
        changes = self.changes()
        publisher = WindowedPublisher(connection)
        try:
            for change in changes:
                subject = layout.subjects.intake(change.record.tenant_id, OPERATOR)
                await publisher.publish(subject, encode(change.record), {COMMIT_ID: change.message_id})
        finally:
            await publisher.close()
        self.keep(())
        return len(changes)


def changes_between(
    before: Iterable[KeyRecord], after: Iterable[KeyRecord], *, who: str, now: Now, new_id: NewId
) -> Iterator[Change]:
    """What is to be recorded when one list of keys takes the place of another."""
    was, is_ = {one.sha256: one for one in before}, {one.sha256: one for one in after}
    for records, others, outcome in ((is_, was, ADDED), (was, is_, REVOKED)):
        for sha256, record in records.items():
            if sha256 not in others:
                yield Change(new_id("key"), _recorded(record, outcome, who, timestamp(now())))


def _recorded(record: KeyRecord, outcome: str, who: str, at: str) -> Refusal:
    return Refusal(
        tenant_id=record.tenant_id, time=at, service=OPERATOR, actor=Actor(kind="user", id=who),
        action="keys.add" if outcome == ADDED else "keys.revoke", target=Target(kind="key", id=record.key_id),
        outcome=outcome,
    )  # fmt: skip


def who_asks() -> str:
    """The person at the terminal, as the system knows them; behind `sudo`, who became root by it."""
    uid = os.getuid()
    if uid == 0 and (name := os.environ.get("SUDO_USER")):
        return name
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # a container knows its user by number only
        return f"uid_{uid}"
