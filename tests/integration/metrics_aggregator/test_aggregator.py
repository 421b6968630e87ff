"""The service as a process, on a real broker with its users: killed, replaced, standing by."""

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager

import pytest

from runlane.kernel.clock import utc_now
from runlane.kernel.connection import connect
from runlane.kernel.provision import provision
from runlane_contracts.access import inbox_prefix
from runlane_contracts.subjects import Subjects
from support.eventually import eventually
from support.nats import SMALL, free_port, nats_server
from support.scrape import scrape
from support.signals import Story, whole_run


class Site:
    """A broker, provisioned, and a hand that publishes signals as the filter does."""

    def __init__(self, server, filter_):
        self.server, self._filter = server, filter_

    async def publish(self, *stories):
        for story in stories:
            for fact, body in zip(story.facts, story.bodies, strict=True):
                await self._filter.request(Subjects().signal(fact.tenant_id, fact.type), body)

    @asynccontextmanager
    async def service(self, **environment):
        port = free_port()
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "runlane.metrics_aggregator",
            env={
                **os.environ, "RUNLANE_NATS_URL": self.server.url, "RUNLANE_NATS_PASSWORD": "pw-metrics_aggregator",
                "RUNLANE_METRICS_AGGREGATOR_BROKER_PASSWORD": "pw-broker_monitor", "RUNLANE_HEALTH_PORT": str(port),
                "RUNLANE_STREAM_MAX_BYTES": str(SMALL.max_bytes), "RUNLANE_METRICS_AGGREGATOR_CHECKPOINT_S": "0.5",
                "RUNLANE_METRICS_AGGREGATOR_BROKER_INTERVAL_S": "1", **environment,
            },
        )  # fmt: skip
        try:
            yield child, f"http://127.0.0.1:{port}"
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()


async def _as(server, user):
    return await connect(url=server.url, user=user, password=f"pw-{user}", name=user, inbox_prefix=inbox_prefix(user))


@pytest.fixture
async def site():
    async with nats_server(users=True) as server:
        operator = await _as(server, "operator")
        await provision(operator, SMALL, now=utc_now)
        filter_ = await _as(server, "redaction_filter")
        yield Site(server, filter_)
        await operator.close()
        await filter_.close()


async def shows(url, metric, wanted, **labels):
    async def looks():
        found = await scrape(url)
        return found if found.value(metric, **labels) == wanted else None

    return await eventually(looks, within_s=30)


async def test_counts_go_on_after_a_kill_and_never_fall(site):
    """Taken out: reading the checkpoint in `on_active` (`found = None`) and acknowledging only what is written down;
    then the second process begins at what came after the kill."""
    await site.publish(*(whole_run(f"r{n}") for n in range(3)))
    half = whole_run("half")
    rest = Story("half")
    rest.facts, half.facts = half.facts[7:], half.facts[:7]
    await site.publish(half)
    async with site.service() as (child, url):
        await shows(url, "runlane_approvals_open", 1)
        before = await shows(url, "runlane_runs_ended_total", 3, status="completed")
        await eventually(lambda: _is_written(url), within_s=20)
        child.send_signal(signal.SIGKILL)
        await child.wait()
    await site.publish(rest, whole_run("later"))
    async with site.service() as (_, url):
        seen = []
        while not seen or seen[-1] != 5:
            now = (await scrape(url)).value("runlane_runs_ended_total", status="completed")
            seen += [] if now is None else [now]
        assert seen == sorted(seen)
        assert seen[0] >= before.value("runlane_runs_ended_total", status="completed")
        after = await shows(url, "runlane_runs_started_total", 5, tenant="acme", agent="greengrocer")
    assert after.value("runlane_tokens_total", kind="input") == 5 * 150
    assert after.value("runlane_cost_usd_total", agent="greengrocer") == 5 * 0.25
    assert after.value("runlane_tool_calls_total", tool="buy", outcome="completed") == 5
    assert after.value("runlane_approvals_open") == 0
    assert after.value("runlane_runs") == 0


async def _is_written(url):
    return (await scrape(url)).value("runlane_checkpoint_age_seconds") == 0


async def test_a_stop_writes_down_what_was_counted(site):
    await site.publish(whole_run())
    async with site.service(RUNLANE_METRICS_AGGREGATOR_CHECKPOINT_S="300") as (child, url):
        await shows(url, "runlane_runs_ended_total", 1)
        child.send_signal(signal.SIGTERM)
        assert await child.wait() == 0
    await site.publish(whole_run("second"))
    async with site.service() as (_, url):
        found = await shows(url, "runlane_runs_ended_total", 2)
    assert found.value("runlane_run_duration_seconds_count") == 1  # histograms begin anew


async def test_a_standby_shows_no_counts_of_the_fleet_but_takes_over(site):
    await site.publish(whole_run())
    async with site.service() as (first, url):
        await shows(url, "runlane_runs_ended_total", 1)
        await _takes_over(site, first, url)


async def _takes_over(site, first, url):
    async with site.service() as (_, standby):
        await shows(standby, "runlane_broker_up", 1)
        assert (await scrape(standby)).value("runlane_runs_ended_total") is None
        await eventually(lambda: _is_written(url), within_s=20)
        first.send_signal(signal.SIGKILL)
        await site.publish(whole_run("second"))
        await shows(standby, "runlane_runs_ended_total", 2)


async def test_what_is_no_signal_is_counted_and_stops_nothing(site):
    await site._filter.request("rl.signal.acme.run.created", b"\xff not json")
    await site.publish(whole_run())
    async with site.service() as (_, url):
        found = await shows(url, "runlane_runs_ended_total", 1)
    assert found.value("runlane_signals_total", type="unreadable") == 1


async def test_the_broker_tells_how_it_is(site):
    await site.publish(whole_run())
    async with site.service() as (_, url):
        await shows(url, "runlane_stream_messages", 16, stream="RL_SIGNAL")
        await shows(url, "runlane_broker_slow_consumers_total", 0, server="runlane")
        found = await shows(url, "runlane_durable_pending_messages", 0, durable="metrics-aggregator-v1")
    limit = next(spec.max_bytes for spec in SMALL.streams() if spec.name == "RL_SIGNAL")
    assert found.value("runlane_stream_limit_bytes", stream="RL_SIGNAL") == limit
    assert found.value("runlane_stream_bytes", stream="RL_SIGNAL") > 0
    assert found.value("runlane_broker_connections", server="runlane") >= 3
    assert found.value("runlane_broker_slow_consumers_total", server="runlane") == 0
    assert found.value("runlane_broker_memory_bytes", server="runlane") > 1_000_000
    assert found.value("runlane_dead_letters", service="projector") == 0
