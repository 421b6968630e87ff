"""Signals carry what happened, never what was said."""

from typing import Any

import msgspec
import pytest

from runlane.masking.masker import Masker
from runlane.masking.scanner import Scanner
from runlane.redaction_filter.signals import numbers_only, reduced_struct, signal_body, signal_payload
from runlane_contracts import events
from runlane_contracts.codec import decode_fact, decode_json, encode
from runlane_contracts.events import Mark
from support.runs import Story

CANARY = "the-canary-sings"


@pytest.mark.parametrize("type_", sorted(events.PAYLOADS))
def test_no_signal_has_a_content_field(type_: str) -> None:
    cls = events.PAYLOADS[type_]
    marked = {*events.marked_fields(cls, Mark.CONTENT), *events.marked_fields(cls, Mark.SECRET)}
    nested = {"error"}  # a struct with content in it: it stays, without that
    assert not (marked - nested) & set(reduced_struct(cls).__struct_fields__)


def test_the_parts_of_an_approval_that_services_need_stay() -> None:
    asked = events.ApprovalRequested(
        approval_id="a1", description=CANARY, risk="high", version=2, action_digest="sha256:x", data={"x": CANARY},
        tool_call_id="c1", editable=True,
    )  # fmt: skip
    body = decode_json(signal_body(Story().then(asked).facts[0]))
    assert body["payload"] == {
        "approval_id": "a1", "risk": "high", "version": 2, "action_digest": "sha256:x", "tool_call_id": "c1",
        "editable": True,
    }  # fmt: skip
    assert body["subject"] == {"kind": "approval", "id": "a1", "revision": 1}


def test_a_problem_keeps_its_code_and_loses_its_message() -> None:
    failed = events.ToolFailed(tool_call_id="c1", error=events.Problem(code="e1", message=CANARY, retryable=True))
    assert _payload(failed) == {"tool_call_id": "c1", "error": {"code": "e1", "retryable": True}}


def test_limits_and_what_a_run_waits_for_stay() -> None:
    created = events.RunCreated(agent="a", input=CANARY, limits=events.Limits(max_attempts=2))
    assert _payload(created) == {
        "agent": "a", "pool": "default", "dispatch": "pool", "limits": {"max_attempts": 2},
    }  # fmt: skip
    waiting = events.RunWaiting(on=(events.WaitingFor(kind="approval", id="a1"),))
    assert _payload(waiting) == {"on": [{"kind": "approval", "id": "a1"}]}


def test_usage_keeps_numbers_only_and_a_schema_is_dropped() -> None:
    usage = {"input_tokens": 3, "cost": 0.5, "model": CANARY, "cached": {"read": 2, "why": CANARY}, "x": [1]}
    usage[CANARY * 9] = 1
    assert _payload(events.RunCompleted(usage=usage)) == {
        "usage": {"input_tokens": 3, "cost": 0.5, "cached": {"read": 2}},
    }  # fmt: skip
    assert _payload(events.InputRequested(input_id="i1", prompt=CANARY, schema={"a": CANARY})) == {"input_id": "i1"}
    assert numbers_only(True) is None
    assert numbers_only("x") is None
    assert _payload(events.TurnCompleted(turn_id="t1", usage={"a": "x"})) == {"turn_id": "t1"}


def test_an_unknown_type_keeps_nothing_of_its_payload() -> None:
    body = decode_json(signal_body(Story().raw("x.happened", encode({"a": CANARY})).facts[0]))
    assert body["payload"] == {}
    assert body["type"] == "x.happened"


def test_redactions_of_content_are_left_out() -> None:
    fact = Story().then(events.MessageCompleted(message_id="m", role="user", content={"password": "x"})).facts[0]
    masked = Masker(Scanner()).fact(fact)
    assert masked.redactions
    assert decode_fact(signal_body(masked)).redactions == ()


def _payload(payload: events.Payload) -> Any:
    return decode_json(signal_payload(payload.TYPE, msgspec.Raw(encode(payload))))
