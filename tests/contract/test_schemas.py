"""The generated schemas are those of the code, and they fit what the code writes."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from runlane_contracts import events, schema_export
from runlane_contracts.codec import decode_json

FIXTURES = Path(__file__).parents[2] / "contracts" / "fixtures" / "v1"


def test_the_committed_schemas_are_those_of_the_code() -> None:
    wanted = {name: schema_export.encoded(document) for name, document in schema_export.documents().items()}
    there = {path.name: path.read_bytes() for path in schema_export.DIRECTORY.glob("*.json")}
    assert there.keys() == wanted.keys(), "run: poe schemas"
    assert [name for name in wanted if there[name] != wanted[name]] == [], "run: poe schemas"


def validator(name: str) -> jsonschema.Draft202012Validator:
    document = schema_export.documents()[name]
    jsonschema.Draft202012Validator.check_schema(document)
    return jsonschema.Draft202012Validator(document)


def fixture(name: str) -> list[Any]:
    return [decode_json(line) for line in (FIXTURES / name).read_bytes().splitlines()]


@pytest.mark.parametrize(
    ("schema", "fixtures"),
    [
        ("fact.json", "facts.jsonl"),
        ("fact_draft.json", "drafts.jsonl"),
        ("commit.json", "commit.json"),
        ("command.json", "commands.jsonl"),
        ("ledger_entry.json", "ledger_entries.jsonl"),
        ("preview.json", "previews.jsonl"),
        ("preview_batch.json", "preview_batch.json"),
        ("problem.json", "problems.jsonl"),
    ],
)
def test_what_the_code_writes_fits_its_schema(schema: str, fixtures: str) -> None:
    check = validator(schema)
    for value in fixture(fixtures):
        check.validate(value)


def test_frames_fit_their_schemas() -> None:
    for frame in fixture("frames.jsonl"):
        validator(f"frame_{frame['event']}.json").validate(frame["data"])


def test_a_payload_of_another_shape_does_not_fit() -> None:
    check = validator("fact.json")
    for fact in fixture("facts.jsonl"):
        if fact["type"] == "tool.requested":
            assert not check.is_valid(fact | {"payload": {"name": "x"}})
        assert not check.is_valid({name: value for name, value in fact.items() if name != "event_id"})


def test_a_type_from_the_future_fits() -> None:
    fact = fixture("facts.jsonl")[0]
    assert validator("fact.json").is_valid(fact | {"type": "holo.projected", "payload": {"x": 1}})


def test_the_marks_of_fields_are_in_the_schema() -> None:
    document = schema_export.documents()["payloads.json"]
    assert set(document["properties"]) == set(events.PAYLOADS)
    provided = document["$defs"]["InputProvided"]
    assert provided["x-runlane-secret"] == ["secret_value"]
    assert provided["x-runlane-content"] == ["value"]
    assert provided["x-runlane-item"] == {"kind": "input", "id": "input_id"}


def test_asyncapi_refers_to_nothing_that_is_not_there() -> None:
    document = schema_export.documents()["asyncapi.json"]
    assert document["asyncapi"].startswith("3.")
    refs = list(references(document))
    assert refs
    for ref in refs:
        found: Any = document
        for part in ref.removeprefix("#/").split("/"):
            found = found[part]
    for channel in document["channels"].values():
        for parameter in channel["parameters"]:
            assert f"{{{parameter}}}" in channel["address"]


def references(value: Any) -> Any:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)
