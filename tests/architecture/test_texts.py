"""What the texts point at is there: files, headings, verbs, services, decisions, the tests of promises."""

import re
from pathlib import Path

import pytest

from runlane.cli.main import VERBS

ROOT = Path(__file__).parents[2]
FOLDERS = ("contracts", "services", "tests", "k8s")
TEXTS = [*sorted(ROOT.glob("*.md")), *(path for name in FOLDERS for path in sorted((ROOT / name).rglob("*.md")))]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def headings(path: Path) -> set[str]:
    """The anchors of a text, as GitHub makes them."""
    text = FENCE.sub("", path.read_text())
    found = re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", title).lower()).replace(" ", "-") for title in found}


def links(path: Path) -> list[str]:
    return [link for link in LINK.findall(FENCE.sub("", path.read_text())) if "://" not in link]


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_every_link_leads_somewhere(path: Path) -> None:
    dead = []
    for link in links(path):
        place, _, anchor = link.partition("#")
        target = (path.parent / place).resolve() if place else path
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in headings(target)):
            dead.append(link)
        elif not target.is_relative_to(ROOT):
            dead.append(f"{link}: outside the repository")
    assert dead == []


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "contracts" / "adr"
    pages = sorted(path.name for path in folder.glob("[0-9]*.md"))
    rows = re.findall(r"^\| \[(\d{4})\]\(([^)]+)\) \| (.+) \|$", (folder / "README.md").read_text(), re.MULTILINE)
    assert [name for _, name, _ in rows] == pages
    titles = {name: (folder / name).read_text().partition("\n")[0] for name in pages}
    assert {name: f"# {number}. {title}" for number, name, title in rows} == titles


def test_every_service_and_package_is_introduced() -> None:
    path = ROOT / "services" / "README.md"
    targets = {(path.parent / link.partition("#")[0]).resolve() for link in links(path)}
    for package in sorted((ROOT / "services" / "runlane").glob("*/__init__.py")):
        card = package.parent / "README.md"
        assert (card if card.exists() else package.parent) in targets, package.parent.name


def test_every_suite_is_introduced() -> None:
    text = (ROOT / "tests" / "README.md").read_text()
    suites = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name[0] not in "._"}
    assert [name for name in sorted(suites) if f"{name}/`" not in text and f"{name}/" not in text] == []


@pytest.mark.parametrize("name", ["README.md", "services/runlane/cli/README.md"])
def test_every_verb_is_named_and_no_other(name: str) -> None:
    text = (ROOT / name).read_text()
    begin = text.index("| |", text.index("## The command line") if name == "README.md" else 0)
    table = text[begin : text.index("\n\n", begin)]
    named = set(re.findall(r"`([a-z-]+)(?: [a-z]+)?`", table))
    assert named == {verb.name for verb in VERBS}


def test_every_promise_names_its_tests_and_every_test_of_a_promise_is_named() -> None:
    text = (ROOT / "README.md").read_text()
    rows = dict(re.findall(r"^\| (P\d+) \|(.+)\|$", text, re.MULTILINE))
    assert list(rows) == [f"P{n}" for n in range(1, 15)]
    assert [promise for promise, row in rows.items() if "tests/" not in row and "Not yet shown" not in row] == []
    for path in sorted((ROOT / "tests").rglob("test_p[0-9]*_*.py")):
        promise = "P" + path.name.removeprefix("test_p").partition("_")[0]
        assert name_of(path) in rows[promise], f"{name_of(path)} is not in the README's row of {promise}"
