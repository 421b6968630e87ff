"""The trace of a run, as people and programs meet it: on the run, on its facts, in what the platform sends on."""

from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest
import pytest_asyncio

from runlane_contracts.tracing import RUN_SPAN, parse_traceparent, run_trace_id, span_id
from support.product import Product, fact, product

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
    assert view["trace_id"] == snapshot["state"]["run"]["trace_id"] == "ab" * 16
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
