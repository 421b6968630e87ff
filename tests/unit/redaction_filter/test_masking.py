"""Facts in, facts as people may see them out."""

import json
from typing import Any

import msgspec
import pytest

from runlane.masking.masker import MAX_REDACTIONS, Masker, Unreadable, masked_id
from runlane.masking.scanner import Scanner
from runlane_contracts import events
from runlane_contracts.classification import Classification
from runlane_contracts.codec import decode_json, encode
from runlane_contracts.envelope import Fact
from runlane_contracts.ids import is_id
from support import secrets
from support.runs import Story

MASKER = Masker(Scanner())
TOKEN = secrets.tokens()["github"][1]
MASK = "[masked:github-token]"


def a_fact(payload: events.Payload, **envelope: Any) -> Fact:
    return Story().then(payload, **envelope).facts[0]


def a_message(content: Any, **envelope: Any) -> Fact:
    return a_fact(events.MessageCompleted(message_id="m1", role="assistant", content=content), **envelope)


def content_of(fact: Fact) -> Any:
    return decode_json(MASKER.fact(fact).payload)["content"]


def paths(fact: Fact) -> list[tuple[str, str, str]]:
    return [(one.path, one.rule, one.action) for one in MASKER.fact(fact).redactions]


@pytest.mark.parametrize("name", secrets.tokens())
def test_a_token_anywhere_in_a_payload_is_masked_and_recorded(name: str) -> None:
    rule, token = secrets.tokens()[name]
    fact = a_message([{"text": f"it is {token}."}, {"a/b~c": {token: 1}}])
    assert MASKER.is_suspicious(encode(fact))
    masked = MASKER.fact(fact)
    assert token.encode() not in encode(masked)
    assert decode_json(masked.payload)["content"] == [
        {"text": f"it is [masked:{rule}]."}, {"a/b~c": {f"[masked:{rule}]": 1}},
    ]  # fmt: skip
    assert ("/content/0/text", rule, "masked") in paths(fact)


def test_a_pointer_spells_what_is_in_the_view() -> None:
    fact = a_message({"a/b": {"~": [f"x {TOKEN}"]}})
    assert paths(fact) == [("/content/a~1b/~0/0", "github-token", "masked")]


def test_two_keys_that_are_masked_alike_both_stay() -> None:
    other = TOKEN[:-2] + "9z"
    assert content_of(a_message({TOKEN: 1, other: 2})) == {MASK: 1, f"{MASK}-2": 2}


@pytest.mark.parametrize("escape", ["\\u002d", "\\u0070", "\\/"])
def test_an_escape_in_the_json_hides_nothing(escape: str) -> None:
    token = secrets.tokens()["openai project"][1] if escape == "\\u002d" else TOKEN
    spelled = {"\\u002d": token.replace("-", escape, 1), "\\u0070": token.replace("p", escape, 1),
               "\\/": "https:\\/\\/u:" + "pa55word@h"}[escape]  # fmt: skip
    raw = b'{"message_id":"m1","role":"user","content":"' + spelled.encode() + b'"}'
    fact = msgspec.structs.replace(a_message("x"), payload=msgspec.Raw(raw))
    assert MASKER.is_suspicious(encode(fact))
    assert "[masked:" in content_of(fact)


def test_a_key_given_twice_hides_nothing() -> None:
    raw = b'{"message_id":"m1","role":"user","content":"' + TOKEN.encode() + b'","content":"x"}'
    fact = msgspec.structs.replace(a_message("x"), payload=msgspec.Raw(raw))
    assert TOKEN.encode() not in encode(MASKER.fact(fact))


def test_what_a_key_names_a_secret_is_masked_whole() -> None:
    content = {
        "password": "hunter2", "headers": {"Authorization": "x", "Accept": "*/*"}, "apiKey": 12345,
        "credentials": {"user": "u", "more": ["p"]}, "token": None, "secret": True, "passwd": "",
    }  # fmt: skip
    mask = "[masked:secret-name]"
    assert content_of(a_message(content)) == {
        "password": mask, "headers": {"Authorization": mask, "Accept": "*/*"}, "apiKey": mask,
        "credentials": mask, "token": None, "secret": True, "passwd": "",
    }  # fmt: skip


def test_the_schema_of_a_password_is_no_password() -> None:
    schema = {"type": "object", "properties": {"password": {"type": "string", "format": "password", "writeOnly": True}}}
    fact = a_fact(events.InputRequested(input_id="i1", prompt="?", schema=schema))
    assert decode_json(MASKER.fact(fact).payload)["schema"] == schema
    schema["properties"]["password"]["default"] = "hunter2"
    fact = a_fact(events.InputRequested(input_id="i1", prompt="?", schema=schema))
    assert b"hunter2" not in bytes(MASKER.fact(fact).payload)


def test_a_secret_field_is_masked_whatever_it_holds() -> None:
    fact = a_fact(events.InputProvided(input_id="i1", by="bob", secret_value={"pin": 1}))
    assert MASKER.needs_masking(fact)
    assert decode_json(MASKER.fact(fact).payload)["secret_value"] == "[masked:secret-field]"
    assert paths(fact) == [("/secret_value", "secret-field", "masked")]


def test_a_secret_field_that_is_not_set_is_not_invented() -> None:
    fact = a_fact(events.InputProvided(input_id="i1", by="bob", value="x"))
    assert decode_json(MASKER.fact(fact).payload) == {"input_id": "i1", "by": "bob", "value": "x"}


