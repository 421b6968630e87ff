"""One log message in, the view's and the signals' messages out."""

from typing import Any

import msgspec
import pytest

from runlane.kernel.quarantine import Fault
from runlane.masking.masker import Masker
from runlane.masking.rules import RULES_VERSION
from runlane.masking.scanner import Scanner
from runlane.redaction_filter.derive import MAX_VIEW_BYTES, NOBODY, Derived, Deriver, LogMessage
from runlane_contracts import events, headers
from runlane_contracts.codec import decode_commit, decode_fact, encode
from runlane_contracts.envelope import Commit
from runlane_contracts.subjects import Subjects
from support import secrets
from support.runs import Story

SUBJECTS = Subjects()
DERIVER = Deriver(Masker(Scanner()), SUBJECTS, "e1")
STORED_NS = 1_772_323_200_123_456_789
STORED_AT = "2026-03-01T00:00:00.123456Z"
TOKEN = secrets.tokens()["stripe"][1]
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def derive(*payloads: events.Payload, head: int | None = 0, **fields: Any) -> Derived:
    return derived(Story().then(*payloads).commits(len(payloads))[0], head=head, **fields)


def derived(commit: Commit, *, head: int | None = 0, **fields: Any) -> Derived:
    subject = SUBJECTS.log(commit.tenant_id, commit.run_id)
    message = LogMessage(subject, 7, STORED_NS, encode(commit), {})._replace(**fields)
    return DERIVER.derive(message, DERIVER.run_of(message.subject), head)


def test_a_clean_commit_is_shown_as_it_is_with_the_time_it_was_stored() -> None:
    commit = Story().then(
        events.RunStarted(), events.MessageCompleted(message_id="m", role="user", content=[1, {"a": "é"}])
    ).commits()[0]  # fmt: skip
    shown = decode_commit(derived(commit).view.data)
    assert shown == msgspec.structs.replace(
        commit, facts=tuple(msgspec.structs.replace(fact, recorded_at=STORED_AT) for fact in commit.facts)
    )


def test_the_payload_of_a_clean_fact_is_passed_on_byte_by_byte() -> None:
    payload = b'{ "message_id":"m", "role" : "user","content":[1.0,  1e3 ,"\\n"] }'
    commit = Story().raw("message.completed", payload).commits()[0]
    assert payload in derived(commit).view.data


def test_a_commit_with_a_bad_commit_id_is_shown_under_one_of_its_place() -> None:
    body = encode(Story().then(events.RunStarted()).commits()[0]).replace(b'"commit_id":"', b'"commit_id":7,"x":"')
    subject = SUBJECTS.log("acme", "run_1")
    result = DERIVER.derive(LogMessage(subject, 7, STORED_NS, body, {}), DERIVER.run_of(subject), 0)
    shown = decode_commit(result.view.data)
    assert [fact.type for fact in shown.facts] == ["run.started"]
    assert shown.facts[0].recorded_at == STORED_AT
    assert shown.commit_id.startswith("cmt_")
    assert result.findings == ()


def test_a_secret_is_in_neither_view_nor_signal() -> None:
    result = derive(events.ToolRequested(tool_call_id="c", name=f"x {TOKEN}", arguments={"k": TOKEN}))
    for out in (result.view, *result.signals):
        assert TOKEN not in repr(out)
    fact = decode_commit(result.view.data).facts[0]
    assert {one.path for one in fact.redactions} == {"/name", "/arguments/k"}


def test_the_view_message_says_where_it_comes_from() -> None:
    result = derive(events.RunStarted(), events.RunPaused(), head=None)
    assert result.view.subject == SUBJECTS.view("acme", "run_1")
    assert result.view.headers == {
        headers.FIRST_SEQUENCE: "1", headers.LAST_SEQUENCE: "2", headers.LOG_POSITION: "e1:7",
        headers.RULES: RULES_VERSION,
    }  # fmt: skip
    assert (result.first_sequence, result.last_sequence, result.findings) == (1, 2, ())


def test_each_fact_is_one_signal_in_cloud_events_form() -> None:
    result = derive(events.RunStarted(), events.RunPaused())
    assert [out.subject for out in result.signals] == [
        SUBJECTS.signal("acme", "run.started"), SUBJECTS.signal("acme", "run.paused"),
    ]  # fmt: skip
    fact = decode_commit(result.view.data).facts[1]
    assert result.signals[1].headers == {
        headers.FIRST_SEQUENCE: "2", headers.LAST_SEQUENCE: "2", headers.LOG_POSITION: "e1:7",
        "ce-specversion": "1.0", "ce-id": fact.event_id, "ce-type": "run.paused", "ce-source": "/acme/runs/run_1",
        "ce-time": fact.occurred_at,
    }  # fmt: skip
    assert decode_fact(result.signals[1].data) == fact


