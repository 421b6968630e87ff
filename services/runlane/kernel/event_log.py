"""The event log: where a commit becomes true.

A run is one subject; one message on it is one commit of 1…N facts. Two implementations stand behind this port,
in memory and on JetStream, and pass the same conformance suite.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

import msgspec

from runlane_contracts import events
from runlane_contracts.codec import decode_fact
from runlane_contracts.cursor import Position
from runlane_contracts.envelope import Commit, Fact, RawCommit
from runlane_contracts.subjects import RunAddress

NOTHING = Position("", 0, 0)
"""The position of a run that has no commit yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCommit:
    """A commit and where the log keeps it. `position.sequence` is that of its last fact."""

    position: Position
    commit: Commit
    recorded_at: str
    """RFC 3339; when the broker stored it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRawCommit:
    """The same with its facts as bytes, and the message it came in, for those who only pass it on."""

    position: Position
    commit: RawCommit
    recorded_at: str
    headers: dict[str, str]
    data: bytes


def compaction_in(commit: Commit | RawCommit) -> events.LogCompacted | None:
    """What a commit says was taken out before it, if it says so with its first fact, for all from 1 to there."""
    try:
        fact = commit.facts[0] if isinstance(commit, Commit) else decode_fact(commit.facts[0])
        return compaction_of(fact)
    except (IndexError, msgspec.MsgspecError):
        return None


def compaction_of(fact: Fact) -> events.LogCompacted | None:
    """The payload of a `log.compacted` that covers everything before it."""
    if fact.type != events.LogCompacted.TYPE or fact.lease_epoch:
        return None
    payload = events.decode_payload(fact.type, fact.payload)
    if not isinstance(payload, events.LogCompacted):
        return None
    return payload if (payload.from_sequence, payload.to_sequence) == (1, fact.sequence - 1) else None


class EventLog(Protocol):
    """Commit, read, tail.

    Promises: a commit whose call returned is durable, once, at the returned position; commits of a run are
    gapless in `sequence`, and a reader that finds a hole raises `Gap`; a position names the stream's
    incarnation, so a recreated stream is never mistaken for the old one: reading after a position of the old
    one raises `StreamReplaced`, committing after it is a `Conflict`.

    What was archived is taken out of the front of a run, up to a commit that says so (`log.compacted`). Such a run
    is read from there; reading after a position before it raises `Compacted`, after the last one taken out it goes
    on. A front that is missing without that is a `Gap` like any other.

    What was put there and is no commit of the run, or holds facts that are no good, is read as the view shows it:
    `log.quarantined` in the place of each. It stops nobody.

    A position may point inside a commit. Reading after it yields that commit again, whole; its reader skips
    the facts it has.
    """

    async def commit(self, commit: Commit, *, after: Position) -> Position:
        """Append if `after` is still the run's last position (`NOTHING` for a new run).

        An answer that got lost is settled before this returns: it looks whether the commit id is there.

        Raises:
            Conflict: the run is elsewhere; nothing was written.
            Retryable: the log could not be reached, or is full; nothing is known to be written, and the same
                commit (same `commit_id`) may be tried again.
            Permanent: the commit can never be written (too large, misaddressed).
        """
        ...

    async def head(self, run: RunAddress) -> StoredCommit | None:
        """The run's last commit, or None. Raises Retryable."""
        ...

    def read(self, run: RunAddress, *, after: Position = NOTHING) -> AsyncGenerator[StoredCommit, None]:
        """Every commit after a position, up to the end as it is now; in order, without a gap. Raises Retryable."""
        ...

    def tail(self, run: RunAddress, *, after: Position = NOTHING) -> AsyncGenerator[StoredCommit, None]:
        """Every commit after a position, then new ones as they come, for ever; survives reconnects."""
        ...
