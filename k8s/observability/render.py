"""Writes the dashboards and the alert rules.

python k8s/observability/render.py            write them
python k8s/observability/render.py --check    fail when they are stale
"""

import sys
from pathlib import Path

import yaml

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from alerts import rules  # noqa: E402 - beside this file
from dashboards import BOARDS  # noqa: E402

HEAD = "# Made by render.py from alerts.py; do not edit.\n"


def rendered() -> dict[str, str]:
    """The text of each file."""
    boards = {f"dashboards/{name}.json": make() for name, make in BOARDS.items()}
    return {**boards, "rules/runlane.yaml": HEAD + yaml.safe_dump(rules(), sort_keys=False, width=120)}


def main() -> None:
    """Write or check."""
    files = rendered()
    if "--check" not in sys.argv[1:]:
        for name, text in files.items():
            (HERE / name).write_text(text)
        return
    stale = [name for name, text in files.items() if not (HERE / name).exists() or (HERE / name).read_text() != text]
    if stale:
        sys.exit(f"stale: {', '.join(stale)}; run python k8s/observability/render.py")


if __name__ == "__main__":
    main()
