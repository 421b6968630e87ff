"""`runlane rebuild`: everything again from the first message, beside what is live."""

import asyncio

import pytest
from sqlalchemy import func, select, update

from runlane.kernel.errors import Conflict, Retryable
from runlane.projector import projector as projector_module, rebuild as rebuild_module
from runlane.projector.projector import PROJECTION, Projector
from runlane.read_store import ReadStore, generations as generations_module, store as store_module
from runlane.read_store.generations import Generations
from runlane.read_store.tables import items, runs
from runlane_contracts import events, reducer
from runlane_contracts.subjects import RunAddress
from support.memory_view import MemoryView
from support.runs import a_short_run, a_waiting_run

STREAM = "RL_VIEW_0"


def projector_of(store: ReadStore, *views: MemoryView, **more: float) -> Projector:
    return Projector(
        store=store, views={view.stream: view for view in views}, cache_bytes=1 << 20, cache_runs=100, **more
    )  # fmt: skip


async def filled(store: ReadStore, view: MemoryView) -> Projector:
    projector = projector_of(store, view)
    commits = [commit for n in range(5) for commit in a_short_run(f"run_{n}").commits(3)]
    await projector.handle(STREAM, view.put(*commits, *a_waiting_run("run_w").commits(2)))
    return projector


async def test_a_rebuild_of_a_sound_store_changes_nothing_but_the_generation(store: ReadStore) -> None:
    view = MemoryView()
    projector = await filled(store, view)
    before = await store.load(RunAddress("acme", "run_w"))
    report = await projector.rebuild()
    assert report.switched
    assert (report.replaced, report.generation) == (1, 2)
    assert (report.runs, report.live_runs, report.compared, report.differences) == (6, 6, 6, ())
    assert report.statuses == report.live_statuses == {"completed": 5, "waiting": 1}
    assert (report.facts, report.messages) == (66, 23)
    after = await store.load(RunAddress("acme", "run_w"))
    assert after is not None
    assert before is not None
    assert after.state == before.state
    assert after.position == before.position
    assert (await store.progress(PROJECTION, STREAM)).generation == 2


async def test_a_rebuild_names_and_mends_what_was_wrong(store: ReadStore) -> None:
    view = MemoryView()
    projector = await filled(store, view)
    async with store.writing() as connection:
        await connection.execute(
            update(items).where(items.c.run_id == "run_3", items.c.kind == "tool").values(item='{"wrong": true}')
        )
        # Another spelling of the same state is no difference.
        text = await connection.scalar(select(runs.c.run).where(runs.c.run_id == "run_2"))
        await connection.execute(update(runs).where(runs.c.run_id == "run_2").values(run=text.replace('":', '": ')))
    refused = await projector.rebuild()
    assert (refused.switched, len(refused.differences)) == (False, 1)
    assert "have another state" in str(refused.reason)
    assert (await store.progress(PROJECTION, STREAM)).generation == 1
    report = await projector.rebuild(force=True)
    assert report.switched
    assert [(one.run_id, one.through_sequence) for one in report.differences] == [("run_3", 12)]
    assert report.differences[0].checksum != report.differences[0].live_checksum
    found = await store.load(RunAddress("acme", "run_3"))
    assert found is not None
    assert reducer.checksum(found.state) == report.differences[0].checksum
    assert found.state["items"]["tool:c1"]["result"] == {"items": ["apple", "pear"]}


async def test_the_live_fold_goes_on_during_and_after_a_rebuild(store: ReadStore) -> None:
    view = MemoryView()
    projector = await filled(store, view)
    done = asyncio.Event()

    async def live() -> int:
        n = 0
        while not done.is_set():
            await projector.handle(STREAM, view.put(*a_short_run(f"run_live_{n}").commits(2)))
            n += 1
        return n

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(live())
        await asyncio.sleep(0.05)
        for _ in range(3):
            assert (await projector.rebuild()).switched
        done.set()
    for n in range(task.result()):
        found = await store.load(RunAddress("acme", f"run_live_{n}"))
        assert found is not None
        assert found.state["run"]["status"] == "completed", n


