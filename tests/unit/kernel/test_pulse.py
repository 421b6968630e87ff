"""Whether the broker answers: told soon, and never because nobody could listen."""

import asyncio
import time

import pytest

from runlane.kernel.errors import Retryable
from runlane.kernel.pulse import Pulse
from support.eventually import eventually


class Broker:
    """Answers pings, some turns of the loop after their answer came, as the client's read loop does; or does not."""

    def __init__(self) -> None:
        self.is_connected = True
        self.received_bytes = 0
        self.answers = True
        self.busy_s = 0.0
        self.pings = 0
        self.unanswered: list[asyncio.Future[bool]] = []

    async def ping(self) -> "asyncio.Future[bool]":
        if not self.is_connected:
            raise Retryable("not connected")
        loop = asyncio.get_running_loop()
        self.pings += 1
        came = loop.create_future()
        if self.busy_s:
            loop.call_soon(time.sleep, self.busy_s)
        if self.answers:
            loop.call_later(0.01, loop.call_soon, loop.call_soon, came.set_result, True)
        else:
            self.unanswered.append(came)
        return came

    def speak(self) -> None:
        self.answers = True
        for came in self.unanswered:
            came.set_result(True)


def a_pulse(broker: Broker) -> Pulse:
    return Pulse(broker, every_s=0.01, patience_s=0.5)  # type: ignore[arg-type]


async def test_what_waits_fails_as_soon_as_the_broker_is_silent_and_what_is_asked_then_fails_at_once() -> None:
    broker = Broker()
    async with a_pulse(broker) as pulse:
        assert pulse.beats
        broker.answers = False
        with pytest.raises(Retryable):
            async with asyncio.timeout(5), pulse.heard():
                await asyncio.sleep(60)
        assert not pulse.beats
        with pytest.raises(Retryable):
            async with pulse.heard():
                raise AssertionError("nothing is asked of a silent broker")
        broker.speak()
        await eventually(lambda: pulse.beats)
        async with pulse.heard():
            await asyncio.sleep(0)


async def test_a_time_out_of_the_callers_own_stays_its_own() -> None:
    async with a_pulse(Broker()) as pulse:
        with pytest.raises(TimeoutError):
            async with pulse.heard():
                raise TimeoutError
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), pulse.heard():
                await asyncio.sleep(1)


async def test_time_in_which_the_loop_did_not_run_does_not_count() -> None:
    """Count `loop.time() - began` in `Pulse`, and a process that was busy for a second takes the broker for silent."""
    broker = Broker()
    broker.busy_s = 0.9
    async with a_pulse(broker) as pulse:
        async with pulse.heard():
            await eventually(lambda: broker.pings >= 4)
        assert pulse.beats


async def test_a_broker_that_sends_much_and_answers_late_is_not_silent() -> None:
    broker = Broker()
    async with a_pulse(broker) as pulse:
        broker.answers = False
        for _ in range(20):
            broker.received_bytes += 1
            await asyncio.sleep(0.05)
            assert pulse.beats


async def test_a_broker_that_is_gone_is_not_silent_it_is_gone() -> None:
    broker = Broker()
    async with a_pulse(broker) as pulse:
        broker.answers = False
        await eventually(lambda: not pulse.beats)
        broker.is_connected = False
        await asyncio.sleep(0.6)
        assert not pulse.beats
        async with pulse.heard():
            await asyncio.sleep(0)  # whoever asks finds out that there is no connection
