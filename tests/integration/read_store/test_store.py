"""The read store gives back what was folded, in pages that hold still, and takes each write once."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from sqlalchemy import text, update

from runlane.kernel.errors import Conflict, Retryable
from runlane.read_store import PageTokenInvalid, ReadStore, RunChange, StreamPosition
from runlane.read_store.tables import generations, schema_versions
from runlane_contracts import events, reducer
from runlane_contracts.cursor import Position
from runlane_contracts.subjects import RunAddress
from runlane_contracts.tracing import run_trace_id
from support.runs import Story, a_short_run, a_waiting_run, runs

STREAM = "RL_VIEW_0"


def change(story: Story, stream_seq: int = 1) -> RunChange:
    state = reducer.initial_state(story.run.tenant_id, story.run.run_id)
    touched = {reducer.reduce(state, fact) for fact in story.facts} - {None}
    address = RunAddress(story.run.tenant_id, story.run.run_id)
    return RunChange(address, state, Position("e1", stream_seq, len(story.facts)), frozenset(touched))  # type: ignore[arg-type]


async def store_all(store: ReadStore, stories: Sequence[Story]) -> None:
    before = await store.progress("runs", STREAM)
    position = StreamPosition("e1", before.position.stream_seq + len(stories))
    await store.write([change(story) for story in stories], before=before, position=position)


def created_at(second: int, run_id: str, **payload: str) -> Story:
    story = Story(run_id=run_id, session_id=payload.pop("session_id", None)).then(
        events.RunCreated(agent=payload.pop("agent", "a"))
    )
    fact = story.facts[0]
    story.facts[0] = type(fact)(**{name: getattr(fact, name) for name in fact.__struct_fields__} | {
        "recorded_at": f"2026-03-01T00:00:{second:02d}.000000Z"})  # fmt: skip
    return story


async def test_a_loaded_state_is_the_folded_state(store: ReadStore) -> None:
    story = a_waiting_run()
    await store_all(store, [story])
    expected = change(story).state
    found = await store.load(RunAddress("acme", "run_2"))
    assert found is not None
    assert found.state == expected
    assert list(found.state["items"]) == list(expected["items"])
    assert reducer.checksum(found.state) == reducer.checksum(expected)
    assert found.position == Position("e1", 1, 6)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(story=runs())
async def test_any_state_comes_back_as_it_was(store: ReadStore, story: Story) -> None:
    before = await store.progress("runs", STREAM)
    run = RunAddress("acme", f"run_{before.position.stream_seq}")  # another run for each example
    state = reducer.initial_state("acme", "run_1")
    for fact in story.facts:  # item by item, as the projector writes
        touched = reducer.reduce(state, fact)
        one = RunChange(run, state, Position("e1", 1, fact.sequence), frozenset({touched} - {None}))  # type: ignore[arg-type]
        position = StreamPosition("e1", before.position.stream_seq + 1)
        before = await store.write([one], before=before, position=position)
    found = await store.load(run)
    assert found is not None
    assert found.state == state
    assert reducer.checksum(found.state) == reducer.checksum(state)


async def test_an_unknown_run_and_another_tenants_run_are_not_there(store: ReadStore) -> None:
    await store_all(store, [a_short_run()])
    assert await store.load(RunAddress("acme", "run_9")) is None
    assert await store.load(RunAddress("other", "run_1")) is None


async def test_only_the_changed_items_are_written(store: ReadStore) -> None:
    story = a_short_run()
    await store_all(store, [story])
    whole = change(story)
    whole.state["items"]["message:m1"]["content"] = "changed"
    whole.state["items"]["tool:c1"]["result"] = "not told"
    before = await store.progress("runs", STREAM)
    only = RunChange(whole.run, whole.state, whole.position, frozenset({"message:m1"}))
    await store.write([only], before=before, position=StreamPosition("e1", 2))
    found = await store.load(whole.run)
    assert found is not None
    assert found.state["items"]["message:m1"]["content"] == "changed"
    assert found.state["items"]["tool:c1"]["result"] == {"items": ["apple", "pear"]}


async def test_runs_are_listed_newest_first_in_pages_that_hold_still(store: ReadStore) -> None:
    # Two in the same moment, and ids that do not sort by time.
    await store_all(store, [created_at(second, f"run_{(second * 7) % 10}") for second in range(10)])
    await store_all(store, [created_at(4, "run_twin")])
    first, token = await store.list_runs("acme", limit=4)
    assert token is not None
    await store_all(store, [created_at(30, "run_new"), created_at(31, "run_newer")])
    seen = [row.run_id for row in first]
    while token is not None:
        page, token = await store.list_runs("acme", limit=4, page_token=token)
        seen += [row.run_id for row in page]
    assert len(seen) == len(set(seen)) == 11
    assert seen[:3] == ["run_3", "run_6", "run_9"]
    newest, _ = await store.list_runs("acme", limit=1)
    assert newest[0].run_id == "run_newer"


async def test_each_run_of_a_list_says_which_trace_it_belongs_to(store: ReadStore) -> None:
    """That of the fold; where a record of before has none, the run's own. Taken out: the column of the statement."""
    asked, old = created_at(1, "run_asked"), created_at(2, "run_old")
    asked.facts[0] = msgspec.structs.replace(asked.facts[0], traceparent=f"00-{'ab' * 16}-{'cd' * 8}-01")
    old.facts[0] = msgspec.structs.replace(old.facts[0], traceparent=None)
    await store_all(store, [asked, old])
    rows, _ = await store.list_runs("acme")
    assert [(row.run_id, row.trace_id) for row in rows] == [
        ("run_old", run_trace_id("acme", "run_old")), ("run_asked", "ab" * 16),
    ]  # fmt: skip


