"""One message of a run after the other, each judged on what came before it.

In the VIEW everything is as it should be, or the reader stops. In the LOG lies what anybody with the right to write it
put there: what is no commit, or holds facts that are no good, is read as the view shows it, `log.quarantined` under
the same `sequence`. So one bad message stops nobody who writes after it, and all agree on where it ends.
"""

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import Raw

from runlane.kernel.direct import StoredMessage
from runlane.kernel.errors import Compacted, Gap
from runlane.kernel.event_log import StoredCommit, StoredRawCommit, compaction_in
from runlane.kernel.quarantine import Examined, Origin, examine, fault_of
from runlane_contracts import events
from runlane_contracts.codec import decode_commit, decode_fact, decode_raw_commit, encode, timestamp_of_ns
from runlane_contracts.cursor import Position
from runlane_contracts.envelope import Commit, RawCommit
from runlane_contracts.headers import EXPECTED_LAST_SUBJECT_SEQUENCE
from runlane_contracts.subjects import RunAddress

_UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)


class _Stored(Protocol):
    @property
    def position(self) -> Position: ...
    @property
    def commit(self) -> Commit | RawCommit: ...


T = TypeVar("T", bound=_Stored)

Make = Callable[[str, StoredMessage, Examined | None], T]
"""A stored message as its readers want it: as it stands, or, where that will not do, as it was judged.

Raises MsgspecError, UnicodeError, RecursionError: it has to be judged.
"""


class Sequel(Generic[T]):
    """The messages of one run of one stream, in order, after a place."""

    def __init__(
        self, run: RunAddress, make: Make[T], *, epoch: str, sequence: int = 0, seq: int = 0, is_judged: bool
    ) -> None:
        self.sequence = sequence
        """Of the last fact."""
        self.epoch = epoch
        """Of the stream."""
        self._run, self._make, self._seq, self._is_judged = run, make, seq, is_judged

    def next(self, message: StoredMessage) -> T:
        """What the message that follows holds.

        Raises:
            Gap: facts before it are missing.
            Compacted: they are in the archive.
        """
        stored = self._judged(message) if self._is_judged else self._make(self.epoch, message, None)
        if stored.commit.first_sequence != self.sequence + 1:
            self._check_hole(stored, message.subject)
        self.sequence, self._seq = stored.position.sequence, message.seq
        return stored

    def again(self, message: StoredMessage) -> T | None:
        """The message at which the last position lies, if there is something in it after that position.

        Raises:
            Gap: it does not hold that position.
        """
        self._seq = message.seq
        try:
            stored = self._make(self.epoch, message, None)
            if self._is_judged and not _is_sound(stored.commit, self._run, message.data):
                return None
        except _UNREADABLE:
            if self._is_judged:
                return None  # nobody is given a place inside such a message: it is the end of it
            raise
        if not stored.commit.first_sequence <= self.sequence <= stored.position.sequence:
            raise Gap(f"{message.subject}: message {message.seq} does not hold {self.sequence}")
        if stored.position.sequence == self.sequence:
            return None
        self.sequence = stored.position.sequence
        return stored

    def _judged(self, message: StoredMessage) -> T:
        try:
            stored = self._make(self.epoch, message, None)
        except _UNREADABLE:
            return self._salvaged(message)
        commit = stored.commit
        if not _is_sound(commit, self._run, message.data):
            return self._salvaged(message)
        if commit.first_sequence == self.sequence + 1 or compaction_in(commit) is not None:
            return stored
        # Facts that were there are missing, or its writer counted wrong: the broker kept what it was written after.
        is_miscounted = commit.first_sequence <= self.sequence or self._follows(message)
        return self._salvaged(message) if is_miscounted else stored

    def _follows(self, message: StoredMessage) -> bool:
        return message.headers.get(EXPECTED_LAST_SUBJECT_SEQUENCE) == str(self._seq)

    def _salvaged(self, message: StoredMessage) -> T:
        return self._make(self.epoch, message, salvaged(self.epoch, self._run, message, self.sequence or None))

    def _check_hole(self, stored: T, subject: str) -> None:
        """A hole is one that the record itself declares, or a fault. Who begins at the beginning begins after it."""
        first = stored.commit.first_sequence
        if compaction_in(stored.commit) is None:
            raise Gap(f"{subject}: {first} follows {self.sequence} at message {stored.position.stream_seq}")
        if self.sequence:
            raise Compacted(f"{subject}: what follows {self.sequence} was archived, up to {first - 1}")


def salvaged(epoch: str, run: RunAddress, message: StoredMessage, head: int | None) -> Examined:
    """A message of the log as the view shows it. `head`: the run's last sequence before it, if that is known."""
    origin = Origin(epoch, message.seq, run, timestamp_of_ns(message.time_ns))
    return examine(message.data, message.headers, origin, head=head)


def _is_sound(commit: Commit | RawCommit, run: RunAddress, data: bytes) -> bool:
    if (commit.tenant_id, commit.run_id) != run or commit.first_sequence < 1 or not commit.facts:
        return False
    is_shallow = data.count(b"{") + data.count(b"[") <= events.MAX_NESTING
    try:
        if not data.isascii():
            data.decode()
        facts: Any = commit.facts if isinstance(commit, Commit) else map(decode_fact, commit.facts)
        return all(
            fault_of(fact, run, sequence, is_shallow=is_shallow) is None
            for sequence, fact in enumerate(facts, commit.first_sequence)
        )
    except _UNREADABLE:
        return False


def typed_commit(epoch: str, message: StoredMessage, judged: Examined | None) -> StoredCommit:
    """With its facts decoded."""
    commit: Commit
    if judged is None:
        commit = decode_commit(message.data)
    else:
        *_, tenant_id, run_id = message.subject.split(".")
        commit = Commit(
            commit_id=judged.commit_id,
            tenant_id=tenant_id,
            run_id=run_id,
            first_sequence=judged.first_sequence,
            facts=judged.facts,
        )
    position = Position(epoch, message.seq, commit.last_sequence)
    return StoredCommit(position=position, commit=commit, recorded_at=timestamp_of_ns(message.time_ns))


def raw_commit(epoch: str, message: StoredMessage, judged: Examined | None) -> StoredRawCommit:
    """With its facts as bytes."""
    if judged is None:
        commit = decode_raw_commit(message.data)
    else:
        plain = typed_commit(epoch, message, judged).commit
        facts = tuple(Raw(encode(fact)) for fact in plain.facts)
        commit = RawCommit(
            commit_id=plain.commit_id,
            tenant_id=plain.tenant_id,
            run_id=plain.run_id,
            first_sequence=plain.first_sequence,
            facts=facts,
        )
    return StoredRawCommit(
        position=Position(epoch, message.seq, commit.last_sequence),
        commit=commit,
        recorded_at=timestamp_of_ns(message.time_ns),
        headers=message.headers,
        data=message.data,
    )
