"""Every service looks the same: the same files, and a card with the same headings."""

import re
from pathlib import Path

import pytest

from runlane_contracts.streams import Layout

SERVICES = Path(__file__).parents[2] / "services" / "runlane"
FILES = ("README.md", "__init__.py", "__main__.py", "app.py", "settings.py")
HEADINGS = ("Owns", "Consumes", "Produces", "Durable and bounds", "Settings", "When it fails", "Signals", "Try it")
MOST_LINES_OF_MAIN = 20

HOSTED = sorted(path.parent for path in SERVICES.glob("*/app.py"))


@pytest.mark.parametrize("service", HOSTED, ids=lambda path: path.name)
def test_a_service_has_the_files_of_every_service(service):
    missing = [name for name in FILES if not (service / name).exists()]
    assert not missing


@pytest.mark.parametrize("service", HOSTED, ids=lambda path: path.name)
def test_its_card_answers_the_same_questions(service):
    text = (service / "README.md").read_text()
    found = [heading.strip().lower() for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
    found += [label.strip().lower() for label in re.findall(r"^[|*-]?\s*\*\*(.+?)[:.]?\*\*", text, re.MULTILINE)]
    missing = [heading for heading in HEADINGS if heading.lower() not in found]
    assert not missing


@pytest.mark.parametrize("service", HOSTED, ids=lambda path: path.name)
def test_its_main_only_starts_it(service):
    assert len((service / "__main__.py").read_text().splitlines()) <= MOST_LINES_OF_MAIN


def test_every_durable_belongs_to_a_service_that_exists():
    names = {path.name for path in SERVICES.iterdir()}
    assert {spec.service for spec in Layout().consumers()} <= names
