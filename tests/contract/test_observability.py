"""Dashboards, alerts and runbooks speak of what is there: metrics of the contract that some service emits."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from runlane_contracts.metric_help import HELP
from runlane_contracts.telemetry import Metric

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "k8s" / "observability"
DASHBOARDS = sorted((FOLDER / "dashboards").glob("*.json"))
NAME = re.compile(r"\brunlane_[a-z0-9_]+")
SOURCES = "\n".join(path.read_text() for path in (ROOT / "services").rglob("*.py"))
RULES = [
    rule
    for group in yaml.safe_load((FOLDER / "rules" / "runlane.yaml").read_text())["groups"]
    for rule in group["rules"]
]  # fmt: skip
TESTS = yaml.safe_load((FOLDER / "rules" / "tests.yaml").read_text())["tests"]


def named(text: str) -> set[str]:
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in NAME.findall(text)}


def expressions(board: Path) -> list[str]:
    panels = json.loads(board.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def test_what_is_generated_is_not_stale() -> None:
    checked = subprocess.run(
        [sys.executable, FOLDER / "render.py", "--check"],
        env={"PYTHONPATH": f"{ROOT / 'contracts'}:{ROOT / 'services'}", "PATH": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("board", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_names_metrics_that_somebody_emits(board: Path) -> None:
    """Taken out: a metric in `telemetry.py` that a panel shows; or the only `observe` of one."""
    found = named(" ".join(expressions(board)))
    assert found
    assert found - {metric.value for metric in Metric} == set()
    assert [metric.name for metric in Metric if metric.value in found and f"Metric.{metric.name}" not in SOURCES] == []


def test_alerts_name_metrics_that_somebody_emits() -> None:
    found = named(" ".join(rule["expr"] for rule in RULES))
    assert found - {metric.value for metric in Metric} == set()
    assert [metric.name for metric in Metric if metric.value in found and f"Metric.{metric.name}" not in SOURCES] == []


def test_every_metric_of_the_contract_is_emitted() -> None:
    assert [metric.name for metric in Metric if f"Metric.{metric.name}" not in SOURCES] == []


def test_every_metric_says_what_it_means() -> None:
    assert set(HELP) == set(Metric)
    assert [metric for metric, text in HELP.items() if not text.endswith(".") or "\n" in text] == []


@pytest.mark.parametrize("board", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_is_one_that_grafana_takes(board: Path) -> None:
    document = json.loads(board.read_text())
    ids = [panel["id"] for panel in document["panels"]]
    assert len(ids) == len(set(ids))
    assert document["uid"] == f"runlane-{board.stem}"
    for panel in document["panels"]:
        assert panel["type"] == "row" or (panel["description"] and panel["datasource"]["uid"] == "${datasource}")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_has_a_runbook_and_is_shown_quiet_and_firing(rule) -> None:
    name = rule["alert"]
    runbook = ROOT / rule["annotations"]["runbook_url"]
    text = runbook.read_text()
    assert text.startswith(f"# {name}\n")
    assert "**Look.**" in text
    assert "**Do.**" in text
    cases = [case for test in TESTS for case in test["alert_rule_test"] if case["alertname"] == name]
    assert sorted(bool(case["exp_alerts"]) for case in cases) == [False, True]
    assert rule["labels"]["severity"] in {"page", "ticket"}


def test_no_runbook_is_of_an_alert_that_is_gone() -> None:
    assert {path.stem for path in (FOLDER / "runbooks").glob("*.md")} == {rule["alert"] for rule in RULES}


def test_runbooks_name_metrics_that_there_are() -> None:
    known = {metric.value for metric in Metric}
    for path in (FOLDER / "runbooks").glob("*.md"):
        assert named(path.read_text()) - known == set(), path.name
