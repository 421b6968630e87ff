"""Where the rules may apply: one pass of hyperscan over bytes, then the exact patterns only at those places.

The gates are relaxations: what they do not report is not there. Those for a whole commit are looked for in JSON
as it lies on the wire, so that a clean commit is never decoded for its strings; JSON's own escapes can hide a
match there, so an escape that could is a finding too.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import hyperscan

from runlane.masking.rules import KEY_NAME_GATE, RULES, Rule

# What could hide a secret, or a value that readers refuse, from a look at the raw bytes: an escaped printable
# character, an escaped slash, a surrogate, a number beyond the range of a float.
_HIDING_PLACES = (
    r"\\u00[2-7]", r"\\/", r"\\u[dD][89abAB]", r"[:,\[][ \t\r\n]*-?[0-9]+(?:\.[0-9]+)?[eE][+]?[0-9]{3}",
)  # fmt: skip


class Span(NamedTuple):
    """Bytes `start` to `end` are a secret; the rule names it."""

    start: int
    end: int
    order: int
    rule: Rule


class Scanner:
    """Compiled rules. Not for use by two threads at once."""

    def __init__(self, rules: Sequence[Rule] = RULES) -> None:
        self._rules = tuple(rules)
        gates = list(dict.fromkeys(rule.gate_pattern for rule in rules))
        self._gate_count = len(gates)
        self._gates = _compile([*gates, KEY_NAME_GATE, *_HIDING_PLACES], hyperscan.HS_FLAG_SINGLEMATCH)
        self._openings = _compile([rule.opening_gate_pattern for rule in rules], hyperscan.HS_FLAG_SOM_LEFTMOST)
        self._hits: list[tuple[int, int, int]] = []

    def is_suspicious(self, raw: bytes) -> bool:
        """Whether raw JSON may hold a secret, or anything else that has to be decoded to be judged."""
        return bool(self._scan(self._gates, raw))

    def has_candidates(self, raw: bytes) -> bool:
        """Whether a rule may match in a string of some JSON that has no hiding places."""
        return any(order < self._gate_count for order, _, _ in self._scan(self._gates, raw))

    def spans(self, data: bytes) -> list[Span]:
        """The secrets in a text, in order. Where several overlap they are one, named by the first rule."""
        found: list[Span] = []
        ends: dict[int, int] = {}
        for order, rule, at, opened in self.places(data):
            if opened <= ends.get(order, 0):
                continue  # a match of this rule covers it
            match = rule.exact.match(data, at)
            if match is not None:
                start, end = match.span("secret")
                ends[order] = end
                found.append(Span(start, end, order, rule))
        return merged(found)

    def places(self, data: bytes) -> Iterator[tuple[int, Rule, int, int]]:
        """Where in a text an opening stands: the rule's order, the rule, from where to where."""
        for order, first, last in _stretches(self._scan(self._openings, data)):
            rule = self._rules[order]
            for opening in rule.opens.finditer(data, first, last, overlapped=True):
                yield order, rule, opening.start(), opening.end()

    def _scan(self, database: hyperscan.Database, data: bytes) -> list[tuple[int, int, int]]:
        if self._hits:
            self._hits = []
        database.scan(data, match_event_handler=self._hit)
        return self._hits

    def _hit(self, order: int, start: int, end: int, _flags: int, _context: Any) -> None:
        self._hits.append((order, start, end))


def merged(spans: list[Span]) -> list[Span]:
    """Overlapping spans as one, with the lowest order among them; sorted."""
    result: list[Span] = []
    for span in sorted(spans, key=lambda one: (one.start, one.end)):
        if result and span.start < result[-1].end:
            last = result[-1]
            named = min(last, span, key=lambda one: one.order)
            result[-1] = Span(last.start, max(last.end, span.end), named.order, named.rule)
        else:
            result.append(span)
    return result


def _stretches(hits: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """What hyperscan reported, by rule and position, without what lies within another stretch."""
    result: list[tuple[int, int, int]] = []
    for order, first, last in sorted(hits):
        if result and result[-1][0] == order and first < result[-1][2]:
            result[-1] = (order, result[-1][1], max(last, result[-1][2]))
        else:
            result.append((order, first, last))
    return result


def _compile(patterns: list[str], flags: int) -> hyperscan.Database:
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    database.compile(
        expressions=[pattern.encode() for pattern in patterns],
        ids=list(range(len(patterns))),
        elements=len(patterns),
        flags=flags | hyperscan.HS_FLAG_DOTALL,
    )
    return database
