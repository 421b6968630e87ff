"""The normative text says what the code does, and each MUST names a test that shows it."""

import ast
import re
from pathlib import Path

import pytest

from runlane_contracts import events, headers
from runlane_contracts.commands import COMMANDS
from runlane_contracts.problems import MEANINGS
from runlane_contracts.resume import EndReason, Outcome, ResetReason

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "contracts" / "PROTOCOL.md").read_text()
CLAUSES, _, CASES = TEXT.partition("## 16. Cases")


def section(name: str) -> list[str]:
    found = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- end -->", TEXT, re.DOTALL)
    assert found is not None
    return found[1].splitlines()


def test_the_table_of_error_codes_is_that_of_the_code() -> None:
    rows = [
        f"| `{code.value}` | {meaning.status} | {'yes' if meaning.retryable else ''} | {meaning.title} |"
        for code, meaning in MEANINGS.items()
    ]
    assert section("error codes")[2:] == rows


@pytest.mark.parametrize("type_", list(events.PAYLOADS))
def test_each_type_is_described_with_its_fields(type_: str) -> None:
    family = type_.split(".", 1)[0]
    row = next(line for line in CLAUSES.splitlines() if re.match(rf"\| {family}!? \| `", line))
    assert f"`{type_}" in row or type_ in row
    for name in events.PAYLOADS[type_].__struct_encode_fields__:
        assert re.search(rf"\b{name}\b", row), name


def test_families_that_must_be_understood_are_marked() -> None:
    marked = set(re.findall(r"^\| (\w+)! \|", CLAUSES, re.MULTILINE))
    families = {type_.split(".", 1)[0] for type_ in events.PAYLOADS}
    assert marked == {family for family in families if events.must_understand(f"{family}.x")}


def test_reserved_types_are_listed() -> None:
    sentence = next(part for part in CLAUSES.split("\n\n") if "stated by the platform only" in part)
    assert set(re.findall(r"`([a-z]+\.[a-z_]+)`", sentence)) == events.RESERVED


def test_each_command_header_and_outcome_is_named() -> None:
    names = [
        *COMMANDS, *Outcome, *ResetReason, *EndReason,
        *(value for name, value in vars(headers).items() if name.isupper() and value.startswith(("Rl-", "ce-"))),
    ]  # fmt: skip
    assert [name for name in names if str(name) not in CLAUSES] == []


def test_each_must_has_a_case_and_each_case_a_must() -> None:
    musts = re.findall(r"MUST(?: NOT)?\b[^\[]*?\[([A-Z]\d+)\]", CLAUSES)
    ids = re.findall(r"\[([A-Z]\d+)\]", CLAUSES)
    assert set(musts) <= set(ids)
    assert set(ids) == set(cases()), "PROTOCOL.md §16 and the clauses name different cases"


def test_each_case_names_tests_that_are_there() -> None:
    for case, tests in cases().items():
        assert tests, case
        for path, name in tests:
            assert name in functions(ROOT / "tests" / path), f"{case}: {path}::{name}"


def cases() -> dict[str, list[tuple[str, str]]]:
    rows = [line.split("|")[1:3] for line in section("cases") if re.match(r"\| [A-Z]\d+ \|", line)]
    return {
        case.strip(): [tuple(one.split("::", 1)) for one in re.findall(r"`([^`]+)`", tests)]  # type: ignore[misc]
        for case, tests in rows
    }


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
