"""What an operator may ask a service, without a broker."""

import pytest
from faststream.nats import TestNatsBroker

from runlane.hosting.connections import Credentials
from runlane.hosting.health import Health
from runlane.hosting.service import Running, control_broker
from runlane.hosting.settings import CommonSettings
from runlane.kernel.errors import Retryable
from runlane_contracts.codec import decode_json
from runlane_contracts.lifecycle import Refused
from runlane_contracts.problems import Code


async def healthy():
    return Health(ready=True, detail={"lag": 3})


async def shout(body: bytes) -> bytes:
    return body.upper()


async def refuse(_body: bytes) -> bytes:
    raise Refused(Code.INVALID_STATE, "not now")


async def stumble(_body: bytes) -> bytes:
    raise Retryable("full", retry_after_s=2.0)


async def fail(_body: bytes) -> bytes:
    raise ZeroDivisionError


@pytest.fixture
async def ask():
    operations = {"shout": shout, "refuse": refuse, "stumble": stumble, "fail": fail}
    running = Running(name="projector", health=healthy, operations=operations)
    settings = CommonSettings(instance="one")
    broker = control_broker(running, Credentials("nats://127.0.0.1:1"), settings)
    async with TestNatsBroker(broker) as tested:

        async def request(verb, body=b"{}"):
            return (await tested.request(body, f"rl.svc.projector.{verb}")).body

        yield request


async def test_every_service_answers_a_ping(ask):
    answer = decode_json(await ask("ping"))
    assert (answer["name"], answer["instance"], answer["ready"], answer["detail"]) == (
        "projector", "one", True, {"lag": 3},
    )  # fmt: skip


async def test_an_operation_gets_the_very_bytes_that_were_sent(ask):
    assert await ask("shout", b"9abc") == b"9ABC"
    assert await ask("shout", b"9") == b"9"


@pytest.mark.parametrize(
    ("verb", "code"), [("refuse", "invalid_state"), ("stumble", "overloaded"), ("fail", "internal")]
)
async def test_an_operation_that_fails_answers_with_a_code(ask, verb, code):
    assert decode_json(await ask(verb))["code"] == code
