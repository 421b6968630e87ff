"""What a release wrote, today's code reads, and writes again byte for byte."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runlane.redaction_filter.signals import signal_body
from runlane_contracts import codec, events, reducer
from runlane_contracts.commands import COMMANDS, LedgerStatus, decode_command_payload
from runlane_contracts.cursor import REDUCER_VERSION, CursorForeign, CursorInvalid, CursorKeys, Position, Scope
from runlane_contracts.previews import PreviewGap
from runlane_contracts.problems import Code, ProblemDocument
from runlane_contracts.resume import End, EndReason, Hello, Outcome, ResetReason, SnapshotFrame, Synced
from support import golden

FIXTURES = Path(__file__).parents[2] / "contracts" / "fixtures" / "v1"


def lines(name: str) -> list[bytes]:
    return (FIXTURES / name).read_bytes().splitlines()


def decoder(cls: type) -> Callable[[bytes], Any]:
    return msgspec.json.Decoder(cls).decode


@pytest.mark.parametrize(
    ("name", "decode"),
    [
        ("facts.jsonl", codec.decode_fact),
        ("signals.jsonl", codec.decode_fact),
        ("drafts.jsonl", codec.decode_draft),
        ("commit.json", codec.decode_commit),
        ("commands.jsonl", codec.decode_command),
        ("ledger_entries.jsonl", codec.decode_ledger_entry),
        ("previews.jsonl", codec.decode_preview),
        ("preview_batch.json", codec.decode_preview_batch),
        ("problems.jsonl", decoder(ProblemDocument)),
    ],
)
def test_every_message_is_written_again_byte_for_byte(name: str, decode: Callable[[bytes], Any]) -> None:
    assert lines(name)
    for line in lines(name):
        assert codec.encode(decode(line)) == line


def test_every_frame_is_written_again_byte_for_byte() -> None:
    kinds = {"hello": Hello, "snapshot": SnapshotFrame, "synced": Synced, "preview_gap": PreviewGap, "end": End}
    for line in lines("frames.jsonl"):
        frame = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        event = msgspec.json.decode(frame["event"])
        raw = bytes(frame["data"])
        assert codec.encode(decoder(kinds[event])(raw)) == raw


def test_every_payload_is_written_again_byte_for_byte() -> None:
    for fact in map(codec.decode_fact, lines("facts.jsonl")):
        payload = events.decode_payload(fact.type, fact.payload)
        if not isinstance(payload, events.UnknownPayload):
            assert codec.encode(payload) == bytes(fact.payload), fact.type
    for command in map(codec.decode_command, lines("commands.jsonl")):
        assert codec.encode(decode_command_payload(command.type, command.payload)) == bytes(command.payload)


def test_there_is_a_fixture_for_each_name_of_the_contract() -> None:
    facts = [codec.decode_fact(line) for line in lines("facts.jsonl")]
    assert {fact.type for fact in facts} >= set(events.PAYLOADS)
    assert any(not events.is_known(fact.type) for fact in facts)
    assert {codec.decode_command(line).type for line in lines("commands.jsonl")} == set(COMMANDS)
    assert {codec.decode_ledger_entry(line).status for line in lines("ledger_entries.jsonl")} == set(LedgerStatus)
    frames = [codec.decode_json(line) for line in lines("frames.jsonl")]
    hellos = [frame["data"] for frame in frames if frame["event"] == "hello"]
    assert {hello["outcome"] for hello in hellos} == set(Outcome)
    assert {hello["reason"] for hello in hellos if "reason" in hello} == set(ResetReason)
    assert {frame["data"]["reason"] for frame in frames if frame["event"] == "end"} == set(EndReason)
    assert {codec.decode_json(line)["code"] for line in lines("problems.jsonl")} == set(Code)


def test_every_field_of_every_payload_is_in_a_fixture() -> None:
    seen: dict[str, set[str]] = {}
    for fact in map(codec.decode_fact, lines("facts.jsonl")):
        if events.is_known(fact.type):
            seen.setdefault(fact.type, set()).update(codec.decode_json(fact.payload))
    for type_, cls in events.PAYLOADS.items():
        assert seen[type_] == set(cls.__struct_encode_fields__), type_


def test_a_cursor_of_a_release_opens_and_only_where_it_belongs() -> None:
    document = codec.decode_json((FIXTURES / "cursors.json").read_bytes())
    keys = CursorKeys(current="k2", keys={name: bytes.fromhex(key) for name, key in document["keys"].items()})
    for case in document["cursors"]:
        position, scope, text = Position(**case["position"]), Scope(**case["scope"]), case["text"]
        assert keys.open(text, scope) == position
        sealer = CursorKeys(current=case["key_id"], keys=keys.keys)
        assert sealer.seal(position, scope) == text
        assert len(text) < 256
        with pytest.raises(CursorForeign):
            keys.open(text, msgspec.structs.replace(scope, run_id="run_other"))
        with pytest.raises(CursorInvalid):
            keys.open(text[:-1] + ("A" if text[-1] != "A" else "B"), scope)


def test_a_signal_is_made_again_byte_for_byte_and_has_no_content() -> None:
    for fact, signal in zip(lines("facts.jsonl"), lines("signals.jsonl"), strict=False):
        assert signal_body(codec.decode_fact(fact)) == signal
        assert b"hunter2" not in signal
        assert b"apples" not in signal


def test_an_unknown_field_is_ignored() -> None:
    for line in lines("facts.jsonl")[:3]:
        newer = line[:-1] + b',"from_the_future":{"x":1}}'
        assert codec.decode_fact(newer).event_id == codec.decode_fact(line).event_id


# --- reducer ----------------------------------------------------------------------------------------------


CASES = [pytest.param(path, id=path.stem) for path in sorted((FIXTURES / "reducer").glob("*.json"))]


class Case(msgspec.Struct):
    name: str
    reducer_version: int
    facts: list[msgspec.Raw]
    checksums: list[str]
    state: dict[str, Any]


@pytest.mark.parametrize("path", CASES)
def test_the_reducer_agrees_with_its_corpus_at_every_sequence(path: Path) -> None:
    case = msgspec.json.decode(path.read_bytes(), type=Case)
    assert case.name == path.stem
    assert case.reducer_version == REDUCER_VERSION
    first = codec.decode_fact(case.facts[0])
    state = reducer.initial_state(first.tenant_id, first.run_id)
    for raw, checksum in zip(case.facts, case.checksums, strict=True):
        reducer.reduce(state, codec.decode_fact(raw))
        assert reducer.checksum(state) == checksum
    assert state == case.state


def test_the_corpus_has_what_it_was_made_to_have() -> None:
    assert {path.stem for path in (FIXTURES / "reducer").glob("*.json")} >= set(golden.corpus())
    types = set()
    for path in (FIXTURES / "reducer").glob("*.json"):
        types |= {codec.decode_fact(raw).type for raw in msgspec.json.decode(path.read_bytes(), type=Case).facts}
    assert types >= set(events.PAYLOADS)
