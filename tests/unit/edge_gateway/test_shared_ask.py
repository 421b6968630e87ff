"""Those who ask at the same time share the next answer."""

import asyncio

import pytest

from runlane.edge_gateway.shared_ask import SharedAsk


async def test_an_answer_is_to_a_question_put_after_one_came_and_is_shared() -> None:
    begun: list[asyncio.Future[int]] = []

    async def ask() -> int:
        begun.append(asyncio.get_running_loop().create_future())
        return await begun[-1]

    shared = SharedAsk(ask)
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(shared())
        await asyncio.sleep(0)
        late = [tasks.create_task(shared()) for _ in range(5)]
        await asyncio.sleep(0)
        assert len(begun) == 1
        begun[0].set_result(1)
        await first
        await asyncio.sleep(0)
        assert not any(task.done() for task in late)
        begun[1].set_result(2)
    assert first.result() == 1
    assert [task.result() for task in late] == [2] * 5
    assert len(begun) == 2


async def test_a_failed_or_cancelled_ask_leaves_the_others_to_ask_again() -> None:
    answers = [ValueError("no"), 7]

    async def ask() -> int:
        await asyncio.sleep(0.01)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    shared = SharedAsk(ask)
    found = await asyncio.gather(shared(), shared(), shared(), return_exceptions=True)
    assert isinstance(found[0], ValueError)
    assert found[1:] == [7, 7]
    answers[:] = [8, 9]
    asking = asyncio.ensure_future(shared())
    other = asyncio.ensure_future(shared())
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await other in {8, 9}