def test_the_trace_goes_on_only_if_it_is_one() -> None:
    def traced(traceparent: str) -> Commit:
        commit = Story().then(events.RunStarted()).commits()[0]
        fact = msgspec.structs.replace(commit.facts[0], traceparent=traceparent)
        return msgspec.structs.replace(commit, facts=(fact,))

    commit = traced(TRACE)
    result = derived(commit)
    assert result.view.headers[headers.TRACEPARENT] == TRACE
    assert result.signals[0].headers[headers.TRACEPARENT] == TRACE
    forged = derived(traced(f"{TRACE}\r\nX: y"))
    assert headers.TRACEPARENT not in forged.view.headers | forged.signals[0].headers
    own = derived(commit, headers={headers.TRACEPARENT: TRACE.replace("b7", "c8")})
    assert own.view.headers[headers.TRACEPARENT] == TRACE.replace("b7", "c8")


def test_a_bad_fact_is_quarantined_in_view_and_signals() -> None:
    commit = Story().raw("tool.running", b"{}").then(events.RunPaused()).commits()[0]
    result = derived(commit)
    assert [out.subject.rpartition(".signal.acme.")[2] for out in result.signals] == ["log.quarantined", "run.paused"]
    assert [finding.fault for finding in result.findings] == [Fault.PAYLOAD]


def test_a_payload_that_cannot_be_searched_is_not_shown() -> None:
    commit = Story().raw("x.happened", b'{"a":1e999}').commits()[0]
    result = derived(commit)
    assert [finding.fault for finding in result.findings] == [Fault.UNMASKABLE]
    assert b"1e999" not in result.view.data


@pytest.mark.parametrize(
    "subject",
    ["rl.log.x", "rl.log.00.acme.run_1", "rl.log.zz.acme.run_1", "rl.log.00.Acme.run_1", "rl.log.00.acme.run_1.x",
     "rl.log.00.acme", "rl.log.00.acme.r!"],
)  # fmt: skip
def test_a_message_whose_subject_names_no_run_still_has_its_message_in_the_view(subject: str) -> None:
    result = derive(events.RunStarted(), subject=subject)
    assert result.run is NOBODY
    assert result.view.subject == "rl.view." + subject.removeprefix("rl.log.")
    assert decode_commit(result.view.data).facts == ()
    assert result.signals == ()
    assert [finding.fault for finding in result.findings] == [Fault.UNADDRESSED]


def test_the_lease_epoch_that_a_commit_grants_is_reported() -> None:
    assert derive(events.RunStarted()).lease_epoch is None
    leased = [events.RunLeased(lease_epoch=n, worker_id="w") for n in (2, 3)]
    assert derive(*leased).lease_epoch == 3


def test_a_commit_that_masking_made_too_large_loses_its_content() -> None:
    passwords = [{"password": "x"}] * (MAX_VIEW_BYTES // 30)
    said = events.MessageCompleted(message_id="m", role="user", content=passwords)
    result = derive(said, events.MessageStarted(message_id="n", role="x"))
    first, second = decode_commit(result.view.data).facts
    assert events.decode_payload(first.type, first.payload) == events.MessageCompleted(
        message_id="m", role="user", content="[masked:too-large]"
    )
    assert [(one.path, one.rule) for one in first.redactions] == [("/content", "too-large")]
    assert second.type == "message.started"
    assert result.findings == ()


def test_deriving_twice_gives_the_same_bytes() -> None:
    commit = Story().raw("tool.running", b"{}").then(
        events.MessageCompleted(message_id="m", role="user", content={"password": "x", TOKEN: TOKEN})
    ).commits()[0]  # fmt: skip
    again = Deriver(Masker(Scanner()), SUBJECTS, "e1")
    subject = SUBJECTS.log("acme", "run_1")
    message = LogMessage(subject, 7, STORED_NS, encode(commit), {})
    assert encode(again.derive(message, again.run_of(subject), 0)) == encode(derived(commit))


def test_a_fault_of_the_filter_itself_quarantines_one_message_and_stops_none() -> None:
    class Faulty(Masker):
        def is_suspicious(self, body: bytes) -> bool:
            if body:
                raise ZeroDivisionError
            return False

    deriver = Deriver(Faulty(Scanner()), SUBJECTS, "e1")
    commit = Story().then(events.RunStarted(), events.RunPaused()).commits()[0]
    subject = SUBJECTS.log("acme", "run_1")
    bounds = {headers.FIRST_SEQUENCE: "1", headers.LAST_SEQUENCE: "2"}
    result = deriver.derive(LogMessage(subject, 7, STORED_NS, encode(commit), bounds), deriver.run_of(subject), 0)
    assert [fact.type for fact in decode_commit(result.view.data).facts] == ["log.quarantined"] * 2
    assert len(result.signals) == len(result.findings) == 2
