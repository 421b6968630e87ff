"""The alert rules, by Prometheus' own tool. Fails where `promtool` is missing: `.ci/packages` installs it."""

import shutil
import subprocess
from pathlib import Path

RULES = Path(__file__).parents[3] / "k8s" / "observability" / "rules"


def promtool(*arguments: str) -> str:
    program = shutil.which("promtool")
    assert program is not None, "no promtool: apt-get install prometheus"
    done = subprocess.run([program, *arguments], cwd=RULES, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_rules_are_rules() -> None:
    assert "SUCCESS" in promtool("check", "rules", "runlane.yaml")


def test_each_alert_is_quiet_when_all_is_well_and_fires_when_it_should() -> None:
    """Taken out: a threshold in `alerts.py`."""
    assert "SUCCESS" in promtool("test", "rules", "tests.yaml")
