"""Previews through a real broker, masked and fenced."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import msgspec
import pytest_asyncio

from runlane.kernel.connection import Connection, connect
from runlane.kernel.direct import DirectReader
from runlane.kernel.lease import Lease
from runlane.kernel.publisher import WindowedPublisher
from runlane_contracts import events, headers
from runlane_contracts.codec import decode_commit, decode_preview_batch, encode
from runlane_contracts.previews import Preview, PreviewBatch, PreviewSubject
from runlane_contracts.subjects import RunAddress
from support import secrets
from support.eventually import eventually
from support.lanes import Lanes, lanes
from support.runs import Story

RUN = RunAddress("acme", "run_1")
TOKEN = secrets.tokens()["anthropic"][1]

Say = Callable[..., Awaitable[None]]


class Watch:
    """What a gateway would get."""

    def __init__(self) -> None:
        self.previews: list[Preview] = []

    async def hear(self, message: object) -> None:
        self.previews += decode_preview_batch(message.data).previews  # type: ignore[attr-defined]

    @property
    def text(self) -> str:
        return "".join(str(one.data) for one in self.previews)


@pytest_asyncio.fixture
async def watch(broker: Lanes) -> Watch:
    one = Watch()
    await broker.connection.nc.subscribe(broker.layout.subjects.preview_view(*RUN), cb=one.hear)
    return one


@pytest_asyncio.fixture
async def say(broker: Lanes) -> AsyncIterator[Say]:
    seqs: dict[str, int] = {}

    async def say(*parts: str, lease_epoch: int = 1, preview_id: str = "pvw_1") -> None:
        for part in parts:
            seqs[preview_id] = seqs.get(preview_id, 0) + 1
            one = Preview(
                preview_id=preview_id, subject=PreviewSubject(kind="message", id="m1"), preview_seq=seqs[preview_id],
                data=part, lease_epoch=lease_epoch,
            )  # fmt: skip
            batch = PreviewBatch(tenant_id=RUN.tenant_id, run_id=RUN.run_id, previews=(one,))
            await broker.connection.nc.publish(broker.layout.subjects.preview_raw(*RUN), encode(batch))
        await broker.connection.nc.flush()

    yield say


async def begin(broker: Lanes, lease_epoch: int = 1) -> None:
    story = Story(*RUN).then(
        events.RunCreated(agent="a"), events.RunLeased(lease_epoch=lease_epoch, worker_id="w"), events.RunStarted()
    )
    await broker.view_reaches(await broker.append(story.commits(size=3)[0]))


async def test_previews_come_out_in_order_with_the_secret_masked(broker: Lanes, watch: Watch, say: Say) -> None:
    async with broker.filter():
        await begin(broker)
        await say("the key is ", *TOKEN, " as they say")
        await eventually(lambda: watch.text.endswith("say"))
    assert watch.text == "the key is sk-ant-[masked:anthropic-key] as they say"
    last = 0
    for one in watch.previews:
        assert one.first_seq == last + 1
        last = one.preview_seq
    assert last == len(TOKEN) + 2


async def test_previews_of_an_owner_that_lost_its_lease_are_dropped_once_the_log_says_so(
    broker: Lanes, watch: Watch, say: Say
) -> None:
    async with broker.filter() as running:
        await begin(broker, lease_epoch=1)
        await say("mine ", lease_epoch=1)
        await eventually(lambda: watch.text == "mine ")
        leased = Story(*RUN).then(*[events.RunLeased(lease_epoch=2, worker_id="v")] * 4).commits(size=4)[0]
        commit = msgspec.structs.replace(leased, first_sequence=4, facts=leased.facts[3:])
        await broker.view_reaches(await broker.append(commit))
        await say("late ", lease_epoch=1)
        await say("new ", lease_epoch=2, preview_id="pvw_2")
        await eventually(lambda: "new" in watch.text)
        assert watch.text == "mine new "
        assert (await running.health()).detail["previews"]["fenced"] == 1


async def test_a_filter_that_just_started_looks_the_lease_up(broker: Lanes, watch: Watch, say: Say) -> None:
    async with broker.filter():
        await begin(broker)
    lease = Lease(worker_id="w", lease_epoch=3, ttl_s=30, expires_at="2099-01-01T00:00:00Z")
    subject = f"$KV.{broker.layout.lease_bucket}.{RUN.tenant_id}.{RUN.run_id}"
    await broker.append_raw(subject, msgspec.json.encode(lease))
    async with broker.filter("b"):
        await say("late ", lease_epoch=2)
        await say("now ", lease_epoch=3, preview_id="pvw_2")
        await eventually(lambda: "now" in watch.text)
    assert watch.text == "now "


async def test_a_restarted_filter_shows_previews_although_nothing_new_is_in_the_log(
    broker: Lanes, watch: Watch, say: Say
) -> None:
    async with broker.filter():
        await begin(broker)
    async with broker.filter("b"):
        await say("hello ")
        await eventually(lambda: watch.text == "hello ")


async def test_whoever_stands_by_shows_nothing_and_takes_over_in_the_middle_of_a_secret(
    broker: Lanes, watch: Watch, say: Say
) -> None:
    async with broker.filter("b", start_wait_s=0) as second:
        async with broker.filter("a", start_wait_s=0) as first:
            await begin(broker)
            active = [one for one in (first, second) if (await one.health()).detail["logs"]["RL_LOG_0"]["active"]]
            assert len(active) == 1
            await say("a ", TOKEN[:20])
            await eventually(lambda: watch.text == "a sk-ant-")
        await eventually(lambda: _is_active(second))
        await say(TOKEN[20:], " b")
        await eventually(lambda: watch.text.endswith("b"))
    assert watch.text == "a sk-ant-[masked:anthropic-key] b"


async def _is_active(running: object) -> bool:
    return bool((await running.health()).detail["logs"]["RL_LOG_0"]["active"])  # type: ignore[attr-defined]


async def test_it_works_with_the_rights_it_has_and_none_beyond() -> None:
    async with lanes(users=True) as broker, AsyncExitStack() as stack:

        async def as_user(name: str) -> Connection:
            one = await connect(url=broker.server.url, user=name, password=f"pw-{name}", name=name)
            stack.push_async_callback(one.close)
            return one

        worker, gateway = await as_user("worker"), await as_user("edge_gateway")
        watch = Watch()
        await gateway.nc.subscribe(broker.layout.subjects.preview_view(*RUN), cb=watch.hear)
        await gateway.nc.flush()
        publisher = await stack.enter_async_context(WindowedPublisher(worker))
        reader = await stack.enter_async_context(DirectReader(gateway))
        story = Story(*RUN).then(events.RunCreated(agent="a", input=TOKEN)).raw("tool.running", b"{}")
        async with broker.filter() as running:
            for commit in story.commits(size=1):
                await publisher.publish(broker.layout.subjects.log(*RUN), encode(commit))
            subject = broker.layout.subjects.view(*RUN)

            async def shown() -> bool:
                last = await reader.last(broker.layout.view_stream_at(0), subject)
                return last is not None and last.headers[headers.LAST_SEQUENCE] == "2"

            await eventually(shown)
            one = Preview(preview_id="p", subject=PreviewSubject(kind="message", id="m"), preview_seq=1, data="x")
            batch = PreviewBatch(tenant_id=RUN.tenant_id, run_id=RUN.run_id, previews=(one,))
            await worker.nc.publish(broker.layout.subjects.preview_raw(*RUN), encode(batch))
            await eventually(lambda: watch.text == "x")
            health = await running.health()
        page = await reader.page(broker.layout.view_stream_at(0), subject)
        facts = [fact for message in page.messages for fact in decode_commit(message.data).facts]
    assert [fact.type for fact in facts] == ["run.created", "log.quarantined"]
    assert health.detail["logs"]["RL_LOG_0"]["quarantined"] == 1
