"""The trace of a run, and what is measured, as people and programs meet them: on runs, on facts, on `/metrics`."""

from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest
import pytest_asyncio

from runlane_contracts.telemetry import Metric
from runlane_contracts.tracing import RUN_SPAN, parse_traceparent, run_trace_id, span_id
from support.eventually import eventually
from support.product import Product, fact, product
from support.scrape import Scrape, scrape

MINE = f"00-{'ab' * 16}-{'cd' * 8}-01"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def up(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Product]:
    folder: Path = tmp_path_factory.mktemp("traces")
    async with product(folder / "state") as running:
        yield running


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_run_that_nobody_brought_a_trace_for_has_its_own_on_every_fact(up: Product) -> None:
    """Taken out: the run's own context in `place`; then only `run.created` has one."""
    async with up.client() as wire:
        run_id = await wire.start_run()
        epoch = await wire.lease(run_id)
        await wire.append(run_id, epoch, fact("run.started"), fact("run.completed"))
        facts, view = await wire.facts(run_id), await wire.view(run_id)
        own = f"00-{run_trace_id('demo', run_id)}-{span_id('demo', run_id, RUN_SPAN)}-01"
    assert [one["traceparent"] for one in facts] == [own] * 4
    assert view["trace_id"] == run_trace_id("demo", run_id)


async def test_who_asks_within_a_trace_finds_the_run_in_it(up: Product) -> None:
    async with up.client() as wire:
        body = {"agent": "test", "input": {}, "dispatch": "external"}
        reply = await wire.http.post("/v1/runs", json=body, headers={"traceparent": MINE})
        run_id = reply.json()["run_id"]
        epoch = await wire.lease(run_id)
        theirs = f"00-{'12' * 16}-{'34' * 8}-01"
        await wire.append(run_id, epoch, fact("run.started"), fact("run.completed") | {"traceparent": theirs})
        facts, view = await wire.facts(run_id), await wire.view(run_id)
        snapshot = await wire.snapshot(run_id)
        rows = {row["run_id"]: row for row in (await wire.http.get("/v1/runs")).json()["runs"]}
    assert view["trace_id"] == snapshot["state"]["run"]["trace_id"] == rows[run_id]["trace_id"] == "ab" * 16
    assert facts[0]["traceparent"] == MINE
    contexts = [parse_traceparent(one["traceparent"]) for one in facts[1:3]]
    assert {(one.trace_id, one.span_id) for one in contexts if one} == {("ab" * 16, span_id("demo", run_id, RUN_SPAN))}
    assert facts[3]["traceparent"] == theirs


async def test_the_context_travels_in_the_headers_of_messages(up: Product) -> None:
    observer = await nats.connect(up.nats_url, inbox_prefix=b"_INBOX_observer")
    live = await observer.subscribe("rl.live.demo.*")
    signals = await observer.subscribe("rl.signal.demo.run.created")
    await observer.flush()
    async with up.client() as wire:
        reply = await wire.http.post(
            "/v1/runs", json={"agent": "t", "dispatch": "external"}, headers={"traceparent": MINE}
        )
        run_id = reply.json()["run_id"]
        while (message := await live.next_msg(timeout=10)).subject != f"rl.live.demo.{run_id}":
            pass
        assert (message.headers or {})["traceparent"] == MINE
        while f'"{run_id}"'.encode() not in (message := await signals.next_msg(timeout=10)).data:
            pass
        assert (message.headers or {})["traceparent"] == MINE
    await observer.close()


SELDOM = {
    Metric.LEASES_LOST, Metric.QUEUE_AGE, Metric.QUEUE_DEPTH, Metric.QUEUE_WAIT, Metric.RECOVERIES, Metric.RUN_RETRIES,
    Metric.RUNS_UNTRACKED, Metric.SPANS, Metric.STARTS_REFUSED,
}  # fmt: skip
"""What has labels that come with the first of them: nothing was lost, queued or refused here; no collector is set."""


async def test_a_scrape_of_the_running_product_has_every_metric_that_a_dashboard_or_alert_names(up: Product) -> None:
    """Taken out: any `observe`, or a service from the composition."""
    before = (await scrape(up.url)).value("runlane_runs_ended_total", agent="measured") or 0
    async with up.client() as wire:
        await _measured_run(wire)

    async def seen() -> Scrape | None:
        found = await scrape(up.url)
        counted = found.value("runlane_runs_ended_total", agent="measured") == before + 1
        asked = found.value("runlane_stream_messages", stream="RL_SIGNAL") or 0
        return found if counted and asked > 0 and found.value("runlane_broker_connections") else None

    found = await eventually(seen, within_s=40, every_s=0.2)
    assert isinstance(found, Scrape)
    assert {metric.value for metric in Metric} - found.names <= {metric.value for metric in SELDOM}
    assert found.names <= {metric.value for metric in Metric}
    kinds = [line.split()[2] for line in found.text.splitlines() if line.startswith("# TYPE")]
    assert len(kinds) == len(set(kinds))
    assert found.value("runlane_tool_calls_total", tool="weigh", outcome="failed") == before + 1
    assert found.value("runlane_tool_retries_total", tool="weigh") == before + 1
    assert found.value("runlane_tokens_total", agent="measured", kind="input") == 30 * (before + 1)
    assert found.value("runlane_cost_usd_total", agent="measured") == pytest.approx(0.5 * (before + 1))
    assert found.value("runlane_approvals_total", outcome="approved") >= before + 1
    assert found.value("runlane_first_preview_seconds_count") >= 1
    assert found.value("runlane_command_outcome_seconds_count", type="approval.resolve", outcome="applied") >= 1
    for service in ("redaction_filter", "projector", "edge_gateway"):
        assert (found.value("runlane_facts_total", service=service) or 0) > 0, service


async def _measured_run(wire) -> None:
    run_id = await wire.start_run(agent="measured")
    epoch = await wire.lease(run_id)
    call = {"name": "weigh", "arguments": {}}
    asked = {"approval_id": "a", "description": "d", "risk": "low", "version": 1, "action_digest": "sha256:1"}
    await wire.append(
        run_id, epoch, fact("run.started"), fact("tool.requested", tool_call_id="c1", **call),
        fact("tool.failed", tool_call_id="c1", error={"code": "off"}),
        fact("tool.requested", tool_call_id="c2", retry_of="c1", attempt=2, **call),
        fact("tool.completed", tool_call_id="c2"), fact("approval.requested", **asked),
    )  # fmt: skip
    preview = {"preview_id": "p1", "subject": {"kind": "message", "id": "m"}, "preview_seq": 1, "operation": "append"}
    body = {"lease_epoch": epoch, "previews": [{**preview, "data": "hi"}]}
    assert (await wire.http.post(f"/v1/runs/{run_id}/previews", json=body)).status_code == 202
    decision = {"approval_id": "a", "decision": "approved", "expected_version": 1, "action_digest": "sha256:1"}
    assert (await wire.command(run_id, "approval.resolve", decision)).status_code == 200
    async with wire.watch(run_id, **{"from": "start"}) as frames:
        async for frame in frames:
            if frame.event == "synced":
                break
    usage = {"input_tokens": 30, "output_tokens": 4, "cost_usd": 0.5}
    await wire.append(run_id, epoch, fact("run.completed") | {"payload": {"usage": usage}})
