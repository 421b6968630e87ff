"""A command whose gateway died between recording and sending it is found, and given up under its own id."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from runlane.command_gateway.intake import Intake, Intent
from runlane.command_gateway.outcomes import Outcomes
from runlane.command_gateway.strays import PAGE_MESSAGES, Strays
from runlane.kernel.clock import new_id
from runlane.kernel.direct import Page, StoredMessage, StreamState
from runlane.kernel.errors import Retryable
from runlane.kernel.ledger import Ledger
from runlane.kernel.publisher import PubAck
from runlane_contracts.codec import decode_command, timestamp
from runlane_contracts.commands import GIVE_UP, CancelRun, Command, LedgerEntry, LedgerStatus, command_id_of
from runlane_contracts.envelope import Actor
from runlane_contracts.headers import COMMIT_ID
from runlane_contracts.subjects import RunAddress, Subjects
from support.buckets import MemoryBucket

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class World:
    """A gateway that can die before it sends, and the next one."""

    def __init__(self) -> None:
        self.at = NOW
        self.bucket = MemoryBucket()
        self.times: dict[int, int] = {}
        self.sent: list[tuple[str, Command]] = []
        self.dies = False
        self.ledger = Ledger(self.bucket)
        self.intake = Intake(
            ledger=self.ledger, publisher=self, outcomes=Outcomes(self.ledger.find, look_every_s=60),
            subjects=Subjects("rl"), now=lambda: self.at, new_id=new_id,
        )  # fmt: skip
        self.strays = self.a_gateway()
        self.read: list[int] = []

    def a_gateway(self) -> Strays:
        return Strays(self, "RL_LEDGER", self.intake.give_up, now=lambda: self.at, older_than_s=20)

    async def asked(self, key: str, *, by: str = "ada") -> None:
        run, who = RunAddress("demo", "run_1"), Actor(kind="user", id=by)
        intent = Intent(run=run, payload=CancelRun(reason=key), by=who, idempotency_key=key)
        try:
            await self.intake.submit(intent, wait_s=0)
        except Retryable:
            assert self.dies
        self._stamp()

    def _stamp(self) -> None:
        for one in self.bucket.entries():
            self.times.setdefault(one.revision, int(self.at.timestamp() * 1e9))

    async def settled(self, key: str) -> LedgerEntry:
        known = await self.ledger.find("demo", command_id_of("demo", key))
        assert known is not None
        settled_at = timestamp(self.at)
        outcome = msgspec.structs.replace(known, status=LedgerStatus.APPLIED, settled_at=settled_at)
        settled = await self.ledger.settle(outcome)
        self._stamp()
        return settled

    # -- what the gateway talks to ---------------------------------------------------------------------------

    async def publish(
        self, subject: str, data: bytes, headers: dict[str, str] | None = None, *, timeout_s: float = 5.0
    ) -> PubAck:
        if self.dies:
            raise Retryable("killed")
        assert headers is not None
        self.sent.append((headers[COMMIT_ID], decode_command(data)))
        return PubAck(stream="RL_COMMAND", seq=len(self.sent), duplicate=False)

    async def stream_state(self, stream: str) -> StreamState:
        assert stream == "KV_RL_LEDGER"
        last = max((entry.revision for entry in self.bucket.entries()), default=0)
        return StreamState(stream, "e1", 1, last, last, 0)

    async def pages(
        self, stream: str, subject: str, start_seq: int = 1, *, max_messages: int = PAGE_MESSAGES
    ) -> AsyncIterator[Page]:
        assert (stream, subject) == ("KV_RL_LEDGER", "$KV.RL_LEDGER.>")
        found = sorted(
            (one for one in self.bucket.entries() if one.revision >= start_seq), key=lambda one: one.revision
        )
        self.read += [one.revision for one in found]
        yield Page([StoredMessage(one.key, one.revision, self.times[one.revision], {}, one.value) for one in found], 0)


async def test_a_command_that_was_recorded_and_never_sent_is_given_up_once_it_is_old_enough() -> None:
    """To see it fail: let `sweep` return at once; then it stays accepted until it is forgotten."""
    world = World()
    world.dies = True
    await world.asked("stray")
    assert b"reason" not in b"".join(one.value for one in world.bucket.entries()), "P8: the ledger holds no content"
    world.dies = False
    await world.strays.sweep()
    assert world.sent == [], "it may be on its way"
    world.at += timedelta(seconds=21)
    await world.strays.sweep()
    ((message_id, command),) = world.sent
    assert message_id == command.command_id == command_id_of("demo", "stray")
    assert (command.type, bytes(command.payload), command.issued_at) == (GIVE_UP, b"{}", timestamp(NOW))
    assert command.issued_by == Actor(kind="service", id="command_gateway")
    await world.strays.sweep()
    assert len(world.sent) == 1


async def test_what_has_an_outcome_is_not_given_up_and_each_entry_is_read_once() -> None:
    world = World()
    for number in range(3):
        await world.asked(f"k{number}")
        await world.settled(f"k{number}")
    world.at += timedelta(seconds=60)
    await world.strays.sweep()
    assert len(world.sent) == 3
    assert len(world.read) == 3
    await world.strays.sweep()
    assert len(world.read) == 3


async def test_what_could_not_be_given_up_is_the_next_time() -> None:
    world = World()
    world.dies = True
    await world.asked("stray")
    world.at += timedelta(seconds=21)
    with pytest.raises(Retryable):
        await world.strays.sweep()
    world.dies = False
    await world.a_gateway().sweep()
    await world.strays.sweep()
    assert [command.idempotency_key for _, command in world.sent] == ["stray", "stray"], "twice, under one message id"


async def test_who_looks_at_a_command_has_it_given_up_and_not_again_at_each_look() -> None:
    world = World()
    world.dies = True
    await world.asked("stray")
    world.dies = False
    entry = await world.intake.known("demo", command_id_of("demo", "stray"))
    assert entry is not None
    await world.strays.look(entry)
    assert world.sent == []
    world.at += timedelta(seconds=21)
    for _ in range(3):
        await world.strays.look(entry)
    assert len(world.sent) == 1
    await world.strays.look(await world.settled("stray"))
    assert len(world.sent) == 1


async def test_who_repeats_a_request_in_time_has_it_sent() -> None:
    world = World()
    world.dies = True
    await world.asked("stray")
    world.dies = False
    world.at += timedelta(seconds=10)
    await world.asked("stray")
    ((message_id, command),) = world.sent
    assert (message_id, command.type, command.issued_at) == (command.command_id, "run.cancel", timestamp(NOW))
