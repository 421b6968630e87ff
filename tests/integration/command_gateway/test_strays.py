"""A gateway dies between the ledger and the stream, and nobody repeats the request."""

from collections.abc import Awaitable, Callable
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
from runlane_contracts.commands import LedgerStatus, StartRun, command_id_of
from runlane_contracts.envelope import Actor
from runlane_contracts.headers import COMMIT_ID
from runlane_contracts.subjects import RunAddress
from support.write_side import WriteSide, eventually, problem, write_side


class Killed:
    """Keeps what was to be sent."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, bytes]] = []

    async def publish(self, subject: str, data: bytes, *_: Any, **__: Any) -> NoReturn:
        self.kept.append((subject, data))
        raise Retryable("killed")


async def test_p4_a_command_that_was_recorded_and_never_sent_ends_and_has_no_effect() -> None:
    """To see it fail: let `Strays.sweep` return at once; then it stays `accepted` until the ledger forgets it."""
    async with write_side(stray_after_s=0.5, stray_every_s=0.1) as side:
        me = side.client()
        ledger, run_id, frozen = await _recorded_only(side, "stray")

        async def ended() -> bool:
            entry = await ledger.find("demo", command_id_of("demo", "stray"))
            return entry is not None and entry.status is LedgerStatus.EXPIRED

        await eventually(ended, within_s=30)
        await frozen()  # the gateway was only asleep, for longer than the broker remembers message ids
        body = {"agent": "a", "input": 7, "run_id": run_id, "dispatch": "external"}
        again = await me.http.post("/v1/runs", json=body, headers={"Idempotency-Key": "stray"})
        assert "never sent" in problem(again, 409, "invalid_state")["detail"]
        other = await me.http.post("/v1/runs", json=body | {"input": 8}, headers={"Idempotency-Key": "other"})
        assert other.status_code == 201, other.text
        assert [one["input"] for one in await side.payloads(run_id, "run.created")] == [8]
        found = (await me.http.get("/v1/commands", params={"idempotency_key": "stray"})).json()
        assert found["status"] == "expired"


async def _recorded_only(side: WriteSide, key: str) -> tuple[Ledger, str, Callable[[], Awaitable[object]]]:
    """The ledger, the run that was to be started, and the gateway that sends it after all."""
    connection = await side.connections.of("command_gateway")
    publisher, killed = WindowedPublisher(connection), Killed()
    ledger = Ledger(Bucket(publisher, DirectReader(connection), side.layout.ledger_bucket))
    intake = Intake(
        ledger=ledger, publisher=killed, outcomes=Outcomes(ledger.find, look_every_s=1),
        subjects=side.layout.subjects, now=utc_now, new_id=new_id,
    )  # fmt: skip
    intent = Intent(
        run=RunAddress("demo", new_id("run")), payload=StartRun(agent="a", input=7, dispatch="external"),
        by=Actor(kind="user", id="demo"), idempotency_key=key,
    )  # fmt: skip
    with pytest.raises(Retryable):
        await intake.submit(intent, wait_s=0)
    subject, data = killed.kept[0]
    return ledger, intent.run.run_id, lambda: publisher.publish(subject, data, {COMMIT_ID: new_id("late")})
