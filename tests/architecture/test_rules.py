"""Rules that a linter does not know: what may be written in one place only."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "services").rglob("*.py")) + sorted((ROOT / "contracts").rglob("*.py"))


def places(pattern: str, *allowed: str) -> list[str]:
    """Where a pattern stands outside the allowed files or folders."""
    rule = re.compile(pattern)
    found = []
    for path in SOURCES:
        name = path.relative_to(ROOT).as_posix()
        if any(part in name for part in allowed):
            continue
        found += [f"{name}:{n}" for n, line in enumerate(path.read_text().splitlines(), 1) if rule.search(line)]
    return found


def test_only_the_consumer_loop_acknowledges():
    assert places(r"[+-](ACK|NAK|TERM|WPI)\b", "kernel/delivery.py") == []


def test_no_framework_judges_a_message_for_us():
    assert places(r"AckPolicy\.(?!MANUAL)") == []


def test_log_events_have_registered_names():
    assert places(r"""["']event["']:\s*["']""", "/client/") == []


def test_the_environment_is_read_by_settings_only():
    assert places(r"os\.environ|os\.getenv", "/cli/", "settings.py", "/adapters/", "/client/") == []
