"""Commands are settled once, wherever the supervisor dies in between."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from runlane.kernel.clock import new_id
from runlane.kernel.delivery import Delivery
from runlane.kernel.errors import Permanent, Retryable
from runlane.kernel.ledger import Ledger
from runlane.kernel.memory_event_log import MemoryEventLog
from runlane.kernel.publisher import PubAck
from runlane.kernel.run_log import RunLogs
from runlane.kernel.verdict import DONE, DeadLetter
from runlane.kernel.work import WorkItem
from runlane.run_supervisor.dispatch import Dispatcher
from runlane.run_supervisor.handler import CommandHandler, is_urgent
from runlane.run_supervisor.meters import Meters
from runlane_contracts.codec import decode_ledger_entry, encode, timestamp
from runlane_contracts.commands import GIVE_UP, Command, LedgerEntry, LedgerStatus
from runlane_contracts.envelope import Actor, Commit
from runlane_contracts.subjects import RunAddress, Subjects
from support.buckets import MemoryBucket

RUN = RunAddress("demo", "run_1")


class Work:
    """The WORK stream: what lies in it, each message id once."""

    def __init__(self) -> None:
        self.refuse_next = 0
        self.items: dict[str, WorkItem] = {}

    async def publish(self, subject: str, data: bytes, headers: Any = None, *, timeout_s: float = 5.0) -> PubAck:
        if self.refuse_next:
            self.refuse_next -= 1
            raise Retryable("full")
        assert subject == "rl.work.demo.default"
        self.items[headers["Nats-Msg-Id"]] = msgspec.json.decode(data, type=WorkItem)
        return PubAck("RL_WORK", len(self.items))


class World:
    def __init__(self) -> None:
        self.at = datetime(2026, 1, 1, tzinfo=UTC)
        self.log, self.bucket, self.work = MemoryEventLog(), MemoryBucket(), Work()
        self.ledger = Ledger(self.bucket)
        self.woken: list[tuple[str, LedgerEntry]] = []

    def now(self) -> datetime:
        return self.at

    def handler(self, log: Any = None) -> CommandHandler:
        """A fresh one, as after a crash."""

        async def wake(subject: str, data: bytes) -> None:
            self.woken.append((subject, decode_ledger_entry(data)))

        return CommandHandler(
            run_logs=RunLogs(log or self.log, now=self.now, new_id=new_id), ledger=self.ledger,
            dispatcher=Dispatcher(self.work, Subjects()), wake=wake, subjects=Subjects(), meters=Meters(),
            expiry_s=3600, now=self.now,
        )  # fmt: skip

    async def accepted(self, command: Command) -> Delivery:
        await self.ledger.accept(LedgerEntry(
            command_id=command.command_id, idempotency_key="k", type=command.type, tenant_id=command.tenant_id,
            run_id=command.run_id, fingerprint="f", status=LedgerStatus.ACCEPTED, accepted_at=command.issued_at,
        ))  # fmt: skip
        return delivery(command)

    async def entry(self, command: Command) -> LedgerEntry:
        found = await self.ledger.find(command.tenant_id, command.command_id)
        assert found is not None
        return found

    async def types(self) -> list[str]:
        return [fact.type async for stored in self.log.read(RUN) for fact in stored.commit.facts]

    def command(self, type_: str, command_id: str = "cmd_1", **payload: Any) -> Command:
        return Command(
            command_id=command_id, idempotency_key="k", type=type_, tenant_id="demo", run_id="run_1",
            issued_at=timestamp(self.at), issued_by=Actor(kind="user", id="u"),
            payload=Raw(msgspec.json.encode(payload)),
        )  # fmt: skip


def delivery(command: Command, subject: str = "rl.cmd.00.demo.run_1") -> Delivery:
    return Delivery(subject, encode(command), {}, "RL_COMMAND", 1, 1, 1, 0, 0, "")


async def test_a_start_is_written_handed_out_settled_and_told() -> None:
    world = World()
    start = world.command("run.start", agent="a")
    assert await world.handler().handle(await world.accepted(start)) == DONE
    assert await world.types() == ["run.created"]
    item = WorkItem(tenant_id="demo", run_id="run_1", agent="a", attempt=1)
    assert world.work.items == {"work/demo/run_1/1": item}
    entry = await world.entry(start)
    assert (entry.status, entry.applied_sequence, entry.fingerprint) == (LedgerStatus.APPLIED, 1, "f")
    assert world.woken == [("rl.outcome.demo.cmd_1", entry)]


async def test_an_external_run_is_not_handed_out() -> None:
    world = World()
    start = world.command("run.start", agent="a", dispatch="external")
    await world.handler().handle(await world.accepted(start))
    assert world.work.items == {}


async def test_a_run_is_told_applied_only_once_it_can_be_found_by_a_worker() -> None:
    world = World()
    start = world.command("run.start", agent="a")
    order = await world.accepted(start)
    world.work.refuse_next = 1
    with pytest.raises(Retryable):
        await world.handler().handle(order)
    assert (await world.entry(start)).status is LedgerStatus.ACCEPTED
    assert await world.handler().handle(order) == DONE
    assert await world.types() == ["run.created"]
    assert len(world.work.items) == 1
    assert (await world.entry(start)).applied_sequence == 1


async def test_dying_before_the_ledger_repeats_the_work_and_not_the_effect() -> None:
    world = World()
    await world.handler().handle(await world.accepted(world.command("run.start", agent="a")))
    say = world.command("message.send", "cmd_2", content="hi")
    order = await world.accepted(say)
    world.bucket.refuse_next = 1
    with pytest.raises(Retryable):
        await world.handler().handle(order)
    cancel = world.command("run.cancel", "cmd_3")
    await world.handler().handle(await world.accepted(cancel))
    assert await world.handler().handle(order) == DONE
    assert await world.types() == ["run.created", "message.completed", "run.cancelled"]
    entry = await world.entry(say)
    assert (entry.status, entry.applied_sequence) == (LedgerStatus.APPLIED, 2), "what it did, not what came later"


async def test_an_outcome_that_is_known_is_told_again_and_never_decided_again() -> None:
    world = World()
    early = world.command("run.cancel")
    order = await world.accepted(early)
    await world.handler().handle(order)
    assert (await world.entry(early)).status is LedgerStatus.REJECTED
    await world.handler().handle(await world.accepted(world.command("run.start", "cmd_2", agent="a")))
    await world.handler().handle(order)
    assert await world.types() == ["run.created"]
    rejection = (await world.entry(early)).rejection
    assert rejection is not None
    assert rejection.code == "run_not_found"
    assert [entry.status for _, entry in world.woken] == ["rejected", "applied", "rejected"]


async def test_many_deliveries_at_once_have_one_effect() -> None:
    world = World()
    await world.handler().handle(await world.accepted(world.command("run.start", agent="a")))
    order = await world.accepted(world.command("message.send", "cmd_2", content="hi"))
    await asyncio.gather(*(world.handler().handle(order) for _ in range(5)))
    assert await world.types() == ["run.created", "message.completed"]


async def test_a_command_nobody_could_apply_in_time_expires_without_effect() -> None:
    world = World()
    start = world.command("run.start", agent="a")
    order = await world.accepted(start)
    world.at += timedelta(hours=2)
    assert await world.handler().handle(order) == DONE
    assert await world.types() == []
    entry = await world.entry(start)
    assert entry.status is LedgerStatus.EXPIRED
    assert entry.rejection is not None


def given_up(command: Command) -> Command:
    return msgspec.structs.replace(command, type=GIVE_UP, payload=Raw(b"{}"))


async def test_a_command_that_was_never_sent_ends_and_has_no_effect_however_late_it_comes() -> None:
    """To see it fail: let `settle` treat `command.give_up` as any command."""
    world = World()
    start = world.command("run.start", agent="a")
    late = await world.accepted(start)
    assert await world.handler().handle(delivery(given_up(start))) == DONE
    entry = await world.entry(start)
    assert (entry.status, entry.type, entry.fingerprint) == (LedgerStatus.EXPIRED, "run.start", "f")
    assert entry.rejection is not None
    assert "never sent" in entry.rejection.detail
    assert world.woken == [("rl.outcome.demo.cmd_1", entry)]
    assert await world.handler().handle(late) == DONE
    assert await world.types() == []
    assert await world.entry(start) == entry


async def test_what_was_sent_after_all_is_done_whole_and_giving_up_changes_nothing() -> None:
    world = World()
    start = world.command("run.start", agent="a")
    order = await world.accepted(start)
    world.work.refuse_next = 1
    with pytest.raises(Retryable):
        await world.handler().handle(order)
    assert await world.handler().handle(delivery(given_up(start))) == DONE
    assert (await world.entry(start)).status is LedgerStatus.ACCEPTED, (
        "its facts are there, and nobody can find the run"
    )
    assert await world.handler().handle(order) == DONE
    done = await world.entry(start)
    assert (done.status, len(world.work.items)) == (LedgerStatus.APPLIED, 1)
    await world.handler().handle(delivery(given_up(start)))
    await world.handler().handle(delivery(given_up(world.command("run.cancel", "cmd_nobody_knows"))))
    assert await world.entry(start) == done
    assert await world.types() == ["run.created"]


async def test_what_was_applied_in_time_is_told_applied_however_late() -> None:
    world = World()
    start = world.command("run.start", agent="a")
    order = await world.accepted(start)
    world.bucket.refuse_next = 1
    with pytest.raises(Retryable):
        await world.handler().handle(order)
    world.at += timedelta(hours=2)
    await world.handler().handle(order)
    assert (await world.entry(start)).status is LedgerStatus.APPLIED


async def test_a_log_that_can_never_be_written_ends_the_waiting() -> None:
    class Broken(MemoryEventLog):
        async def commit(self, commit: Commit, *, after: Any) -> Any:
            raise Permanent("too large")

    world = World()
    start = world.command("run.start", agent="a")
    assert await world.handler(Broken()).handle(await world.accepted(start)) == DONE
    rejection = (await world.entry(start)).rejection
    assert rejection is not None
    assert rejection.code == "internal"


async def test_what_is_no_command_of_its_subject_is_buried() -> None:
    world = World()
    stray = delivery(world.command("run.start", agent="a"), "rl.cmd.00.other.run_1")
    assert isinstance(await world.handler().handle(stray), DeadLetter)
    broken = msgspec.structs.replace(stray, data=b"nonsense")
    assert isinstance(await world.handler().handle(broken), DeadLetter)
    assert await world.types() == []


def test_a_cancel_is_urgent_and_a_message_that_mentions_one_is_not() -> None:
    world = World()
    assert is_urgent(delivery(world.command("run.cancel")))
    assert not is_urgent(delivery(world.command("message.send", content={"type": "run.cancel"})))
    assert not is_urgent(Delivery("s", b'"type":"run.cancel"', {}, "S", 1, 1, 1, 0, 0, ""))


def with_id(order: Delivery, command_id: str = "cmd_1") -> Delivery:
    return msgspec.structs.replace(order, headers={"Nats-Msg-Id": command_id})


async def test_a_command_that_is_given_up_ends_in_the_ledger_and_its_waiter_is_told() -> None:
    """To see it fail: let `buried` return at once; the entry stays `accepted` until it ages out."""
    world = World()
    start = world.command("run.start", agent="a")
    order = with_id(await world.accepted(start))
    await world.handler().buried(msgspec.structs.replace(order, data=b"nonsense"))
    entry = await world.entry(start)
    assert entry.status is LedgerStatus.REJECTED
    assert entry.rejection is not None
    assert entry.rejection.code == "internal"
    assert entry.settled_at is not None
    assert world.woken == [("rl.outcome.demo.cmd_1", entry)]


async def test_a_command_that_is_given_up_after_its_facts_were_written_is_applied() -> None:
    world = World()
    start = world.command("run.start", agent="a")
    order = with_id(await world.accepted(start))
    world.work.refuse_next = 1
    with pytest.raises(Retryable):
        await world.handler().handle(order)
    await world.handler().buried(order)
    entry = await world.entry(start)
    assert (entry.status, entry.applied_sequence) == (LedgerStatus.APPLIED, 1)


async def test_a_command_whose_run_cannot_be_read_is_not_said_to_have_no_effect() -> None:
    class Unreadable(MemoryEventLog):
        def read(self, *_: Any, **__: Any) -> Any:
            raise ZeroDivisionError

    world = World()
    start = world.command("run.start", agent="a")
    await world.handler(Unreadable()).buried(with_id(await world.accepted(start)))
    rejection = (await world.entry(start)).rejection
    assert rejection is not None
    assert "look at the run" in (rejection.detail or "")


async def test_burying_what_has_an_outcome_or_is_not_known_changes_nothing() -> None:
    world = World()
    start = world.command("run.start", agent="a")
    order = with_id(await world.accepted(start))
    await world.handler().handle(order)
    before = (await world.entry(start), len(world.woken))
    await world.handler().buried(order)
    await world.handler().buried(with_id(order, "cmd_unknown"))
    await world.handler().buried(delivery(start))
    assert (await world.entry(start), len(world.woken)) == before
