"""The layers, as `[tool.importlinter]` in pyproject.toml states them."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_imports_go_down_only():
    lint = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run(
        [str(lint), "--no-cache", "pyproject.toml"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'contracts'}{os.pathsep}{ROOT / 'services'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]
