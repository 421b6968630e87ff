"""What `usage` says, whatever framework wrote it: tokens by kind, and dollars."""

import math
import re
from collections.abc import Iterator
from typing import Any

INPUT, OUTPUT, CACHE_READ, CACHE_WRITE, REASONING, COST = (
    "input", "output", "cache_read", "cache_write", "reasoning", "cost_usd",
)  # fmt: skip
KINDS = (INPUT, OUTPUT, CACHE_READ, CACHE_WRITE, REASONING)
"""`input` and `output` are what a provider bills; cache and reasoning are parts of them, not more."""

Usage = dict[str, float]

_NAMES = {
    "input_tokens": INPUT, "prompt_tokens": INPUT, "request_tokens": INPUT,
    "output_tokens": OUTPUT, "completion_tokens": OUTPUT, "response_tokens": OUTPUT,
    "cache_read_tokens": CACHE_READ, "cache_read_input_tokens": CACHE_READ, "cached_input_tokens": CACHE_READ,
    "cached_tokens": CACHE_READ,
    "cache_write_tokens": CACHE_WRITE, "cache_creation_input_tokens": CACHE_WRITE,
    "reasoning_tokens": REASONING, "reasoning_output_tokens": REASONING,
    "cost_usd": COST, "total_cost_usd": COST, "cost": COST,
}  # fmt: skip
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_MOST = 1e12
_DEPTH = 4


def usage_of(raw: Any) -> Usage:
    """The numbers with a meaning here; of several with the same one the largest, which is the total."""
    found: Usage = {}
    for name, value in _numbers(raw, _DEPTH):
        kind = _NAMES.get(_HUMP.sub("_", name).lower().replace("-", "_"))
        if kind is not None and math.isfinite(value) and 0 < value < _MOST:
            found[kind] = max(found.get(kind, 0.0), float(value))
    return found


def more_than(total: Usage, counted: Usage) -> Usage:
    """What a total has beyond what was counted already."""
    rest = {kind: value - counted.get(kind, 0.0) for kind, value in total.items()}
    return {kind: value for kind, value in rest.items() if value > 1e-9}


def _numbers(raw: Any, depth: int) -> Iterator[tuple[str, float]]:
    if not isinstance(raw, dict) or depth == 0:
        return
    for name, value in raw.items():
        if isinstance(value, dict):
            yield from _numbers(value, depth - 1)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield str(name), value
