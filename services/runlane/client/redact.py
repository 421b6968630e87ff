"""Secrets masked at the source: before a payload or a preview leaves this process.

The redaction filter of the platform is the boundary that is promised; this is the one in front of it, so that
a token that an agent reads from a file does not even reach the restricted log. What the log hands back to code that
acts on it (a call's arguments, a checkpoint) goes there as it is: who tries a call again needs the argument and not
its mask (ADR 0020). Text that streams is held back while its end may be an unfinished secret.
"""

import re
from typing import Any, Protocol

import msgspec
from msgspec import Raw

from runlane.client.secret_forms import MAX_HELD_CHARS, Span, hold_from, may_hold_a_secret, names_a_secret, spans
from runlane_contracts import events
from runlane_contracts.checkpoint import CHECKPOINT_TYPE
from runlane_contracts.codec import decode_json, encode

_CONTEXT_CHARS = 96
"""Of what was shown, so much is remembered to understand what comes."""
_MARKER_CHARS = 64


class TextStream(Protocol):
    """One text that arrives in pieces."""

    def push(self, text: str) -> str:
        """What may be shown now, without secrets."""
        ...

    def finish(self) -> str:
        """The rest."""
        ...


class Redactor(Protocol):
    """What the writer asks before anything leaves."""

    def json(self, raw: bytes) -> bytes:
        """The same JSON without secrets; the very same bytes when there are none."""
        ...

    def text(self, text: str) -> str:
        """The same text without secrets."""
        ...

    def stream(self) -> TextStream:
        """For a text that arrives in pieces, however a secret is cut."""
        ...


def masked_payload(redactor: Redactor, type_: str, payload: bytes) -> bytes:
    """A fact's payload without secrets, but for what is handed back to code."""
    kept = _handed_back(type_, payload)
    if kept is None:
        return redactor.json(payload)
    fields = msgspec.json.decode(payload, type=dict[str, Raw])
    if kept not in fields:
        return redactor.json(payload)
    masked = msgspec.json.decode(redactor.json(encode(fields | {kept: None})), type=dict[str, Raw])
    return encode(masked | {kept: fields[kept]})


def _handed_back(type_: str, payload: bytes) -> str | None:
    """The field of a payload that stays as it is."""
    if type_ == events.ToolRequested.TYPE:
        return "arguments" if b'"arguments"' in payload else None
    if type_ == events.ArtifactCompleted.TYPE and CHECKPOINT_TYPE.encode() in payload:
        artifact = msgspec.json.decode(payload, type=dict[str, Raw])
        if artifact.get("media_type") == Raw(encode(CHECKPOINT_TYPE)) and "content" in artifact:
            return "content"
    return None


class TokenRedactor:
    """The default rules: tokens of a known form, values that are called a secret, fields that are named like one."""

    def json(self, raw: bytes) -> bytes:
        """The same JSON without secrets; the very same bytes when there are none."""
        if not may_hold_a_secret(raw.decode("utf-8", "replace")):
            return raw
        value = decode_json(raw)
        masked = self.value(value)
        return raw if masked is value else encode(masked)

    def text(self, text: str) -> str:
        """The same text without secrets."""
        found = spans(text)
        return _masked(text, found, 0) if found else text

    def stream(self) -> "HeldText":
        """For a text that arrives in pieces, however a secret is cut."""
        return HeldText()

    def value(self, value: Any) -> Any:
        """The same JSON value without secrets; the very same object when there are none."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            fields = {key: self._field(key, inner) for key, inner in value.items()}
            return fields if any(value[key] is not fields[key] for key in value) else value
        if isinstance(value, list):
            items = [self.value(inner) for inner in value]
            return items if any(a is not b for a, b in zip(value, items, strict=True)) else value
        return value

    def _field(self, name: str, value: Any) -> Any:
        # A flag or nothing gives no secret away, and an object under `password` is a schema of one.
        if value and value is not True and not isinstance(value, dict) and names_a_secret(name):
            return "[masked:secret-name]"
        return self.value(value)


def _masked(text: str, found: list[Span], start: int) -> str:
    """`text` from `start` on; a secret that began before `start` was announced there already."""
    parts: list[str] = []
    at = start
    for span in found:
        if span.end <= start:
            continue
        parts.append(text[at : max(at, span.start)])
        if span.start >= start:
            parts.append(f"[masked:{span.rule}]")
        at = span.end
    parts.append(text[at:])
    return "".join(parts)


class HeldText:
    """Text that streams through the rules: what may still become a secret waits here.

    A secret longer than what may wait is announced as masked, and the rest of it swallowed up to its end.
    """

    def __init__(self) -> None:
        self._text = ""  # a little of what was shown, then what is held
        self._shown = 0
        self._swallow_until: re.Pattern[str] | None = None

    def push(self, text: str) -> str:
        """What may be shown now, without secrets."""
        self._text += text
        if self._swallow_until is not None and not self._swallow(self._swallow_until):
            return ""
        hold = hold_from(self._text)
        if hold is None:
            return self._show(len(self._text))
        shown = self._show(max(self._shown, hold.start))
        if len(self._text) - self._shown <= MAX_HELD_CHARS:
            return shown
        self._text, self._shown, self._swallow_until = "", 0, hold.end
        return shown + "[masked:too-long]"

    def finish(self) -> str:
        """The rest."""
        return "" if self._swallow_until is not None else self._show(len(self._text))

    def _swallow(self, until: re.Pattern[str]) -> bool:
        """Drop text up to the end of the secret; whether that was reached."""
        end = until.search(self._text)
        if end is None:
            self._text = self._text[-_MARKER_CHARS:]
            return False
        self._text, self._shown, self._swallow_until = self._text[end.end() :], 0, None
        return True

    def _show(self, until: int) -> str:
        known = self._text[:until]
        out = _masked(known, spans(known), self._shown)
        keep_from = max(0, until - _CONTEXT_CHARS)
        self._text = self._text[keep_from:]
        self._shown = until - keep_from
        return out
