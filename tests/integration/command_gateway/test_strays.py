"""A gateway dies between the ledger and the stream, and nobody repeats the request."""

from typing import Any, NoReturn

import pytest

from runlane.command_gateway.intake import Intake, Intent
from runlane.command_gateway.outcomes import Outcomes
from runlane.kernel.clock import new_id, utc_now
from runlane.kernel.direct import DirectReader
from runlane.kernel.errors import Retryable
from runlane.kernel.kv import Bucket
from runlane.kernel.ledger import Ledger
from runlane.kernel.publisher import WindowedPublisher
from runlane_contracts.commands import StartRun
from runlane_contracts.envelope import Actor
from runlane_contracts.subjects import RunAddress
from support.write_side import WriteSide, eventually, write_side


class Killed:
    async def publish(self, *_: Any, **__: Any) -> NoReturn:
        raise Retryable("killed")


async def test_p4_a_command_that_was_recorded_and_never_sent_is_applied_once() -> None:
    """To see it fail: let `Strays.sweep` return at once; then it stays `accepted` until the ledger forgets it."""
    async with write_side(stray_after_s=0.5, stray_every_s=0.1) as side:
        me = side.client()
        run_id = await _recorded_only(side, "stray")

        async def begun() -> list[str]:
            return await side.types(run_id)

        assert await eventually(begun, within_s=30) == ["run.created"]
        body = {"agent": "a", "input": 7, "run_id": run_id, "dispatch": "external"}
        again = await me.http.post("/v1/runs", json=body, headers={"Idempotency-Key": "stray"})
        assert (again.status_code, again.json()["sequence"]) == (201, 1)
        found = (await me.http.get("/v1/commands", params={"idempotency_key": "stray"})).json()
        assert (found["status"], "command" in found) == ("applied", False)
        assert await begun() == ["run.created"]


async def _recorded_only(side: WriteSide, key: str) -> str:
    connection = await side.connections.of("command_gateway")
    publisher, direct = WindowedPublisher(connection), DirectReader(connection)
    ledger = Ledger(Bucket(publisher, direct, side.layout.ledger_bucket))
    intake = Intake(
        ledger=ledger, publisher=Killed(), outcomes=Outcomes(ledger.find, look_every_s=1),
        subjects=side.layout.subjects, now=utc_now, new_id=new_id,
    )  # fmt: skip
    intent = Intent(
        run=RunAddress("demo", new_id("run")), payload=StartRun(agent="a", input=7, dispatch="external"),
        by=Actor(kind="user", id="demo"), idempotency_key=key,
    )  # fmt: skip
    with pytest.raises(Retryable):
        await intake.submit(intent, wait_s=0)
    await publisher.close()
    await direct.close()
    return intent.run.run_id
