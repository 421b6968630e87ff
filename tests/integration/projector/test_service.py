"""The projector as a service, on a real server and both databases."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from sqlalchemy import update

from runlane.kernel.connection import connect
from runlane.kernel.direct import DirectReader
from runlane.projector.view import DirectView
from runlane.read_store import PROJECTION, ReadStore, StreamPosition
from runlane.read_store.tables import generations
from runlane_contracts import events, reducer
from runlane_contracts.codec import decode_json
from runlane_contracts.envelope import Fact
from runlane_contracts.lifecycle import Refused
from runlane_contracts.subjects import RunAddress
from support.eventually import eventually
from support.nats import SMALL, NatsServer, nats_server
from support.runs import Story, a_short_run, a_waiting_run
from support.view_stream import STREAM, cut, provisioned, replayed, running_projector, unmake, view_stream


@pytest_asyncio.fixture
async def server() -> AsyncIterator[NatsServer]:
    async with nats_server(sync_interval="2m") as one:
        await provisioned(one)
        yield one


async def folded(store: ReadStore, story: Story, facts: list[Fact] | None = None) -> None:
    """Until the stored state is that of a full replay."""
    wanted = replayed(story.facts if facts is None else facts, story.run.run_id)

    async def equal() -> bool:
        found = await store.load(RunAddress("acme", story.run.run_id))
        return found is not None and reducer.checksum(found.state) == wanted

    await eventually(equal, within_s=20)


async def test_what_is_in_the_view_and_what_comes_is_folded(server: NatsServer, database_url: str) -> None:
    early, late = a_short_run("run_1"), a_waiting_run("run_2")
    async with view_stream(server) as view, ReadStore.open(database_url) as store:
        await view.put(*early.commits(3))
        async with running_projector(server, database_url) as running:
            await folded(store, early)
            await view.put(*late.commits(2))
            await folded(store, late)
            assert len((await store.list_approvals("acme"))[0]) == 1
            late.then(events.ApprovalResolved(approval_id="a1", decision="approved", decided_by="u", version=1))
            await view.put(late.commits(1)[-1])
            await folded(store, late)
            assert (await store.list_approvals("acme"))[0] == []
            health = await running.health()
            assert health.ready
            assert health.detail["streams"][STREAM]["lag"] == 0


async def test_the_projectors_own_rights_are_enough(tmp_path_factory: pytest.TempPathFactory) -> None:
    url = f"sqlite:///{tmp_path_factory.mktemp('read')}/read.sqlite"
    story = a_short_run()
    async with nats_server(users=True, sync_interval="2m") as server:
        await provisioned(server, user="operator")
        async with (
            view_stream(server, user="redaction_filter") as view,
            ReadStore.open(url) as store,
            running_projector(server, url) as running,
        ):
            await view.put(*story.commits(2))
            await folded(store, story)
            report = decode_json(await running.operations["rebuild"](b""))
            assert report["switched"]
            assert report["differences"] == []


async def test_a_projector_goes_on_where_it_was(server: NatsServer, database_url: str) -> None:
    story = a_short_run()
    commits = story.commits(1)
    async with view_stream(server) as view, ReadStore.open(database_url) as store:
        for start in range(0, 12, 4):
            async with running_projector(server, database_url):
                await view.put(*commits[start : start + 4])
                await folded(store, story, story.facts[: start + 4])
        assert (await store.progress(PROJECTION, STREAM)).position.stream_seq == 12


async def test_a_durable_that_somebody_deleted_is_made_again_and_nothing_is_missing(
    server: NatsServer, database_url: str
) -> None:
    story = a_short_run()
    commits = story.commits(1)
    async with (
        view_stream(server) as view,
        ReadStore.open(database_url) as store,
        running_projector(server, database_url),
    ):
        await view.put(*commits[:6])
        await folded(store, story, story.facts[:6])
        await unmake(server, f"CONSUMER.DELETE.{STREAM}.projector-v1-0")
        await view.put(*commits[6:])
        await folded(store, story)


async def test_a_stream_made_anew_is_folded_from_its_beginning(server: NatsServer, database_url: str) -> None:
    old, new = a_short_run("run_old"), a_waiting_run("run_new")
    async with ReadStore.open(database_url) as store, running_projector(server, database_url):
        async with view_stream(server) as view:
            await view.put(*old.commits(1))
            await folded(store, old)
        await unmake(server, f"STREAM.DELETE.{STREAM}")
        await provisioned(server)
        async with view_stream(server) as view:
            await view.put(*new.commits(2))
        await folded(store, new)
        assert await store.load(RunAddress("acme", "run_old")) is None


async def test_a_lost_database_is_filled_again(server: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> None:
    stories = [a_short_run(f"run_{n}") for n in range(30)]
    first, second = (f"sqlite:///{tmp_path_factory.mktemp('read')}/read.sqlite" for _ in range(2))
    async with view_stream(server) as view:
        await view.put(*(commit for story in stories for commit in story.commits(4)))
        for url in (first, second):
            async with ReadStore.open(url) as store, running_projector(server, url):
                for story in stories:
                    await folded(store, story)


async def test_a_hole_in_the_view_is_reported_and_stops_that_run_only(server: NatsServer, database_url: str) -> None:
    broken, sound = a_short_run("run_1"), a_short_run("run_2")
    async with view_stream(server) as view, ReadStore.open(database_url) as store:
        await view.put(*broken.commits(2)[:3])
        await cut(server, 2)
        await view.put(*broken.commits(2)[3:], *sound.commits(2))
        async with running_projector(server, database_url) as running:
            await folded(store, sound)
            await folded(store, broken, broken.facts[:2])
            assert (await running.health()).detail["streams"][STREAM]["holes"] == 1


async def test_garbage_in_the_view_stops_nobody(server: NatsServer, database_url: str) -> None:
    story = a_short_run("run_1")
    async with (
        view_stream(server) as view,
        ReadStore.open(database_url) as store,
        running_projector(server, database_url),
    ):
        await view.put_raw(RunAddress("acme", "run_bad"), b"\xff\x00 garbage", {})
        await view.put_raw(RunAddress("acme", "run_bad"), b"{}", {"Rl-First-Sequence": "1", "Rl-Last-Sequence": "2"})
        await view.put(*story.commits(4))
        await folded(store, story)
        found = await store.load(RunAddress("acme", "run_bad"))
        assert found is not None
        assert [mark["sequence"] for mark in found.state["marks"]] == [1, 2]


async def test_of_two_instances_one_folds_and_the_other_takes_over(server: NatsServer, database_url: str) -> None:
    story = a_short_run()
    commits = story.commits(1)
    async with (
        view_stream(server) as view,
        ReadStore.open(database_url) as store,
        running_projector(server, database_url),
    ):
        async with running_projector(server, database_url):
            await view.put(*commits[:5])
            await folded(store, story, story.facts[:5])
        await view.put(*commits[5:])
        await folded(store, story)


async def test_a_rebuild_while_facts_come(server: NatsServer, database_url: str) -> None:
    stories = [a_short_run(f"run_{n}") for n in range(60)]
    async with (
        view_stream(server) as view,
        ReadStore.open(database_url) as store,
        running_projector(server, database_url, sweep_every_s=0.2) as running,
    ):
        writing = asyncio.ensure_future(view.put(*(one for story in stories for one in story.commits(3))))
        await asyncio.sleep(0.1)
        for _ in range(2):
            assert decode_json(await running.operations["rebuild"](b'{"force": false}'))["switched"]
        await writing
        for story in stories:
            await folded(store, story)
        assert (await store.progress(PROJECTION, STREAM)).generation == 3


async def test_an_operation_that_is_asked_wrongly_is_refused(server: NatsServer, database_url: str) -> None:
    async with running_projector(server, database_url) as running:
        for body in (b"nonsense", b'{"forced": true}', b"[]"):
            with pytest.raises(Refused):
                await running.operations["rebuild"](body)


async def test_a_view_is_read_whole_and_by_run(server: NatsServer) -> None:
    one, two = a_short_run("run_1"), a_short_run("run_2")
    connection = await connect(url=server.url, name="test")
    async with view_stream(server) as view, DirectReader(connection) as reader:
        await view.put(*(commit for pair in zip(one.commits(3), two.commits(3), strict=True) for commit in pair))
        direct = DirectView(connection, reader, SMALL, 0)
        state = await direct.state()
        assert (state.first_seq, state.last_seq) == (1, 8)
        whole = [message async for page in direct.read(after=2, through=7) for message in page]
        assert [message.stream_seq for message in whole] == [3, 4, 5, 6, 7]
        assert (whole[0].run, whole[0].first, whole[0].last) == (RunAddress("acme", "run_1"), 4, 6)
        by_run = [message async for page in direct.read_run(whole[0].run, through=5) for message in page]
        assert [message.stream_seq for message in by_run] == [1, 3, 5]
        await cut(server, 8)
        rest = [message async for page in direct.read(after=6, through=8) for message in page]
        assert [message.stream_seq for message in rest] == [7], "deleted is not behind"
    await connection.close()


async def test_the_position_is_that_of_the_stream_not_a_count(server: NatsServer, database_url: str) -> None:
    story = a_short_run()
    async with view_stream(server) as view, ReadStore.open(database_url) as store:
        await view.put(*a_short_run("run_x").commits(4))
        await cut(server, 1)
        await view.put(*story.commits(12))
        async with running_projector(server, database_url):
            await folded(store, story)
            position = (await store.progress(PROJECTION, STREAM)).position
            assert position.stream_seq == 4
            assert position != StreamPosition("", 0)


async def test_what_another_reducer_filled_is_filled_again_though_nothing_comes(
    server: NatsServer, database_url: str
) -> None:
    story = a_short_run()
    async with view_stream(server) as view, ReadStore.open(database_url) as store:
        await view.put(*story.commits(4))
        async with running_projector(server, database_url):
            await folded(store, story)
        async with store.writing() as connection:
            await connection.execute(update(generations).values(reducer_version=0))
        async with running_projector(server, database_url):
            await folded(store, story)
