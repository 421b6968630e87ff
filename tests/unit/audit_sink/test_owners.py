"""The worker behind a lease, as the run's log says it."""

from collections.abc import AsyncIterator

from runlane.audit_sink import records
from runlane.audit_sink.chain import BEGINNING, Chains, encoded, seal
from runlane.audit_sink.owners import Owners
from runlane.audit_sink.records import SourceMessage
from runlane.kernel.direct import Page, StoredMessage
from runlane_contracts import events
from runlane_contracts.codec import encode
from runlane_contracts.envelope import Actor, Commit
from runlane_contracts.lifecycle import RunLifecycle, draft, place
from runlane_contracts.subjects import Subjects

SUBJECT = Subjects("rl").log("acme", "run_1")
ASK = events.ApprovalRequested(approval_id="a1", description="d", risk="r", version=1, action_digest="d")


class Log:
    """A run of two owners, commit by commit."""

    def __init__(self) -> None:
        self.messages: list[SourceMessage] = []
        self.reads = 0
        self.hidden = 0

    def wrote(self, payload: events.Payload, lease_epoch: int = 0) -> SourceMessage:
        run, seq = RunLifecycle(tenant_id="acme", run_id="run_1"), len(self.messages) + 1
        facts = place(
            run, [draft(payload)], lease_epoch=lease_epoch, actor=Actor(kind="agent", id="whoever"),
            occurred_at="2026-03-01T00:00:00.000000Z", event_ids=[f"evt_{seq}"],
        )  # fmt: skip
        commit = Commit(commit_id="c", tenant_id="acme", run_id="run_1", first_sequence=1, facts=facts)
        self.messages.append(SourceMessage("RL_LOG_0", seq, 10**18, SUBJECT, encode(commit)))
        return self.messages[-1]

    async def pages(self, stream: str, subject: str, start_seq: int = 1) -> AsyncIterator[Page]:
        assert (stream, subject, start_seq) == ("RL_LOG_0", SUBJECT, 1)
        self.reads += 1
        there = self.messages[: len(self.messages) - self.hidden]
        yield Page([StoredMessage(one.subject, one.seq, one.time_ns, {}, one.data) for one in there], 0)


async def actors(owners: Owners, message: SourceMessage) -> list[str]:
    return [entry.actor.id for entry in await owners.named(message, records.of_commit(message))]


async def test_a_fact_of_an_owner_names_its_worker_whatever_it_says_and_whenever_the_sink_began() -> None:
    """To see it fail: let `named` return the entries as they are."""
    log = Log()
    log.wrote(events.RunLeased(lease_epoch=1, worker_id="w1"))
    first = log.wrote(ASK, lease_epoch=1)
    owners = Owners(log)
    assert await actors(owners, first) == ["w1@lease_epoch_1"]
    lost = log.wrote(events.RunLeased(lease_epoch=9, worker_id="liar"), lease_epoch=1)
    taken = log.wrote(events.RunLeased(lease_epoch=2, worker_id="w2"))
    second = log.wrote(ASK, lease_epoch=2)
    unheard = log.wrote(ASK, lease_epoch=9)
    for one in (lost, taken):
        await owners.named(one, records.of_commit(one))
    assert await actors(owners, second) == ["w2@lease_epoch_2"]
    assert await actors(owners, unheard) == ["lease_epoch_9"], "an owner cannot give itself a lease"
    assert log.reads == 1
    assert await actors(Owners(log), second) == ["w2@lease_epoch_2"]
    owners.forget()
    assert await actors(owners, first) == ["w1@lease_epoch_1"], "read again, as after another sink was active"
    assert log.reads == 3


async def test_a_log_that_is_read_from_behind_is_read_again() -> None:
    log = Log()
    log.wrote(events.RunLeased(lease_epoch=1, worker_id="w1"))
    owners, asked, log.hidden = Owners(log), log.wrote(ASK, lease_epoch=1), 2
    assert await actors(owners, asked) == ["lease_epoch_1"]
    log.hidden = 0
    assert await actors(owners, asked) == ["w1@lease_epoch_1"]


async def test_records_from_before_and_after_make_one_chain_that_verifies() -> None:
    log = Log()
    log.wrote(events.RunLeased(lease_epoch=1, worker_id="w1"))
    asked = log.wrote(ASK, lease_epoch=1)
    (before,) = records.of_commit(asked)
    (after,) = await Owners(log).named(asked, [before])
    chains = Chains({})
    for entry in (before, after):
        head = chains.heads.get("acme", BEGINNING)
        chains.take("acme", encoded(seal(entry, head, "RL_LOG_0=e:1;open=1")), "here")
    assert chains.records == 2