async def test_runs_are_filtered_by_status_agent_and_session(store: ReadStore) -> None:
    await store_all(
        store,
        [
            a_short_run("run_1"),
            a_waiting_run("run_2"),
            a_short_run("run_3", tenant_id="other"),
            created_at(1, "run_4", agent="b", session_id="ses_1"),
        ],
    )

    async def ids(tenant_id: str = "acme", **filters: str) -> set[str]:
        rows, _ = await store.list_runs(tenant_id, **filters)  # type: ignore[arg-type]
        return {row.run_id for row in rows}

    assert await ids() == {"run_1", "run_2", "run_4"}
    assert await ids(status="completed") == {"run_1"}
    assert await ids(agent="payer") == {"run_2"}
    assert await ids(session_id="ses_1") == {"run_4"}
    assert await ids(agent="b", status="waiting") == set()
    assert await ids("other") == {"run_3"}


async def test_a_listed_run_says_what_a_list_needs(store: ReadStore) -> None:
    await store_all(store, [a_waiting_run()])
    rows, token = await store.list_runs("acme")
    assert token is None
    row = rows[0]
    assert (row.run_id, row.status, row.agent, row.pool) == ("run_2", "waiting", "payer", "default")
    assert (row.worker_id, row.through_sequence) == ("w1", 6)


async def test_open_approvals_of_a_tenant_are_listed_longest_asked_first(store: ReadStore) -> None:
    stories = [a_waiting_run(f"run_{n}", approval_id=f"a{n}") for n in range(5)]
    stories[2].then(events.ApprovalResolved(approval_id="a2", decision="approved", decided_by="u1", version=1))
    await store_all(store, [*stories, a_waiting_run("run_x", tenant_id="other")])
    page, token = await store.list_approvals("acme", limit=3)
    assert [row.run_id for row in page] == ["run_0", "run_1", "run_3"]
    assert page[0].approval["approval_id"] == "a0"
    rest, last = await store.list_approvals("acme", limit=3, page_token=token)
    assert [row.run_id for row in rest] == ["run_4"]
    assert last is None
    decided, _ = await store.list_approvals("acme", status="approved")
    assert [row.run_id for row in decided] == ["run_2"]
    every, _ = await store.list_approvals("acme", status=None)
    assert len(every) == 5


@pytest.mark.parametrize("token", ["", "x", "W10", "!!!", "eyJhIjoxfQ", "WyJhIiwiYiIsImMiXQ", "a" * 5000])
async def test_a_token_that_is_none_is_refused(store: ReadStore, token: str) -> None:
    with pytest.raises(PageTokenInvalid):
        await store.list_runs("acme", page_token=token)


