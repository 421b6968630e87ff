"""P11 over the real service: a broker, a gateway and a supervisor that is taken away and comes back, random commands.

After every story: one resolution for each approval, one end, lease epochs that never fall, and a ledger that says what
the log says.
"""

import asyncio
from collections import Counter
from datetime import datetime, timedelta
from itertools import count
from typing import Any

import httpx
import msgspec
from hypothesis import HealthCheck, Phase, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from runlane.kernel import clock
from runlane_contracts import events
from support.write_side import WriteSide, eventually, fact, write_side

STORIES, STEPS = 16, 20
NUMBERS = count()
COMMANDS = st.sampled_from([
    ("approval.resolve", {"approval_id": "a1", "decision": "approved"}),
    ("approval.resolve", {"approval_id": "a1", "decision": "rejected"}),
    ("approval.resolve", {"approval_id": "a2", "decision": "modified", "data": {"x": 1}}),
    ("approval.revoke", {"approval_id": "a2", "reason": "r"}),
    ("tool.retry", {"tool_call_id": "c1"}),
    ("run.pause", {}),
    ("run.resume", {}),
    ("run.cancel", {}),
    ("message.send", {"content": "hi"}),
])  # fmt: skip


class Site:
    """One broker, gateway and supervisor for all stories, on a loop of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._context = write_side(supervisor=False)
        self.side: WriteSide = self.wait(self._context.__aenter__())
        self.jump = timedelta()
        self.up = False

    def wait(self, work: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 30))

    def now(self) -> datetime:
        """The supervisor's clock, which may be set."""
        return clock.utc_now() + self.jump

    def start(self) -> None:
        if not self.up:
            self.wait(self.side.start_supervisor(now=self.now))
            self.up = True

    def stop(self) -> None:
        if self.up:
            self.wait(self.side.stop_supervisor())
            self.up = False

    def close(self) -> None:
        self.stop()
        self.wait(self._context.__aexit__(None, None, None))
        self.loop.close()


class OneRun(RuleBasedStateMachine):
    site: Site

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[str, dict[str, Any], str]] = []
        self.first: dict[str, Any] = {}
        self.owners = 0

    @initialize()
    def a_run_asks(self) -> None:
        self.site.start()
        self.site.jump = timedelta()
        self.me = self.site.side.client()
        self.run_id = self.site.wait(self.me.start_run(run_id=f"run_{next(NUMBERS)}"))
        self.somebody_takes_it()

    @rule()
    def somebody_takes_it(self) -> None:
        """A worker takes the lease if it is free, and asks what was not asked yet."""
        self.site.wait(self._take())

    async def _take(self) -> None:
        self.owners += 1
        body = {"worker_id": f"w{self.owners}", "ttl_s": 30}
        reply = await self.me.http.post(f"/v1/runs/{self.run_id}/lease", json=body)
        if reply.status_code != 201:
            return
        epoch = reply.json()["lease_epoch"]
        await self.me.post_events(self.run_id, epoch, fact("run.started"))
        await self.me.post_events(
            self.run_id, epoch,
            fact("tool.requested", tool_call_id="c1", name="n", arguments={}, action_digest="d1"),
            fact("tool.failed", tool_call_id="c1", error={"code": "x", "retryable": True}),
            *(fact("approval.requested", approval_id=f"a{n}", description="d", risk="r", version=1, editable=True,
                   action_digest=f"d{n}") for n in (1, 2)),
        )  # fmt: skip

    @rule(command=COMMANDS)
    def somebody_commands(self, command: tuple[str, dict[str, Any]]) -> None:
        self.sent.append((*command, f"{self.run_id}-{len(self.sent)}"))
        self.site.wait(self._ask(self.sent[-1]))

    @rule(back=st.integers(0, 4), at_once=st.integers(1, 3))
    def commands_come_again(self, back: int, at_once: int) -> None:
        async def again() -> None:
            await asyncio.gather(*(self._ask(one) for one in self.sent[-1 - back :] for _ in range(at_once)))

        self.site.wait(again())

    async def _ask(self, one: tuple[str, dict[str, Any], str], wait_s: int | None = None) -> httpx.Response:
        type_, payload, key = one
        return await self.me.command(self.run_id, type_, payload, key=key, wait_s=wait_s)

    @rule()
    def the_supervisor_goes(self) -> None:
        self.site.stop()

    @rule()
    def the_supervisor_comes(self) -> None:
        self.site.start()

    @rule(seconds=st.sampled_from([-30, 5, 40]))
    def the_clock_is_set(self, seconds: int) -> None:
        self.site.jump += timedelta(seconds=seconds)

    def teardown(self) -> None:
        if not hasattr(self, "run_id"):
            return
        self.site.start()
        self.site.wait(self._check())

    async def _check(self) -> None:
        for one in self.sent:
            answer = await eventually(lambda one=one: self._settled(one), within_s=20)
            assert answer == await self._settled(one), "one command, one answer"
            self.first[one[2]] = answer
        facts = await self.site.side.facts(self.run_id)
        assert [one.sequence for one in facts] == list(range(1, len(facts) + 1))
        resolved = Counter(msgspec.json.decode(one.payload)["approval_id"] for one in facts
                           if one.type == "approval.resolved")  # fmt: skip
        assert not [id_ for id_, times in resolved.items() if times > 1], resolved
        ends = [one.sequence for one in facts if one.type in events.TERMINAL_RUN]
        assert ends in ([], [len(facts)])
        taken = [msgspec.json.decode(one.payload)["lease_epoch"] for one in facts if one.type == "run.leased"]
        assert taken == sorted(set(taken))
        written = [one.lease_epoch for one in facts if one.lease_epoch]
        assert written == sorted(written)
        self._agree(facts)

    def _agree(self, facts: list[Any]) -> None:
        """What the ledger calls applied is in the log or was so already; what it calls rejected is not in the log."""
        caused = {cause for one in facts if one.lease_epoch == 0 for cause in one.causation_ids}
        for type_, _, key in self.sent:
            entry = self.first[key]
            if entry["status"] == "applied":
                assert entry["command_id"] in caused or type_ in {"run.cancel", "run.pause"}, entry
                assert entry["applied_sequence"] <= len(facts)
            else:
                assert entry["command_id"] not in caused, entry

    async def _settled(self, one: tuple[str, dict[str, Any], str]) -> dict[str, Any] | None:
        reply = await self.me.http.get("/v1/commands", params={"idempotency_key": one[2]})
        assert reply.status_code == 200, reply.text
        entry: dict[str, Any] = reply.json()
        return None if entry["status"] == "accepted" else entry


def test_p11_random_commands_crashes_repeats_and_clocks_leave_one_history() -> None:
    """To see it fail: let `machine._waiting_approval` not look at the resolution."""
    OneRun.site = Site()
    case = OneRun.TestCase
    case.settings = settings(
        max_examples=STORIES, stateful_step_count=STEPS, deadline=None, derandomize=True, database=None,
        suppress_health_check=list(HealthCheck), phases=[Phase.generate],
    )  # fmt: skip
    try:
        case("runTest").runTest()
    finally:
        OneRun.site.close()
