"""`runlane --help` answers at once: it loads no verb and nothing heavy."""

import importlib.util
import subprocess
import sys

import pytest
from click.testing import CliRunner

from runlane.cli.main import VERBS, runlane

HEAVY = (
    "pydantic",
    "starlette",
    "sqlalchemy",
    "faststream",
    "opentelemetry",
    "httpx",
    "nats",
    "rich",
    "asyncio",
    "msgspec",
)
PROBE = """
import sys
from click.testing import CliRunner
from runlane.cli.main import runlane
result = CliRunner().invoke(runlane, ["--help"])
assert result.exit_code == 0, result.output
print(",".join(name for name in {heavy!r} if name in sys.modules))
"""


def loaded_by(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    ).stdout.strip()


def test_help_imports_nothing_heavy():
    assert loaded_by(PROBE.format(heavy=HEAVY)) in {"", "asyncio"}


def test_importing_the_sdk_imports_no_transport():
    heavy = ("httpx", "nats", "pydantic", "faststream", "opentelemetry", "msgspec")
    assert loaded_by(f"import sys, runlane.client; print(','.join(n for n in {heavy!r} if n in sys.modules))") == ""


def test_the_sdk_pulls_in_no_service_library():
    heavy = ("pydantic", "starlette", "sqlalchemy", "faststream", "opentelemetry", "hyperscan", "uvicorn")
    code = f"""
import sys, runlane.client as c
for name in c.__all__: getattr(c, name)
print(','.join(n for n in {heavy!r} if n in sys.modules))
"""
    assert loaded_by(code) == ""


def test_help_shows_every_verb_under_its_heading():
    shown = CliRunner().invoke(runlane, ["--help"]).stdout
    assert all(verb.name in shown and verb.summary[:20] in shown for verb in VERBS)


@pytest.mark.parametrize("verb", [verb for verb in VERBS if importlib.util.find_spec(verb.target.split(":")[0])])
def test_every_verb_explains_itself(verb):
    result = CliRunner().invoke(runlane, [verb.name, "--help"])
    assert result.exit_code == 0, result.output
    assert "--json" in result.stdout or verb.name in {"demo", "bridge"}


def test_the_script_runs_as_a_process():
    done = subprocess.run(
        [sys.executable, "-m", "runlane.cli", "--version"], capture_output=True, text=True, check=False, timeout=30
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("runlane ")
