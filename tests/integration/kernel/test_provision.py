import time
from datetime import timedelta

import msgspec
import pytest

from runlane.kernel.clock import utc_now
from runlane.kernel.connection import connect
from runlane.kernel.jetstream import api
from runlane.kernel.provision import (
    PRIORITY_GROUP,
    DestructiveDrift,
    ServerTooOld,
    ensure_consumer,
    provision,
    stream_config,
)
from runlane.kernel.pull import PullSession
from runlane_contracts.streams import MIB, Layout
from support.nats import SMALL, nats_server

EVERYTHING = len(SMALL.streams()) + len(SMALL.consumers())


@pytest.fixture
async def connection():
    async with nats_server() as server:
        one = await connect(url=server.url, name="test")
        yield one
        await one.close()


async def config_of(connection, stream):
    return (await api(connection, f"STREAM.INFO.{stream}", answer=dict))["config"]


async def test_an_empty_server_gets_everything_and_the_second_time_nothing(connection):
    first = await provision(connection, SMALL, now=utc_now, pools=[("demo", "default")])
    assert len(first.changes) == EVERYTHING + 1
    assert {change.kind for change in first.changes} == {"created"}
    began = time.perf_counter()
    again = await provision(connection, SMALL, now=utc_now, pools=[("demo", "default")])
    assert time.perf_counter() - began < 1.0
    assert (again.changes, again.unchanged) == ((), EVERYTHING + 1)


async def test_many_partitions_are_provisioned_twice_without_a_change(connection):
    layout = Layout(log_streams=4, max_bytes=MIB)
    await provision(connection, layout, now=utc_now)
    assert (await provision(connection, layout, now=utc_now)).changes == ()


async def test_the_operator_may_provision_and_no_other_right_is_needed():
    async with nats_server(users=True) as server:
        operator = await connect(url=server.url, user="operator", password="pw-operator", name="operator")
        await provision(operator, SMALL, now=utc_now)
        assert (await provision(operator, SMALL, now=utc_now)).changes == ()
        assert operator.permission_violations == 0
        await operator.close()


async def test_only_streams_that_can_be_derived_again_skip_the_disk(connection):
    await provision(connection, SMALL, now=utc_now)
    for spec in SMALL.streams():
        mode = (await config_of(connection, spec.name)).get("persist_mode", "default")
        assert mode == ("default" if spec.fsync else "async"), spec.name


async def test_a_harmless_difference_is_mended(connection):
    await provision(connection, SMALL, now=utc_now)
    larger = Layout(max_bytes=SMALL.max_bytes * 2)
    report = await provision(connection, larger, now=utc_now)
    assert {change.settings for change in report.changes} == {("max_bytes",)}
    assert (await config_of(connection, "RL_LOG_0"))["max_bytes"] == larger.max_bytes


async def test_a_dry_run_tells_and_does_not_touch(connection):
    report = await provision(connection, SMALL, now=utc_now, dry_run=True)
    assert len(report.changes) == EVERYTHING
    assert (await api(connection, "STREAM.NAMES", answer=dict))["total"] == 0


async def test_a_setting_of_somebody_else_survives_an_update(connection):
    await provision(connection, SMALL, now=utc_now)
    config = await config_of(connection, "RL_LOG_0")
    await api(connection, "STREAM.UPDATE.RL_LOG_0", {**config, "max_msg_size": 12345}, answer=dict)
    await provision(connection, Layout(max_bytes=SMALL.max_bytes * 2), now=utc_now)
    assert (await config_of(connection, "RL_LOG_0"))["max_msg_size"] == 12345


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"retention": "interest"}, "retention"),
        ({"subjects": ["rl.log.>", "rl.more.>"]}, "rl.more"),
        ({"discard": "new", "deny_purge": True}, "deny_purge"),
    ],
)
async def test_what_would_lose_data_is_refused_and_named(connection, change, reason):
    spec = SMALL.streams()[0]
    await api(connection, f"STREAM.CREATE.{spec.name}", {**stream_config(spec, 1), **change}, answer=dict)
    with pytest.raises(DestructiveDrift, match=reason):
        await provision(connection, SMALL, now=utc_now)


async def test_a_bound_below_what_is_stored_is_refused(connection):
    await provision(connection, SMALL, now=utc_now)
    for _ in range(3):
        await connection.request("rl.log.00.acme.r1", b"x" * 900_000)
    with pytest.raises(DestructiveDrift, match="max_bytes"):
        await provision(connection, Layout(max_bytes=2 * MIB), now=utc_now)
    assert (await config_of(connection, "RL_LOG_0"))["max_bytes"] == SMALL.max_bytes