async def test_a_rebuild_that_would_lose_runs_is_refused_unless_forced(store: ReadStore) -> None:
    view = MemoryView()
    projector = await filled(store, view)
    view.messages = [one for one in view.messages if one.run.run_id != "run_2"]
    report = await projector.rebuild()
    assert (report.switched, report.missing_runs) == (False, 1)
    assert report.reason
    assert await store.load(RunAddress("acme", "run_2")) is not None
    forced = await projector.rebuild(force=True)
    assert (forced.switched, forced.missing_runs) == (True, 1)
    assert await store.load(RunAddress("acme", "run_2")) is None


async def test_what_a_rebuild_replaced_is_swept(store: ReadStore) -> None:
    view = MemoryView()
    projector = await filled(store, view)
    await projector.rebuild()
    await projector.rebuild()
    await projector.sweep()
    assert await kept_generations(store) == {2, 3}  # the one before is kept for a while
    old = projector_of(store, view, keep_replaced_s=0.0)
    await old.sweep()
    assert await kept_generations(store) == {3}
    with pytest.raises(Conflict):
        await projector.rebuild(back=True)


async def kept_generations(store: ReadStore) -> set[int]:
    async with store.reading() as connection:
        assert await connection.scalar(select(func.count()).select_from(runs)) % 6 == 0
        return set((await connection.execute(select(items.c.generation))).scalars())


async def spoil(store: ReadStore, generation: int) -> None:
    """Make a generation wrong, as a bad fold would have."""
    async with store.writing() as connection:
        await connection.execute(
            update(runs).where(runs.c.generation == generation, runs.c.run_id == "run_2").values(status="failed")
        )


async def test_there_is_a_way_back_to_what_was_replaced_caught_up(store: ReadStore) -> None:
    """To see it fail: let `switch` retire what it replaces, or `reopen` forget where it stood."""
    view = MemoryView()
    projector = await filled(store, view)
    assert (await projector.rebuild()).switched
    story = a_short_run("run_later")
    await projector.handle(STREAM, view.put(*story.commits(3)))
    back = await projector.rebuild(back=True)
    assert (back.switched, back.back, back.generation, back.replaced) == (True, True, 1, 2)
    assert back.facts == len(story.facts)  # what came since, and no more
    assert (await store.progress(PROJECTION, STREAM)).generation == 1
    found = await store.load(RunAddress("acme", "run_later"))
    assert found is not None
    assert found.position.sequence == len(story.facts)
    # And forth again: what was left is kept in its turn.
    await projector.handle(STREAM, view.put(*a_short_run("run_latest").commits(3)))
    assert (await projector.rebuild(back=True)).generation == 2
    assert await store.load(RunAddress("acme", "run_latest")) is not None


async def test_whoever_still_writes_to_what_was_replaced_has_written_nothing(store: ReadStore) -> None:
    """To see it fail: let `write` take a generation that is kept."""
    view = MemoryView()
    projector, other = await filled(store, view), projector_of(store, view)
    story = a_short_run("run_later")
    first, *rest = view.put(*story.commits(3))
    await other.handle(STREAM, [first])
    await projector.rebuild()
    await other.handle(STREAM, rest)
    found = await store.load(RunAddress("acme", "run_later"))
    assert found is not None
    assert found.position.sequence == len(story.facts)


async def test_a_terminal_status_that_differs_holds_a_switch_up(store: ReadStore) -> None:
    view = MemoryView()
    projector = await filled(store, view)
    await spoil(store, 1)
    report = await projector.rebuild()
    assert (report.switched, report.other_endings) == (False, 1)
    assert report.statuses != report.live_statuses


async def test_a_run_that_is_folded_less_far_holds_a_switch_up(store: ReadStore) -> None:
    """To see it fail: compare only runs that are folded as far in both."""
    view = MemoryView()
    projector = await filled(store, view)
    view.messages = [one for one in view.messages if (one.run.run_id, one.first) != ("run_2", 10)]
    report = await projector.rebuild()
    assert (report.switched, report.behind_runs) == (False, 1)


