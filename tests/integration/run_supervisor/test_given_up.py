"""A command that a fault of ours keeps from being decided ends where people look: soon, by name, for who waits too."""

from typing import Any

import pytest

from runlane.run_supervisor import machine
from runlane_contracts.commands import Command
from support.write_side import WriteSide, eventually, problem


async def test_a_command_that_cannot_be_decided_is_rejected_in_the_ledger_and_its_run_goes_on(
    side: WriteSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To see it fail: take `on_buried=handler.buried` out of the supervisor's `app.py`."""
    me = side.client()
    run_id = await me.start_run()
    decide = machine.decide

    def faulty(run: Any, command: Command, **more: Any) -> Any:
        if command.type == "message.send":
            raise ZeroDivisionError
        return decide(run, command, **more)

    monkeypatch.setattr(machine, "decide", faulty)
    monkeypatch.setattr("runlane.kernel.consumer.backoff_s", lambda attempt: 0.01)
    waited = await me.command(run_id, "message.send", {"content": "hi"}, key="poison", wait_s=20)
    problem(waited, 500, "internal")
    entry = (await me.http.get("/v1/commands", params={"idempotency_key": "poison"})).json()
    assert (entry["status"], entry["rejection"]["code"]) == ("rejected", "internal")
    assert entry["settled_at"]
    assert (await me.command(run_id, "run.cancel")).status_code == 200
    assert await side.types(run_id) == ["run.created", "run.cancelled"]

    async def buried() -> bool:
        return sum(one.stats.buried for one in side.commands) == 1

    await eventually(buried)