async def test_an_age_that_would_delete_is_refused(connection):
    signal = next(spec for spec in SMALL.streams() if spec.name == "RL_SIGNAL")
    endless = {**stream_config(signal, 1), "max_age": 0}
    await api(connection, "STREAM.CREATE.RL_SIGNAL", endless, answer=dict)
    await connection.request("rl.signal.acme.run.created", b"{}")

    def next_month():
        return utc_now() + timedelta(days=30)

    with pytest.raises(DestructiveDrift, match="max_age"):
        await provision(connection, SMALL, now=next_month)
    await provision(connection, SMALL, now=utc_now)


async def test_fewer_partitions_than_before_are_refused(connection):
    await provision(connection, SMALL, now=utc_now)
    with pytest.raises(DestructiveDrift, match="would be given up"):
        await provision(connection, msgspec.structs.replace(SMALL, log_streams=2), now=utc_now)


async def test_a_pool_durable_can_be_asked_for_by_many_at_once(connection):
    await provision(connection, SMALL, now=utc_now)
    spec = SMALL.pool_consumer("demo", "gpu")
    for _ in range(2):
        await ensure_consumer(connection, SMALL, spec)
    info = await api(connection, f"CONSUMER.INFO.{spec.stream}.{spec.durable}", answer=dict)
    assert info["config"]["filter_subject"] == "rl.work.demo.gpu"


async def test_a_worker_may_ask_for_its_pool():
    async with nats_server(users=True) as server:
        operator = await connect(url=server.url, user="operator", password="pw-operator", name="operator")
        await provision(operator, SMALL, now=utc_now)
        worker = await connect(url=server.url, user="worker", password="pw-worker", name="worker")
        await ensure_consumer(worker, SMALL, SMALL.pool_consumer("demo", "gpu"))
        await worker.close()
        await operator.close()


async def test_an_old_server_is_refused(connection, monkeypatch):
    monkeypatch.setattr("runlane.kernel.provision.MIN_API_LEVEL", 99)
    with pytest.raises(ServerTooOld):
        await provision(connection, SMALL, now=utc_now)


def partitioned(count: int) -> Layout:
    return Layout(max_bytes=SMALL.max_bytes, supervisor_partitions=count)


async def commands_of(connection) -> set[str]:
    names = (await api(connection, "CONSUMER.NAMES.RL_COMMAND", answer=dict))["consumers"]
    return {name for name in names if name.startswith("run-supervisor")}


async def test_what_another_number_of_partitions_left_is_named_and_removed(connection):
    """Take `desk.former` out of `provision` to see it fail."""
    await provision(connection, partitioned(1), now=utc_now)
    await provision(connection, partitioned(4), now=utc_now)
    assert await commands_of(connection) == {f"run-supervisor-v1-{n}-of-4" for n in range(4)}
    told = await provision(connection, partitioned(3), now=utc_now, dry_run=True)
    assert {c.name for c in told.changes if c.kind == "removed"} == {
        f"RL_COMMAND/run-supervisor-v1-{n}-of-4" for n in range(4)
    }
    assert len(await commands_of(connection)) == 4
    await provision(connection, partitioned(3), now=utc_now)
    assert await commands_of(connection) == {f"run-supervisor-v1-{n}-of-3" for n in range(3)}
    assert (await provision(connection, partitioned(3), now=utc_now)).changes == ()


async def test_what_somebody_still_works_with_is_named_and_left_alone(connection):
    """Let `_is_used` answer False to see it fail."""
    layout = partitioned(1)
    await provision(connection, layout, now=utc_now)
    spec = next(one for one in layout.consumers() if one.durable == "run-supervisor-v1")
    async with PullSession(
        connection, spec.stream, spec.durable, on_delivery=lambda _: None, group=PRIORITY_GROUP
    ) as session:
        await session.pull(1)
        report = await provision(connection, partitioned(2), now=utc_now)
        assert report.former_in_use == ("RL_COMMAND/run-supervisor-v1",)
        assert len(await commands_of(connection)) == 3
    report = await provision(connection, partitioned(2), now=utc_now)
    assert [(change.kind, change.name) for change in report.changes] == [("removed", "RL_COMMAND/run-supervisor-v1")]
