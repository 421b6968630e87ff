"""Recorded event streams: one JSON line is `{t_ms, dir|kind, msg}`."""

from collections.abc import Iterator
from pathlib import Path

from runlane.adapters.claude import ClaudeMapping
from runlane.adapters.codex import CodexMapping
from runlane.adapters.mapping import Mapping, Statement
from runlane.adapters.pydantic_ai import PydanticAIMapping
from runlane_contracts import codec

MAPPINGS: dict[str, type[Mapping]] = {"claude": ClaudeMapping, "codex": CodexMapping, "pydantic-ai": PydanticAIMapping}


def mapping_for(path: Path) -> Mapping:
    """The mapping a recording's name asks for: `claude-….jsonl`, `codex-….jsonl`, `pydantic-ai-….jsonl`.

    Raises:
        ValueError: no mapping of that name.
    """
    for name, mapping in MAPPINGS.items():
        if path.name.startswith(name):
            return mapping()
    raise ValueError(f"{path.name}: starts with none of {', '.join(MAPPINGS)}")


def statements(path: Path, mapping: Mapping) -> Iterator[list[Statement]]:
    """What a recording says, message by message, and at last how it ends."""
    with path.open("rb") as lines:
        for line in lines:
            record = codec.decode_json(line)
            if record.get("kind") == "--human-decision--" and isinstance(mapping, PydanticAIMapping):
                yield mapping.decided(record["msg"]["approvals"])
            else:
                yield mapping.feed(record["msg"])
    yield mapping.finish()
