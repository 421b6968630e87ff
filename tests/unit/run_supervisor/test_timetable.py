"""What is due is looked at, once, soon; what fails is looked at again."""

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from runlane.kernel.clock import utc_now
from runlane.kernel.errors import Retryable
from runlane.run_supervisor.timetable import Key, Timetable
from runlane_contracts.subjects import RunAddress


def key(name: str = "r1", kind: str = "run") -> Key:
    return Key(kind, RunAddress("demo", name))


class Looks:
    def __init__(self) -> None:
        self.seen: list[str] = []
        self.answers: list[datetime | Exception | None] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, run: RunAddress) -> datetime | None:
        self.seen.append(run.run_id)
        await self.gate.wait()
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def until(self, count: int, within_s: float = 3.0) -> None:
        async with asyncio.timeout(within_s):
            while len(self.seen) < count:
                await asyncio.sleep(0.005)


@asynccontextmanager
async def running(looks: Looks, **options: int):
    table = Timetable({"run": looks}, now=utc_now, **options)
    task = asyncio.get_running_loop().create_task(table.run())
    try:
        yield table
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def in_s(seconds: float) -> datetime:
    return utc_now() + timedelta(seconds=seconds)


async def test_moments_fire_in_their_order_and_once() -> None:
    looks = Looks()
    async with running(looks) as table:
        table.set(key("late"), in_s(0.2))
        table.set(key("soon"), in_s(0.05))
        table.set(key("past"), datetime(2020, 1, 1, tzinfo=UTC))
        await looks.until(3)
        await asyncio.sleep(0.2)
    assert looks.seen == ["past", "soon", "late"]
    assert (len(table), table.fired) == (0, 3)


async def test_a_moment_can_be_moved_and_called_off() -> None:
    looks = Looks()
    async with running(looks) as table:
        table.set(key("moved"), in_s(0.05))
        table.set(key("moved"), in_s(0.3))
        table.set(key("off"), in_s(0.05))
        table.set(key("off"), None)
        table.set(key("earlier"), in_s(60))
        table.set(key("earlier"), in_s(0.1))
        await asyncio.sleep(0.2)
        assert looks.seen == ["earlier"]
        await looks.until(2)
    assert looks.seen == ["earlier", "moved"]


async def test_a_look_says_when_to_look_next() -> None:
    looks = Looks()
    looks.answers = [in_s(-5), in_s(0.1)]
    async with running(looks) as table:
        table.set(key(), in_s(0))
        await looks.until(3)
        await asyncio.sleep(0.15)
    assert looks.seen == ["r1"] * 3


async def test_a_moment_that_is_set_during_a_look_is_not_lost() -> None:
    looks = Looks()
    looks.gate.clear()
    async with running(looks) as table:
        table.set(key(), in_s(0))
        await looks.until(1)
        table.set(key(), in_s(-1))
        await asyncio.sleep(0.05)
        assert looks.seen == ["r1"], "one look at a time"
        looks.gate.set()
        await looks.until(2)
    assert looks.seen == ["r1"] * 2


async def test_a_look_that_fails_is_repeated_and_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    looks = Looks()
    looks.answers = [Retryable("away"), RuntimeError("bug"), None]
    async with running(looks) as table:
        table.set(key(), in_s(0))
        await looks.until(3)
    assert table.failed == 2
    assert "bug" in caplog.text


async def test_no_more_looks_than_allowed_at_once() -> None:
    looks = Looks()
    looks.gate.clear()
    async with running(looks, concurrency=3) as table:
        for n in range(10):
            table.set(key(f"r{n}"), in_s(0))
        await asyncio.sleep(0.1)
        assert len(looks.seen) == 3
        looks.gate.set()
        await looks.until(10)


async def test_moving_a_moment_for_ever_does_not_fill_the_memory() -> None:
    looks = Looks()
    async with running(looks) as table:
        for n in range(5_000):
            table.set(key(), in_s(60 + n / 1000))
        table.set(key("other"), in_s(0))
        await looks.until(1)
        await asyncio.sleep(0.05)
        assert len(table._heap) < 100