def test_all_content_of_a_restricted_fact_is_masked() -> None:
    fact = a_message({"a": "b"}, classification=Classification.RESTRICTED)
    assert MASKER.needs_masking(fact)
    assert decode_json(MASKER.fact(fact).payload) == {
        "message_id": "m1", "role": "assistant", "content": "[masked:restricted]",
    }  # fmt: skip
    failed = a_fact(
        events.ToolFailed(tool_call_id="c1", error=events.Problem(code="e1", message="it said so")),
        classification=Classification.RESTRICTED,
    )
    error = decode_json(MASKER.fact(failed).payload)["error"]
    assert error == {"code": "e1", "message": "[masked:restricted]", "retryable": False}
    assert paths(failed) == [("/error/message", "restricted", "masked")]


def test_a_restricted_fact_of_an_unknown_type_loses_its_payload() -> None:
    fact = Story().raw("x.happened", b'{"a":"b"}', classification=Classification.RESTRICTED).facts[0]
    assert MASKER.fact(fact).payload == msgspec.Raw(b"{}")
    assert paths(fact) == [("", "restricted", "removed")]


@pytest.mark.parametrize("type_", sorted(events.PAYLOADS))
def test_a_masked_payload_still_fits_its_type(type_: str) -> None:
    fields = dict.fromkeys(events.PAYLOADS[type_].__struct_fields__, TOKEN)
    known: dict[str, Any] = {
        "lease_epoch": 1, "attempt": 1, "version": 1, "dispatch": "pool", "deadline_at": "2026-03-01T00:00:00Z",
        "expires_at": "2026-03-01T00:00:00Z", "limits": {"max_attempts": 2}, "on": [{"kind": "input", "id": TOKEN}],
        "usage": {TOKEN: 1}, "error": {"code": "c", "message": TOKEN}, "redacted": True, "side_effect": "none",
        "content_ref": {"uri": f"https://h/{TOKEN}", "sha256": "x", "size": 1}, "outcome": "executed",
        "editable": True, "decision": "approved", "schema": {"title": TOKEN}, "cause": "expired",
        "from_sequence": 1, "to_sequence": 2, "quorum": 2, "not_by": [TOKEN], "approved_by": [TOKEN],
    }  # fmt: skip
    if type_ == "log.compacted":
        known |= {"reason": "erasure", "erased": [TOKEN]}
    fields |= {name: value for name, value in known.items() if name in fields}
    if "agent" in fields:
        fields["agent"] = f"{TOKEN} " + "a" * (127 - len(TOKEN))
    fact = msgspec.structs.replace(a_message("x"), type=type_, payload=msgspec.Raw(encode(fields)))
    events.decode_payload(type_, fact.payload)
    masked = MASKER.fact(fact)
    events.decode_payload(type_, masked.payload)
    assert TOKEN.encode() not in encode(masked)


def test_an_id_that_holds_a_secret_becomes_the_same_other_id_everywhere() -> None:
    fact = a_fact(events.ToolRunning(tool_call_id=TOKEN), turn_id=TOKEN, causation_ids=(TOKEN, "evt_1"))
    masked = MASKER.fact(fact)
    other = masked_id(TOKEN)
    assert is_id(other)
    assert decode_json(masked.payload)["tool_call_id"] == other
    assert masked.subject is not None
    assert masked.subject.id == masked.turn_id == other
    assert masked.causation_ids == (other, "evt_1")
    assert TOKEN.encode() not in encode(masked)


@pytest.mark.parametrize("name", secrets.survivors())
def test_what_is_no_secret_leaves_the_payload_as_it_was(name: str) -> None:
    fact = a_message(secrets.survivors()[name])
    assert MASKER.fact(fact) == fact


def test_numbers_keep_their_value() -> None:
    content = {"big": 12345678901234567890123, "small": 1e-7, "one": 1.0, "token": "x"}
    assert content_of(a_message(content)) == {**content, "token": "[masked:secret-name]"}


def test_redactions_are_bounded_and_the_rest_is_masked_all_the_same() -> None:
    fact = a_message([TOKEN] * (MAX_REDACTIONS + 50))
    masked = MASKER.fact(fact)
    assert decode_json(masked.payload)["content"] == [MASK] * (MAX_REDACTIONS + 50)
    assert len(masked.redactions) == MAX_REDACTIONS + 1
    assert (masked.redactions[-1].path, masked.redactions[-1].rule) == ("", "more")


def test_a_long_path_is_recorded_as_the_whole_payload() -> None:
    assert paths(a_message({"k" * 5000: TOKEN})) == [("", "github-token", "masked")]


@pytest.mark.parametrize("payload", [b'{"a":1e999}', b'{"a":"\xff"}', b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}"])
def test_what_no_reader_could_decode_is_named(payload: bytes) -> None:
    fact = Story().raw("x.happened").facts[0]
    with pytest.raises(Unreadable):
        MASKER.fact(msgspec.structs.replace(fact, payload=msgspec.Raw(payload)))


def test_masking_is_deterministic() -> None:
    fact = a_message({"a": TOKEN, "password": "x", TOKEN: [secrets.private_key()]})
    assert encode(MASKER.fact(fact)) == encode(Masker(Scanner()).fact(fact))


def test_a_masked_fact_is_masked_again_to_itself() -> None:
    fact = MASKER.fact(a_message({"a": f"x {TOKEN}", TOKEN: [secrets.private_key()]}))
    assert MASKER.fact(fact) == fact


def test_json_in_a_string_is_masked_too() -> None:
    arguments = json.dumps({"env": {"DB_PASSWORD": "correct horse"}, "cmd": f"export X={TOKEN}"})
    for depth in (arguments, json.dumps({"a": arguments})):
        masked = json.dumps(content_of(a_message(depth)))
        assert "correct horse" not in masked
        assert TOKEN not in masked
