"""`GET /v1/runs/{run_id}/events?wait_s=`: over the view in memory, and over real HTTP where connections matter."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from runlane.edge_gateway.event_reads import EventReads
from runlane.edge_gateway.frames import FactFrames
from runlane.edge_gateway.hub import HubLimits
from runlane.edge_gateway.memory_view import MemoryView
from runlane.edge_gateway.type_filter import EVERYTHING
from runlane.hosting.authorizer import Principal
from runlane.hosting.http import application
from runlane.hosting.http_server import http_server
from runlane_contracts import events
from runlane_contracts.cursor import Position
from runlane_contracts.subjects import RunAddress
from support.edge import KEYS, Edge, edge
from support.eventually import eventually
from support.runs import Story

RUN = RunAddress("acme", "run_1")
PATH = "/v1/runs/run_1/events"


class Everybody:
    """Lets everybody in as the same one, until it does not."""

    def __init__(self) -> None:
        self.principal: Principal | None = Principal("acme", "ann")

    async def authenticate(self, _bearer: str) -> Principal | None:
        return self.principal

    def revalidate(self, _principal: Principal) -> Principal | None:
        return self.principal


@dataclass
class Polling:
    story: Story
    view: MemoryView
    gateway: Edge
    http: httpx.AsyncClient

    def more(self, *what: Any) -> None:
        before = len(self.story.facts)
        self.story.then(*what)
        self.view.store(RUN, self.story.facts[before:])

    async def get(self, **params: Any) -> dict[str, Any]:
        response = await self.http.get(PATH, params=params)
        assert response.status_code == 200, response.text
        return response.json()

    async def waiting(self, count: int = 1) -> None:
        await eventually(lambda: self.gateway.meters.watchers == count)


@asynccontextmanager
async def polling(*, ring_bytes: int = 1024 * 1024, of_tenant: int = 10_000) -> AsyncIterator[Polling]:
    story = Story().then(events.RunCreated(agent="a"), events.RunStarted())
    view = MemoryView()
    view.store(RUN, story.facts)
    limits = HubLimits(ring_bytes=ring_bytes, sweep_s=0.05, linger_s=0.05)
    async with edge(view, hub_limits=limits, of_tenant=of_tenant) as gateway:
        reads = EventReads(
            authorizer=Everybody(),
            presence=gateway.presence,
            view=view,
            states=gateway.hubs.states,
            crowd=gateway.crowd,
            keys=KEYS,
            max_wait_s=5.0,
        )
        async with (
            http_server(application(reads.routes())) as address,
            httpx.AsyncClient(
                base_url=address.url, headers={"Authorization": "Bearer x"}, trust_env=False,
                limits=httpx.Limits(max_connections=None),
            ) as http,
        ):  # fmt: skip
            yield Polling(story, view, gateway, http)


def sequences(page: dict[str, Any]) -> list[int]:
    return [fact["sequence"] for fact in page["events"]]


async def test_what_is_there_already_is_answered_at_once() -> None:
    async with polling() as poll:
        page = await poll.get(wait_s=5)
        assert (sequences(page), page["has_more"], page["ended"]) == ([1, 2], False, False)


async def test_it_waits_for_the_first_fact_after_the_cursor() -> None:
    """Without `wake` in `_Poll`, it answers only at the time-out."""
    async with polling() as poll:
        cursor = (await poll.get())["cursor"]
        async with asyncio.TaskGroup() as tasks:
            answer = tasks.create_task(poll.get(cursor=cursor, wait_s=5))
            await poll.waiting()
            poll.more(events.TurnStarted(turn_id="t1"), events.TurnCompleted(turn_id="t1"))
        assert sequences(answer.result()) == [3, 4]


async def test_at_the_time_out_there_is_an_empty_page_and_the_same_cursor() -> None:
    async with polling() as poll:
        cursor = (await poll.get())["cursor"]
        page = await poll.get(cursor=cursor, wait_s="0.1")
        assert page == {"events": [], "cursor": cursor, "has_more": False, "ended": False}
        assert poll.gateway.meters.watchers == 0


async def test_a_finished_run_is_never_waited_for() -> None:
    async with polling() as poll:
        async with asyncio.TaskGroup() as tasks:
            cursor = (await poll.get())["cursor"]
            answer = tasks.create_task(poll.get(cursor=cursor, wait_s=5))
            await poll.waiting()
            poll.more(events.RunCompleted())
        last = answer.result()
        assert (sequences(last), last["ended"]) == ([3], True)
        async with asyncio.timeout(2):
            again = await poll.get(cursor=last["cursor"], wait_s=5)
        assert again == {"events": [], "cursor": last["cursor"], "has_more": False, "ended": True}


async def test_a_filter_is_waited_for_past_what_it_hides() -> None:
    async with polling() as poll:
        page = await poll.get(types="message.*", wait_s="0.05")
        assert page["events"] == []
        async with asyncio.TaskGroup() as tasks:
            answer = tasks.create_task(poll.get(cursor=page["cursor"], types="message.*", wait_s=5))
            await poll.waiting()
            for index in range(3):
                poll.more(events.TurnStarted(turn_id=f"t{index}"))
                await asyncio.sleep(0.01)
            poll.more(events.MessageCompleted(message_id="m1", role="assistant", content="x"))
        assert [fact["type"] for fact in answer.result()["events"]] == ["message.completed"]


async def test_who_is_far_behind_reads_pages_without_waiting() -> None:
    async with polling(ring_bytes=1) as poll:
        for index in range(30):
            poll.more(events.TurnStarted(turn_id=f"t{index}"))
        got, cursor = [], None
        async with asyncio.timeout(5):
            while len(got) < len(poll.story.facts):
                page = await poll.get(wait_s=5, limit=7, **({} if cursor is None else {"cursor": cursor}))
                got += sequences(page)
                cursor = page["cursor"]
        assert got == list(range(1, len(poll.story.facts) + 1))


async def test_many_who_wait_are_answered_with_the_same_bytes_and_read_nothing() -> None:
    """With a page per waiter from the view, `pages_read` rises with each."""
    async with polling() as poll:
        params = {"cursor": (await poll.get())["cursor"], "wait_s": 5}
        before = poll.view.pages_read
        async with asyncio.TaskGroup() as tasks:
            answers = [tasks.create_task(poll.http.get(PATH, params=params)) for _ in range(60)]
            await poll.waiting(60)
            poll.more(events.TurnStarted(turn_id="t1"))
        assert {answer.result().content for answer in answers} == {answers[0].result().content}
        assert sequences(answers[0].result().json()) == [3]
        assert poll.view.pages_read - before <= 1, "the hub reads the run once, when it opens"


async def test_who_goes_away_waits_no_longer() -> None:
    """Without the protocol's listener the place is taken until the time-out."""
    async with polling() as poll:
        cursor = (await poll.get())["cursor"]
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(poll.get(cursor=cursor, wait_s=5))
            await poll.waiting()
            waiting.cancel()
        async with asyncio.timeout(2):
            await poll.waiting(0)


