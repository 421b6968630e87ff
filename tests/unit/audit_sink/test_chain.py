"""The chain by itself, and what the sealer makes of batches, failures and other sinks."""

import pytest

from runlane.audit_sink.chain import BEGINNING, ChainFault, Head, checkpoint_of, encoded, hash_of, seal
from runlane.audit_sink.progress import NOTHING, Place, Progress, Reached, progress_of
from runlane.kernel.errors import Overloaded, Retryable
from runlane_contracts.audit import PLATFORM
from runlane_contracts.codec import decode_audit_record
from support.audit import EPOCH, KEY, STREAM, MemoryAudit, a_message, a_sealer, an_entry, check


def test_a_record_names_the_one_before_it():
    first = seal(an_entry(), BEGINNING, ";open=1")
    second = seal(an_entry(number=2), Head(first.sequence, first.hash), ";open=1")
    assert (first.sequence, second.sequence) == (1, 2)
    assert second.prev_hash == first.hash == hash_of(first)
    assert decode_audit_record(encoded(second)) == second


@pytest.mark.parametrize(
    "text", ["RL_LOG_0=abcd2345:12;open=41", "A=x:1+2,B=y:0;open=3", ";open=1", f"KV_X={'e' * 8}:99999;open=7"]
)
def test_progress_is_read_as_it_was_written(text):
    assert progress_of(text).text() == text


@pytest.mark.parametrize("text", ["", "A=x:1", "A=x;open=1", "A=x:1;open=", "A=x:1,;open=1", "A=x:1+;open=1"])
def test_what_is_no_progress_is_refused(text):
    with pytest.raises(ValueError, match="progress"):
        progress_of(text)


def test_a_place_inside_a_message_says_what_of_it_is_left():
    assert [Reached(5, 2).left_of(seq, 4) for seq in (4, 5, 6)] == [4, 2, 0]
    assert [Reached(5).left_of(seq, 4) for seq in (4, 5, 6)] == [4, 4, 0]
    assert Progress({"A": Place("x", Reached(1))}).at("B", Place("y")).places.keys() == {"A", "B"}
    assert NOTHING.text() == ";open=1"


async def test_each_tenant_has_a_chain_of_its_own_and_a_signature_every_few_records():
    audit = MemoryAudit()
    sealer = a_sealer(audit, checkpoint_records=3)
    await sealer.seal(EPOCH, [a_message(n, an_entry("a", number=n), an_entry("b", number=n)) for n in range(1, 5)])
    chains = check(audit.messages)
    assert {tenant: head.sequence for tenant, head in chains.heads.items()} == {"a": 5, "b": 5}
    assert chains.covered == {"a": 3, "b": 3}
    assert [one.category for one in audit.records("a")] == ["run", "run", "run", "checkpoint", "run"]


async def test_what_is_given_again_is_sealed_once():
    audit = MemoryAudit()
    batch = [a_message(n, an_entry(number=n)) for n in range(1, 4)]
    await a_sealer(audit, checkpoint_records=100).seal(EPOCH, batch)
    again = a_sealer(audit, checkpoint_records=100)
    assert await again.resume(STREAM, EPOCH, 1) == 3
    await again.seal(EPOCH, [*batch, a_message(4, an_entry(number=4))])
    assert [one.source_position for one in audit.records()] == [f"{STREAM}/{n}" for n in range(1, 5)]


@pytest.mark.parametrize("stored", [False, True])
async def test_a_write_without_an_answer_is_settled_by_reading_the_stream(stored):
    audit = MemoryAudit()
    sealer = a_sealer(audit)
    batch = [a_message(1, an_entry(), an_entry(number=2), an_entry("b", number=3))]
    audit.fail, audit.store_before_failing = Retryable("no answer"), stored
    with pytest.raises(Retryable):
        await sealer.seal(EPOCH, batch)
    await sealer.seal(EPOCH, batch)
    assert len([one for one in audit.records() if one.category == "run"]) == 3
    check(audit.messages)


async def test_a_stream_cut_inside_a_message_goes_on_with_the_rest_of_it():
    audit = MemoryAudit()
    batch = [a_message(1, *(an_entry(number=n) for n in range(6)))]
    await a_sealer(audit, checkpoint_records=100).seal(EPOCH, batch)
    whole = [one.target.id for one in audit.records()]
    for cut in range(6):
        again = MemoryAudit()
        again.messages = audit.messages[:cut]
        sealer = a_sealer(again, checkpoint_records=100)
        assert await sealer.resume(STREAM, EPOCH, 1) == 0
        await sealer.seal(EPOCH, batch)
        assert [one.target.id for one in again.records()] == whole
        check(again.messages)


