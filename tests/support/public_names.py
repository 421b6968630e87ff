"""The public names of the contract: `PYTHONPATH=contracts:tests python -m support.public_names` writes them down."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import runlane_contracts

PINNED = Path(__file__).parents[1] / "contract" / "public_names.txt"


def public_names() -> list[str]:
    """`module.name` of everything defined at the top of a module, without those that begin with `_`."""
    package = Path(runlane_contracts.__file__).parent
    return [f"{path.stem}.{name}" for path in sorted(package.glob("*.py")) for name in sorted(set(_defined(path)))]


def _defined(path: Path) -> Iterator[str]:
    for node in ast.parse(path.read_text()).body:
        for name in _names(node):
            if not name.startswith("_"):
                yield name


def _names(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            for target in targets:
                yield from (inner.id for inner in ast.walk(target) if isinstance(inner, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name


if __name__ == "__main__":
    PINNED.write_text("".join(f"{name}\n" for name in public_names()))
    sys.exit(0)