async def test_text_that_databases_stumble_over_comes_back(store: ReadStore) -> None:
    story = Story().raw(
        "run.created", b'{"agent": "a\\u0000\'; DROP TABLE runlane_runs; --", "input": "\\u0000\xf0\x9f\x8d\x90"}'
    )
    story.raw("tool.requested", b'{"tool_call_id": "c1", "name": "\\u0000", "arguments": 1e300}')
    await store_all(store, [story])
    found = await store.load(RunAddress("acme", "run_1"))
    assert found is not None
    assert found.state == change(story).state
    rows, _ = await store.list_runs("acme")
    assert [row.run_id for row in rows] == ["run_1"]


async def test_whoever_comes_second_has_written_nothing(store: ReadStore) -> None:
    before = await store.progress("runs", STREAM)
    await store.write([change(a_short_run("run_1"))], before=before, position=StreamPosition("e1", 5))
    with pytest.raises(Conflict):
        await store.write([change(a_short_run("run_2"))], before=before, position=StreamPosition("e1", 6))
    assert await store.load(RunAddress("acme", "run_2")) is None
    now = await store.progress("runs", STREAM)
    assert now.position == StreamPosition("e1", 5)
    await store.write([change(a_short_run("run_2"))], before=now, position=StreamPosition("e1", 6))
    with pytest.raises(Conflict):
        await store.write([change(a_short_run("run_3"))], before=now, position=StreamPosition("e1", 7))


async def test_writers_that_race_take_turns(store: ReadStore) -> None:
    before = await store.progress("runs", STREAM)

    async def attempt(n: int) -> bool:
        try:
            await store.write([change(a_short_run(f"run_{n}"))], before=before, position=StreamPosition("e1", n + 1))
        except Conflict:
            return False
        return True

    won = await asyncio.gather(*(attempt(n) for n in range(8)))
    assert sum(won) == 1
    rows, _ = await store.list_runs("acme")
    assert [row.run_id for row in rows] == [f"run_{won.index(True)}"]


async def test_readers_and_the_writer_do_not_wait_for_each_other(store: ReadStore) -> None:
    await store_all(store, [a_short_run()])
    async with store.reading() as reading:
        await reading.execute(text("SELECT run FROM runlane_runs"))
        async with asyncio.timeout(5):
            await store_all(store, [a_waiting_run()])
            rows, _ = await store.list_runs("acme")
    assert len(rows) == 2


async def test_two_processes_may_create_at_once(database_url: str) -> None:
    async with ReadStore.open(database_url) as one, ReadStore.open(database_url) as two:
        await asyncio.gather(one.create(), two.create())
        assert (await one.progress("runs", STREAM)).generation == 1


async def test_tables_of_another_shape_are_dropped(store: ReadStore) -> None:
    await store_all(store, [a_short_run()])
    async with store.writing() as connection:
        await connection.execute(update(schema_versions).values(version=999))
    await store.create()
    assert await store.load(RunAddress("acme", "run_1")) is None
    assert (await store.progress("runs", STREAM)).position == StreamPosition("", 0)


async def test_state_of_another_reducer_is_listed_but_not_folded_on(store: ReadStore) -> None:
    await store_all(store, [a_short_run()])
    async with store.writing() as connection:
        await connection.execute(update(generations).values(reducer_version=999))
    assert await store.load(RunAddress("acme", "run_1")) is None
    rows, _ = await store.list_runs("acme")
    assert len(rows) == 1
    assert (await store.progress("runs", STREAM)).reducer_version == 999


async def test_what_is_written_is_there_after_opening_again(database_url: str) -> None:
    async with ReadStore.open(database_url) as store:
        await store.create()
        await store_all(store, [a_short_run()])
    async with ReadStore.open(database_url) as again:
        await again.create()
        assert await again.load(RunAddress("acme", "run_1")) is not None
        assert (await again.progress("runs", STREAM)).position == StreamPosition("e1", 1)


async def test_a_database_that_is_not_there_is_worth_another_try() -> None:
    async with ReadStore.open("postgresql://x@127.0.0.1:9/none", timeout_s=2) as store:
        with pytest.raises(Retryable):
            await store.list_runs("acme")


@pytest.mark.parametrize("url", ["mysql://x/y", "sqlite://", "sqlite:///:memory:"])
def test_other_databases_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="read store"):
        ReadStore.open(url)