async def test_two_sinks_at_once_write_one_chain():
    """In `Draft.message`, let `begin` be 0: what the other one sealed meanwhile is sealed again."""
    audit = MemoryAudit()
    one, other = a_sealer(audit), a_sealer(audit)
    for n in range(1, 10, 2):
        await one.seal(EPOCH, [a_message(n, an_entry(number=n))])
        await other.seal(EPOCH, [a_message(n, an_entry(number=n)), a_message(n + 1, an_entry(number=n + 1))])
    positions = [record.source_position for record in audit.records() if record.category == "run"]
    assert positions == [f"{STREAM}/{n}" for n in range(1, 11)]
    assert one.stats.conflicts
    check(audit.messages)


async def test_a_full_stream_is_said_and_waited_for():
    audit = MemoryAudit()
    sealer = a_sealer(audit)
    audit.fail = Overloaded("maximum bytes exceeded")
    with pytest.raises(Overloaded):
        await sealer.seal(EPOCH, [a_message(1, an_entry())])
    assert sealer.stats.trouble == "maximum bytes exceeded"
    await sealer.seal(EPOCH, [a_message(1, an_entry())])
    assert (sealer.stats.trouble, len(audit.messages)) == ("", 1)


async def test_what_a_source_lost_is_recorded_once():
    audit = MemoryAudit()
    sealer = a_sealer(audit, checkpoint_records=100)
    await sealer.seal(EPOCH, [a_message(2, an_entry(number=2))])
    assert await sealer.resume(STREAM, EPOCH, 10) == 9
    assert await sealer.resume(STREAM, EPOCH, 10) == 9
    (lost,) = audit.records(PLATFORM)
    assert (lost.outcome, lost.target.id, lost.count) == ("lost", f"{STREAM}:3-9", 7)


async def test_a_source_that_was_made_anew_is_recorded_and_sealed_from_its_beginning():
    audit = MemoryAudit()
    sealer = a_sealer(audit, checkpoint_records=100)
    await sealer.seal(EPOCH, [a_message(5, an_entry(number=5))])
    assert await sealer.resume(STREAM, "another0", 1) == 0
    await sealer.seal("another0", [a_message(1, an_entry(number=1))])
    assert [one.outcome for one in audit.records()] == ["recorded", "replaced", "recorded"]


async def test_records_that_wait_for_a_signature_get_one_in_time_also_after_a_restart():
    audit = MemoryAudit()
    await a_sealer(audit, checkpoint_records=100).seal(EPOCH, [a_message(1, an_entry("a"), an_entry("b", number=2))])
    now = 0.0
    sealer = a_sealer(audit, checkpoint_records=100, clock=lambda: now)
    assert await sealer.checkpoint(60) == 0
    now = 61.0
    assert await sealer.checkpoint(60) == 2
    assert await sealer.checkpoint(0) == 0
    assert check(audit.messages).covered == {"a": 1, "b": 1}


async def test_a_batch_larger_than_one_write_is_sealed_whole():
    audit = MemoryAudit()
    sealer = a_sealer(audit, checkpoint_records=2)
    await sealer.seal(EPOCH, [a_message(1, *(an_entry(number=n) for n in range(1700))), a_message(2, an_entry())])
    assert len([one for one in audit.records() if one.category == "run"]) == 1701
    assert audit.writes > 1
    check(audit.messages)


def test_a_checkpoint_of_a_key_that_is_not_trusted_is_a_fault():
    first = seal(an_entry(), BEGINNING, ";open=1")
    head = Head(first.sequence, first.hash)
    forged = seal(an_entry(), head, ";open=1", checkpoint_of("acme", head, "0" * 16, KEY.sign))
    from support.audit import Kept  # noqa: PLC0415

    messages = [Kept(n, "rl.audit.acme.run", ";open=1", encoded(one)) for n, one in enumerate([first, forged], 1)]
    with pytest.raises(ChainFault, match=r"record 2 .*key 0000000000000000, which is not known"):
        check(messages)
