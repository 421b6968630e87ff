"""Text that is masked while it is being written: a secret split over fragments shows in none of them.

Pure. What may be the beginning of a secret is held back until it is decided; then it is released, or masked. An
opening alone (``sk-``, ``password=``) is public and never held, so ordinary words flow at once. What was shown
last stays in view of the rules, so a secret is found although its opening is out already.
"""

import re

from runlane.masking.rules import MAX_OPENING_BYTES, Rule
from runlane.masking.scanner import Scanner, Span, merged

MAX_BUFFER_BYTES = 16 * 1024
"""Of one preview: what is held, and what was shown last. A secret longer than that ends the preview's text."""
UNDECIDED_MASK = b"[masked:undecided]"

# A match that ends so close to the end may still grow: an escape or a dot has only half arrived.
_GROWTH_BYTES = 2
# Rules look behind an opening by no more than this.
_LOOK_BEHIND_BYTES = 8
_SPACE = re.compile(rb"[ \t\r\n]+")
_OPAQUE = re.compile(rb"[A-Za-z0-9+/=_-]*")
_OPAQUE_BYTES = 20


class PreviewText:
    """The text of one preview. `feed` it fragments in order; it answers with what may be shown now."""

    __slots__ = (
        "_buffer", "_decided", "_ends_masked", "_gap_word", "_growing", "_in_first_word", "_lead", "_scanner",
        "_sealed",
    )  # fmt: skip

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self._buffer = b""  # what was decided last, then what is held
        self._lead = 0  # so much of it is there to be looked behind at, and begins nothing
        self._decided = 0
        self._ends_masked = False  # the last thing shown is the mask of a secret that reaches to `_decided`
        self._growing = False  # a secret reaches to the end
        self._sealed = False
        self._gap_word: bytes | None = None  # after a gap: the word that is being written
        self._in_first_word = False

    @property
    def held_bytes(self) -> int:
        """How much waits for a decision."""
        return len(self._buffer) - self._decided

    @property
    def size(self) -> int:
        """What it keeps, in bytes."""
        return len(self._buffer) + len(self._gap_word or b"")

    @property
    def is_sealed(self) -> bool:
        """Whether nothing more will be shown: the middle of a secret was lost, or had no end."""
        return self._sealed

    @property
    def is_after_gap(self) -> bool:
        """Whether what comes next is not shown, until a word begins of which everything was seen."""
        return self._gap_word is not None

    def feed(self, data: bytes) -> bytes:
        """Take the next fragment, return what may be shown. It ends where a UTF-8 character ends if the input does."""
        if self._sealed:
            return b""
        if self._gap_word is not None:
            data = self._resynchronized(self._gap_word + data)
            if not data:
                return b""
        return self._feed(data)

    def skip(self) -> None:
        """Fragments are missing here. What follows may be the rest of a secret whose beginning nobody saw."""
        if self._growing or self.held_bytes:
            self._sealed = True
        self._forget()
        self._gap_word, self._in_first_word = b"", True

    def _feed(self, data: bytes) -> bytes:
        buffer = self._buffer + data
        spans, hold, growing_from = self._judge(buffer)
        shown, decided, ends_masked = self._show(buffer, spans, hold)
        self._growing = growing_from < len(buffer)
        keep_from = max(0, min(decided - MAX_OPENING_BYTES, growing_from - _LOOK_BEHIND_BYTES))
        if keep_from:
            self._lead = _LOOK_BEHIND_BYTES
        self._buffer, self._decided, self._ends_masked = buffer[keep_from:], decided - keep_from, ends_masked
        if len(self._buffer) > MAX_BUFFER_BYTES:
            shown += self._overflow()
        return shown

    def _judge(self, buffer: bytes) -> tuple[list[Span], int, int]:
        """The secrets in the buffer, from where on it is undecided, and where a secret begins that may still grow."""
        spans: list[Span] = []
        ends: dict[int, int] = {}
        hold = growing_from = len(buffer)
        for order, rule, at, opened in self._scanner.places(buffer):
            if at < self._lead or opened <= ends.get(order, 0):
                continue
            match = rule.exact.match(buffer, at, partial=True)
            if match is None:
                continue
            if match.partial:
                hold = min(hold, opened)
                continue
            start, end = match.span("secret")
            ends[order] = end
            spans.append(Span(start, end, order, rule))
            if len(buffer) - end <= _GROWTH_BYTES and (end == len(buffer) or _may_go_on(rule, buffer, at)):
                growing_from = min(growing_from, at)
                hold = min(hold, end)
        return merged(spans), hold, growing_from

    def _show(self, buffer: bytes, spans: list[Span], hold: int) -> tuple[bytes, int, bool]:
        """What to show of the buffer, up to where it is decided then, and whether that ends in a mask."""
        at = before = self._decided
        hold = max(hold, before)
        continued = self._ends_masked
        parts: list[bytes] = []
        masked_to = before if continued else -1
        for span in spans:
            if span.end <= before and not (span.end == before and continued):
                continue
            if span.start >= hold and span.start >= before:
                break
            if span.start > at:
                parts.append(buffer[at : span.start])
            if span.start >= before or not continued:
                parts.append(span.rule.mask)
            at = masked_to = max(at, span.end)
        if at < hold:
            parts.append(buffer[at:hold])
            at = hold
        return b"".join(parts), at, masked_to == at

    def _overflow(self) -> bytes:
        if self._growing:
            self._forget()
            self._sealed = True
            return b""
        held = self.held_bytes
        self._buffer = self._buffer[-MAX_OPENING_BYTES:]
        self._decided = len(self._buffer)
        self._ends_masked = False
        return UNDECIDED_MASK if held else b""

    def _forget(self) -> None:
        self._buffer, self._lead, self._decided = b"", 0, 0
        self._ends_masked = self._growing = False

    def _resynchronized(self, text: bytes) -> bytes:
        """After a gap: nothing of the first word, nor of long opaque ones right after it (the lines of a key)."""
        while (space := _SPACE.search(text)) is not None:
            word, rest = text[: space.start()], text[space.end() :]
            if not self._in_first_word and not _is_opaque(word):
                self._gap_word = None
                return text
            self._in_first_word = False
            text = rest
        if self._in_first_word:
            self._gap_word = b""
        elif _OPAQUE.fullmatch(text):
            self._gap_word = text[:_OPAQUE_BYTES]
        else:
            self._gap_word = None
            return text
        return b""


def _is_opaque(word: bytes) -> bool:
    return len(word) >= _OPAQUE_BYTES and _OPAQUE.fullmatch(word) is not None


def _may_go_on(rule: Rule, buffer: bytes, at: int) -> bool:
    """Whether what follows a match may turn out to belong to it."""
    return rule.exact.fullmatch(buffer, at, partial=True) is not None
