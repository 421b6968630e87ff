"""Signals as the redaction filter would publish them, from facts stated in a line."""

from datetime import UTC, datetime, timedelta

import msgspec
from msgspec import Raw

from runlane.metrics_aggregator.signals import Signal, decode_signal
from runlane.redaction_filter.signals import signal_body
from runlane_contracts.classification import Classification
from runlane_contracts.codec import timestamp
from runlane_contracts.envelope import Actor, Fact
from runlane_contracts.tracing import own_context

T0 = datetime(2026, 1, 1, tzinfo=UTC)


class Story:
    """One run, told fact by fact; each a second after the one before unless it says when."""

    def __init__(self, run_id: str = "r1", tenant_id: str = "acme", traceparent: str | None = "own") -> None:
        self.run_id, self.tenant_id = run_id, tenant_id
        self.traceparent = own_context(tenant_id, run_id).traceparent if traceparent == "own" else traceparent
        self.facts: list[Fact] = []
        self.epoch = 0
        self._at = T0

    def tell(self, type_: str, after_s: float = 1.0, by_service: bool = False, **payload) -> "Story":
        envelope = {name: payload.pop(name) for name in ("turn_id_", "parent_id", "traceparent") if name in payload}
        self._at += timedelta(seconds=after_s)
        if type_ == "run.leased":
            self.epoch = payload["lease_epoch"]
        if type_ == "run.created":
            envelope.setdefault("traceparent", self.traceparent)
        if "turn_id_" in envelope:
            envelope["turn_id"] = envelope.pop("turn_id_")
        at = timestamp(self._at)
        fact = Fact(
            event_id=f"evt_{self.run_id}_{len(self.facts) + 1}", type=type_, schema_version=1,
            tenant_id=self.tenant_id, run_id=self.run_id, sequence=len(self.facts) + 1,
            lease_epoch=0 if by_service or type_.startswith("run.lease") or type_ == "run.created" else self.epoch,
            actor=Actor(kind="agent", id="a"), occurred_at=at, recorded_at=at,
            classification=Classification.INTERNAL, payload=Raw(msgspec.json.encode(payload)), **envelope,
        )  # fmt: skip
        self.facts.append(fact)
        return self

    @property
    def bodies(self) -> list[bytes]:
        return [signal_body(fact) for fact in self.facts]

    @property
    def signals(self) -> list[Signal]:
        return [decode_signal(body) for body in self.bodies]


def whole_run(run_id: str = "r1", tenant_id: str = "acme", **kw) -> Story:
    """A run with a turn, a message, a tool with an approval, a change of owner, and usage."""
    story = Story(run_id, tenant_id, **kw)
    story.tell("run.created", agent="greengrocer", pool="default", dispatch="pool", input="SECRET")
    story.tell("run.leased", 2.0, lease_epoch=1, worker_id="w1", attempt=1)
    story.tell("run.started")
    story.tell("turn.started", turn_id="t1")
    story.tell("message.completed", message_id="m1", role="assistant", content="SECRET", turn_id_="t1")
    story.tell("tool.requested", tool_call_id="c1", name="buy", arguments={"x": "SECRET"}, side_effect="unsafe",
               turn_id_="t1")  # fmt: skip
    story.tell("approval.requested", approval_id="a1", description="SECRET", risk="high", version=1,
               action_digest="d", tool_call_id="c1")  # fmt: skip
    story.tell("run.waiting", on=[{"kind": "approval", "id": "a1"}])
    story.tell("run.lease_lost", 10.0, lease_epoch=1, cause="expired")
    story.tell("run.leased", 5.0, lease_epoch=2, worker_id="w2", attempt=2)
    story.tell("approval.resolved", 30.0, by_service=True, approval_id="a1", decision="approved",
               decided_by="ann", version=1, traceparent="00-" + "ab" * 16 + "-" + "cd" * 8 + "-01")  # fmt: skip
    story.tell("run.resumed")
    story.tell("tool.running", tool_call_id="c1")
    story.tell("tool.completed", 4.0, tool_call_id="c1", result="SECRET")
    story.tell("turn.completed", turn_id="t1", usage={"input_tokens": 100, "output_tokens": 20})
    story.tell("run.completed", output="SECRET", usage={"input_tokens": 150, "output_tokens": 20, "cost_usd": 0.25})
    return story