async def test_a_release_that_is_taken_back_finds_its_fold_again(
    store: ReadStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reducer of version 2 folds everything anew; then version 1 is back, and needs to fold only what came since."""
    view = MemoryView()
    await filled(store, view)
    with monkeypatch.context() as newer:
        versioned(newer, 2)
        await projector_of(store, view).handle(STREAM, view.put(*a_short_run("run_later").commits(3)))
        assert (await store.progress(PROJECTION, STREAM)).generation == 2
    older = projector_of(store, view)
    await older.handle(STREAM, view.put(*a_short_run("run_latest").commits(3)))
    assert (await store.progress(PROJECTION, STREAM)).generation == 1
    assert older.last_rebuild is not None
    assert older.last_rebuild.back
    for run_id in ("run_later", "run_latest"):
        assert await store.load(RunAddress("acme", run_id)) is not None


async def test_what_another_reducer_folded_is_not_gone_back_to(
    store: ReadStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = MemoryView()
    await filled(store, view)
    versioned(monkeypatch, 2)
    projector = projector_of(store, view)
    await projector.handle(STREAM, view.put(*a_short_run("run_later").commits(3)))
    with pytest.raises(Conflict, match="reducer version 1"):
        await projector.rebuild(back=True)


def versioned(monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    """All that looks at the reducer's version finds another one."""
    for module in (generations_module, projector_module, rebuild_module, store_module):
        monkeypatch.setattr(module, "REDUCER_VERSION", version)


async def test_a_rebuild_of_empty_streams_is_switched_to(store: ReadStore) -> None:
    projector = projector_of(store, MemoryView("RL_VIEW_0"), MemoryView("RL_VIEW_1"))
    assert (await projector.rebuild()).switched


async def test_a_rebuild_that_another_one_overtook_changes_nothing(store: ReadStore) -> None:
    view = MemoryView()
    projector = await filled(store, view)
    read = view.read

    async def overtaken(**bounds: int) -> object:
        async for page in read(**bounds):
            await Generations(store).begin()
            yield page

    view.read = overtaken  # type: ignore[method-assign, assignment]
    with pytest.raises(Conflict):
        await projector.rebuild()
    assert (await store.progress(PROJECTION, STREAM)).generation == 1


async def test_of_several_processes_that_notice_one_rebuilds(store: ReadStore) -> None:
    view = MemoryView()
    await filled(store, view)
    view.make_anew("e2")
    story = a_waiting_run("run_new")
    messages = view.put(*story.commits(2))
    projectors = [
        Projector(store=store, views={STREAM: view}, cache_bytes=1 << 20, cache_runs=9, takeover_after_s=0.3)
        for _ in range(3)
    ]

    async def drive(projector: Projector) -> None:
        for _ in range(50):
            try:
                return await projector.handle(STREAM, messages)
            except Retryable:
                await asyncio.sleep(0.05)
        raise AssertionError("never came to an end")

    await asyncio.gather(*(drive(projector) for projector in projectors))
    assert await store.load(RunAddress("acme", "run_new")) is not None
    assert await store.load(RunAddress("acme", "run_0")) is None


async def test_a_rebuild_that_does_not_get_on_is_taken_over(store: ReadStore) -> None:
    view = MemoryView()
    await filled(store, view)
    await Generations(store).begin()  # by a process that died
    view.make_anew("e2")
    projector = Projector(store=store, views={STREAM: view}, cache_bytes=1, cache_runs=1, takeover_after_s=0.01)
    await projector.handle(STREAM, view.put(*a_waiting_run("run_new").commits(2)))
    assert await store.load(RunAddress("acme", "run_new")) is not None


async def test_what_is_kept_for_a_way_back_keeps_nothing_that_was_erased(store: ReadStore) -> None:
    """To see it fail: take `_forget_kept` out."""
    view = MemoryView()
    projector = await filled(store, view)
    await projector.rebuild()
    story = a_short_run("run_1").then(
        events.LogCompacted(
            from_sequence=1, to_sequence=12, snapshot_ref="-", sha256="-", policy="asked to", reason="erasure",
            erased=("*",),
        )
    )  # fmt: skip
    await projector.handle(STREAM, view.put(story.commits(12)[1]))
    now = await store.load(RunAddress("acme", "run_1"))
    assert now is not None
    async with store.reading() as connection:
        for table in (runs, items):
            found = await connection.scalar(
                select(func.count()).select_from(table).where(table.c.generation == 1, table.c.run_id == "run_1")
            )
            assert found == 0
    assert (await projector.rebuild(back=True)).generation == 1
    then = await store.load(RunAddress("acme", "run_1"))
    assert then is not None
    assert reducer.checksum(then.state) == reducer.checksum(now.state)
