"""LOG into VIEW and SIGNAL on a real broker."""

import asyncio
import random

import msgspec
import pytest

from runlane.kernel.direct import StoredMessage
from runlane.redaction_filter.progress import LogReplaced
from runlane_contracts import events, headers
from runlane_contracts.codec import decode_commit, decode_fact, decode_json, encode
from runlane_contracts.envelope import Commit
from runlane_contracts.streams import Layout
from support import secrets
from support.lanes import Lanes, lanes
from support.nats import SMALL
from support.runs import Story

TOKEN = secrets.tokens()["github"][1]


def a_story(run_id: str, facts: int = 9, tenant_id: str = "acme") -> list[Commit]:
    chance = random.Random(run_id)
    story = Story(tenant_id, run_id).then(events.RunCreated(agent="a", input="go"))
    for number in range(1, facts):
        content = f"{run_id} {number} " + (f"use {TOKEN}" if chance.random() < 0.3 else "all is well")
        story.then(events.MessageCompleted(message_id=f"m{number}", role="assistant", content=content))
    return story.commits(size=3)


async def fill(broker: Lanes, runs: int, start: int = 0) -> int:
    last = 0
    for number in range(start, start + runs):
        for commit in a_story(f"run_{number}"):
            last = await broker.append(commit)
    return last


async def test_every_commit_appears_once_in_order_masked(broker: Lanes) -> None:
    async with broker.filter():
        last = await fill(broker, 5)
        view = await broker.view_reaches(last)
        signals = await broker.signals_reach(5 * 9)
    assert [int(one.headers[headers.LOG_POSITION].partition(":")[2]) for one in view] == list(range(1, last + 1))
    assert TOKEN.encode() not in b"".join(one.data for one in [*view, *signals])
    by_run: dict[str, list[int]] = {}
    for one in view:
        commit = decode_commit(one.data)
        by_run.setdefault(commit.run_id, []).extend(fact.sequence for fact in commit.facts)
        assert all(fact.recorded_at for fact in commit.facts)
    assert by_run == {f"run_{number}": list(range(1, 10)) for number in range(5)}
    assert [decode_fact(one.data).sequence for one in signals if decode_fact(one.data).run_id == "run_3"] == list(
        range(1, 10)
    )


async def test_what_was_written_before_the_filter_ran_is_derived_when_it_starts(broker: Lanes) -> None:
    last = await fill(broker, 3)
    async with broker.filter():
        await broker.view_reaches(last)


async def test_the_view_is_republished_live(broker: Lanes) -> None:
    live = await broker.connection.nc.subscribe("rl.live.acme.run_0")
    async with broker.filter():
        await fill(broker, 1)
        message = await live.next_msg(timeout=5)
    assert decode_commit(message.data).first_sequence == 1
    assert message.headers[headers.LOG_POSITION].endswith(":1")


async def test_a_poison_message_blocks_nobody_and_is_recorded(broker: Lanes) -> None:
    first, _, third = a_story("run_0")
    subject = broker.layout.subjects.log("acme", "run_0")
    async with broker.filter():
        await broker.append(first)
        await broker.append_raw(subject, b"\xff poison", {"Rl-First-Sequence": "4", "Rl-Last-Sequence": "6"})
        await broker.append_raw("rl.log.nowhere", b"{}")
        await broker.append(third)
        last = await fill(broker, 1, start=1)
        view = await broker.view_reaches(last)
        dead = await broker.dead()
        await broker.signals_reach(18)
    run = [fact for one in view if one.subject.endswith(".run_0") for fact in decode_commit(one.data).facts]
    assert [fact.sequence for fact in run] == list(range(1, 10))
    assert [fact.type for fact in run[3:6]] == ["log.quarantined"] * 3
    assert [decode_json(one.data)["stream_seq"] for one in dead] == [2, 3]
    assert b"poison" not in b"".join(one.data for one in dead)


async def test_a_repeated_commit_is_not_shown_again(broker: Lanes) -> None:
    first, second, _ = a_story("run_0")
    async with broker.filter():
        await broker.append(first)
        await broker.append(first)
        last = await broker.append(second)
        view = await broker.view_reaches(last)
    assert [fact.sequence for one in view for fact in decode_commit(one.data).facts] == [1, 2, 3, 4, 5, 6]
    # Also when the filter knows nothing of the run any more.
    async with broker.filter():
        last = await broker.append(first)
        view = await broker.view_reaches(last)
    assert decode_commit(view[-1].data).facts == ()
    assert (view[-1].headers["Rl-First-Sequence"], view[-1].headers["Rl-Last-Sequence"]) == ("7", "6")


async def test_a_restarted_filter_goes_on_where_the_view_ends(broker: Lanes) -> None:
    async with broker.filter():
        await broker.view_reaches(await fill(broker, 2))
    between = await fill(broker, 2, start=2)
    async with broker.filter("b"):
        view = await broker.view_reaches(between)
        await broker.signals_reach(36)
        last = await fill(broker, 1, start=4)
        view = await broker.view_reaches(last)
        signals = await broker.signals_reach(45)
    assert [one.headers[headers.LOG_POSITION].partition(":")[2] for one in view] == [str(n) for n in range(1, last + 1)]
    assert len(signals) == 45