async def test_who_loses_its_right_while_it_waits_is_told_no_fact() -> None:
    async with polling() as poll:
        cursor = (await poll.get())["cursor"]
        async with asyncio.TaskGroup() as tasks:
            answer = tasks.create_task(poll.http.get(PATH, params={"cursor": cursor, "wait_s": 5}))
            await poll.waiting()
            poll.gateway.allowed = False
        assert (answer.result().status_code, answer.result().json()["code"]) == (401, "unauthenticated")


async def test_a_gateway_that_stops_answers_those_who_wait() -> None:
    async with polling() as poll:
        cursor = (await poll.get())["cursor"]
        async with asyncio.TaskGroup() as tasks:
            answer = tasks.create_task(poll.get(cursor=cursor, wait_s=5))
            await poll.waiting()
            async with asyncio.timeout(2):
                await poll.gateway.crowd.shut_down()
        assert answer.result()["cursor"] == cursor


async def test_one_tenant_cannot_take_every_place() -> None:
    async with polling(of_tenant=1) as poll:
        cursor = (await poll.get())["cursor"]
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(poll.get(cursor=cursor, wait_s=5))
            await poll.waiting()
            second = await poll.http.get(PATH, params={"cursor": cursor, "wait_s": 5})
            assert (second.status_code, second.json()["code"]) == (429, "quota_exceeded")
            assert int(second.headers["retry-after"]) >= 1
            poll.more(events.TurnStarted(turn_id="t1"))
        assert sequences(first.result()) == [3]


@pytest.mark.parametrize("wait", ["-1", "soon", "1e3", "nan", "1.", " 1", "٣"])
async def test_what_is_no_duration_is_refused(wait: str) -> None:
    async with polling() as poll:
        refused = await poll.http.get(PATH, params={"wait_s": wait})
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_request")


async def test_a_cursor_past_the_end_is_refused_by_name_and_never_waited_for() -> None:
    """A rebuilt view that is shorter gives no empty pages for ever."""
    async with polling() as poll:
        ahead = FactFrames(KEYS, RUN, EVERYTHING).cursor(Position("e1", 0, 99))
        async with asyncio.timeout(4):
            refused = await poll.http.get(PATH, params={"cursor": ahead, "wait_s": 5})
        assert (refused.status_code, refused.json()["code"]) == (410, "cursor_expired")
        assert refused.json()["snapshot"] == "/v1/runs/run_1/snapshot"