async def test_a_view_that_lost_its_tail_is_derived_again_alike(broker: Lanes) -> None:
    async with broker.filter():
        view = await broker.view_reaches(await fill(broker, 3))
        signals = await broker.signals_reach(27)
    stream = broker.layout.view_stream_at(0)
    for one in view[5:]:
        await broker.connection.request(f"$JS.API.STREAM.MSG.DELETE.{stream}", msgspec.json.encode({"seq": one.seq}))
    assert len(await broker.view()) == 5
    async with broker.filter("b"):
        again = await broker.view_reaches(len(view))
    assert [(one.subject, one.data, _own_headers(one)) for one in again] == [
        (one.subject, one.data, _own_headers(one)) for one in view
    ]
    assert await broker.signals() == signals


async def test_a_view_that_lost_everything_is_derived_again_alike(broker: Lanes) -> None:
    async with broker.filter():
        view = await broker.view_reaches(await fill(broker, 3))
        signals = await broker.signals_reach(27)
    await broker.connection.request(f"$JS.API.STREAM.PURGE.{broker.layout.view_stream_at(0)}", b"{}")
    async with broker.filter("b"):
        again = await broker.view_reaches(len(view))
    assert [(one.subject, one.data) for one in again] == [(one.subject, one.data) for one in view]
    assert await broker.signals() == signals


@pytest.mark.parametrize("kept", [0, 1, 13, 26])
async def test_signals_that_lost_their_tail_are_made_again_alike(broker: Lanes, kept: int) -> None:
    async with broker.filter():
        await broker.view_reaches(await fill(broker, 3))
        signals = await broker.signals_reach(27)
    for one in signals[kept:]:
        body = msgspec.json.encode({"seq": one.seq})
        await broker.connection.request(f"$JS.API.STREAM.MSG.DELETE.{broker.layout.signal_stream}", body)
    async with broker.filter("b"):
        again = await broker.signals_reach(27)
    assert [(one.subject, one.data) for one in again] == [(one.subject, one.data) for one in signals]


async def test_a_second_filter_stands_by_and_takes_over(broker: Lanes) -> None:
    async with broker.filter("b", start_wait_s=0.1) as second:
        async with broker.filter("a", start_wait_s=0.1):
            await broker.view_reaches(await fill(broker, 2))
        last = await fill(broker, 2, start=2)
        view = await broker.view_reaches(last)
        assert (await second.health()).detail["logs"]["RL_LOG_0"]["active"]
    assert len(view) == last


async def test_what_was_derived_from_another_log_is_never_mixed(broker: Lanes) -> None:
    async with broker.filter():
        await broker.view_reaches(await fill(broker, 1))
    log_stream = broker.layout.log_stream_at(0)
    info = decode_json((await broker.connection.request(f"$JS.API.STREAM.INFO.{log_stream}")).data)
    await broker.connection.request(f"$JS.API.STREAM.DELETE.{log_stream}")
    await broker.connection.request(f"$JS.API.STREAM.CREATE.{log_stream}", encode(info["config"]))
    await fill(broker, 1, start=1)
    with pytest.raises(LogReplaced, match="was derived from log"):
        async with broker.filter(start_wait_s=30.0):
            await asyncio.sleep(30)
    assert len(await broker.view()) == 3


async def test_a_deleted_durable_loses_nothing(broker: Lanes) -> None:
    async with broker.filter():
        await broker.view_reaches(await fill(broker, 1))
        await broker.connection.request("$JS.API.CONSUMER.DELETE.RL_LOG_0.redaction-filter-v1-0")
        last = await fill(broker, 2, start=1)
        view = await broker.view_reaches(last, timeout_s=30)
    assert len(view) == last


async def test_several_log_streams_share_the_signals() -> None:
    layout = Layout(max_bytes=SMALL.max_bytes, log_streams=3)
    async with lanes(layout) as broker:
        async with broker.filter():
            await fill(broker, 12)
            signals = await broker.signals_reach(12 * 9, timeout_s=30)
        async with broker.filter("b"):
            await fill(broker, 6, start=12)
            signals = await broker.signals_reach(18 * 9, timeout_s=30)
            await asyncio.sleep(0.2)
        signals = await broker.signals()
        views = [await broker.view(index) for index in range(3)]
    assert all(views)
    assert sum(len(view) for view in views) == 18 * 3
    by_run: dict[str, list[int]] = {}
    for one in signals:
        fact = decode_fact(one.data)
        by_run.setdefault(fact.run_id, []).append(fact.sequence)
    assert by_run == {f"run_{number}": list(range(1, 10)) for number in range(18)}


def _own_headers(message: StoredMessage) -> dict[str, str]:
    """Without what the broker adds, and without what a publish expected of it."""
    return {name: value for name, value in message.headers.items() if not name.startswith("Nats-")}
