"""Secrets masked at the source: before a payload or a preview leaves this process.

The redaction filter of the platform is the boundary that is promised; this is the one in front of it, so that
a token that an agent reads from a file does not even reach the restricted log. Small on purpose: tokens with a
recognizable form, values that are called a secret, and fields that are named like one. Text that streams is
held back while its end may be an unfinished secret.
"""

import re
from typing import Any, NamedTuple, Protocol

from runlane_contracts.codec import decode_json, encode

HOLD_BACK_CHARS = 4096
"""No more than this waits for its end; what is longer is masked as far as it is known."""
_CONTEXT_CHARS = 96


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


class _Rule(NamedTuple):
    """`needles`, lower case: without one of them in the text the pattern is not tried."""

    name: str
    needles: tuple[str, ...]
    pattern: re.Pattern[str]


# Name, literal beginnings, what follows, how much of it at least.
_TOKENS: tuple[tuple[str, tuple[str, ...], str, int], ...] = (
    ("api_key", ("sk-",), r"[A-Za-z0-9_-]", 20),
    ("github_token", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"[A-Za-z0-9]", 30),
    ("github_token", ("github_pat_",), r"[A-Za-z0-9_]", 40),
    ("gitlab_token", ("glpat-",), r"[A-Za-z0-9_-]", 20),
    ("slack_token", ("xoxb-", "xoxp-", "xoxa-", "xoxr-", "xoxs-", "xapp-"), r"[A-Za-z0-9-]", 10),
    ("aws_access_key", ("AKIA", "ASIA"), r"[A-Z0-9]", 16),
    ("google_api_key", ("AIza",), r"[A-Za-z0-9_-]", 35),
    ("stripe_key", ("sk_live_", "sk_test_", "rk_live_", "rk_test_"), r"[A-Za-z0-9]", 16),
    ("npm_token", ("npm_",), r"[A-Za-z0-9]", 36),
    ("pypi_token", ("pypi-",), r"[A-Za-z0-9_-]", 50),
    ("huggingface_token", ("hf_",), r"[A-Za-z0-9]", 30),
    ("jwt", ("eyJ",), r"[A-Za-z0-9_=-]+\.[A-Za-z0-9_.=-]", 20),
)
_STARTS = tuple(start for _, starts, _, _ in _TOKENS for start in starts)
_PARTIAL_STARTS = frozenset(start[:n] for start in _STARTS for n in range(1, len(start)))

_NAMES = r"(?:password|passwd|secret|api[_-]?key|access[_-]?token|auth[_-]?token|refresh[_-]?token|private[_-]?key)"
_NAME_NEEDLES = ("passw", "secret", "api_key", "api-key", "apikey", "_token", "-token", "authtoken", "accesstoken",
                 "private")  # fmt: skip
_ASSIGNED = rf"(?i:{_NAMES}[\"']?\s{{0,8}}[:=]\s{{0,8}}[\"']?)"
_BEARER = r"(?i:\b(?:bearer|basic)\s{1,8})"
_KEY_BEGIN, _KEY_END = "-----BEGIN ", "-----END "

_SECRET_FIELD = re.compile(
    rf"(?i)^(?:.*[_-])?(?:{_NAMES}|client[_-]?secret|authorization|cookie|set-cookie|credentials?)$"
)
_FIELD_NEEDLES = (*_NAME_NEEDLES, "authoriz", "cookie", "credential")


def _rules() -> tuple[_Rule, ...]:
    tokens = [
        _Rule(
            name,
            tuple(start.lower() for start in starts),
            re.compile(rf"(?<![A-Za-z0-9])(?P<secret>(?:{'|'.join(map(re.escape, starts))}){tail}{{{least},}})"),
        )
        for name, starts, tail, least in _TOKENS
    ]
    return (
        *tokens,
        _Rule("bearer_token", ("bearer", "basic"), re.compile(_BEARER + r"(?P<secret>[A-Za-z0-9._~+/=-]{16,})")),
        _Rule("url_password", ("://",), re.compile(r"://[^\s:/@]{1,64}:(?P<secret>[^\s@/]{3,256})(?=@)")),
        _Rule("assigned_secret", _NAME_NEEDLES, re.compile(_ASSIGNED + r"(?P<secret>[^\s\"',;&\[\]]{6,512})")),
        _Rule(
            "private_key",
            ("private key",),
            re.compile(
                r"(?P<secret>-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[\s\S]{0,8192}?"
                r"(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z))"
            ),
        ),
    )


_RULES = _rules()
_NEEDLES = tuple(sorted({needle for rule in _RULES for needle in rule.needles} | set(_FIELD_NEEDLES)))
_CALLED_SECRET = re.compile(rf"(?:{_ASSIGNED}|{_BEARER})[^\s]*\Z")


class Span(NamedTuple):
    """Where a secret lies in a text."""

    start: int
    end: int
    rule: str


class TokenRedactor:
    """The default rule set. Stateless."""

    def json(self, raw: bytes) -> bytes:
        """The same JSON without secrets; the very same bytes when there are none."""
        lowered = raw.decode("utf-8", "replace").lower()
        if not any(needle in lowered for needle in _NEEDLES):
            return raw
        value = decode_json(raw)
        masked = self.value(value)
        return raw if masked is value else encode(masked)

    def text(self, text: str) -> str:
        """The same text without secrets."""
        spans = self.spans(text)
        return _masked(text, spans, 0) if spans else text

    def stream(self) -> "HeldText":
        """For a text that arrives in pieces, however a secret is cut."""
        return HeldText(self)

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
        if isinstance(value, str) and value and _SECRET_FIELD.match(name):
            return "[redacted:secret_field]"
        return self.value(value)

    def spans(self, text: str) -> list[Span]:
        """Where secrets lie; in order, not overlapping."""
        lowered = text.lower()
        found = [
            Span(*hit.span("secret"), rule.name)
            for rule in _RULES
            if any(needle in lowered for needle in rule.needles)
            for hit in rule.pattern.finditer(text)
        ]
        return _without_overlap(sorted(found)) if len(found) > 1 else found


def _without_overlap(spans: list[Span]) -> list[Span]:
    kept = [spans[0]]
    for span in spans[1:]:
        last = kept[-1]
        if span.start >= last.end:
            kept.append(span)
        elif span.end > last.end:
            kept[-1] = Span(last.start, span.end, last.rule)
    return kept


def _masked(text: str, spans: list[Span], start: int) -> str:
    """`text` from `start` on; a secret that began before `start` was announced there already."""
    parts: list[str] = []
    at = start
    for span in spans:
        if span.end <= start:
            continue
        parts.append(text[at : max(at, span.start)])
        if span.start >= start:
            parts.append(f"[redacted:{span.rule}]")
        at = span.end
    parts.append(text[at:])
    return "".join(parts)


def hold_from(text: str) -> int:
    """Where the end of `text` may be an unfinished secret; `len(text)` when it may not."""
    length = len(text)
    floor = max(0, length - HOLD_BACK_CHARS)
    begin = text.rfind(_KEY_BEGIN, floor)
    if begin >= 0 and not _key_is_complete(text, begin):
        return begin
    word_at = 1 + max(text.rfind(" ", floor), text.rfind("\n", floor), text.rfind("\t", floor), floor - 1)
    word = text[word_at:]
    if not word:
        return length
    if _may_grow_into_a_secret(word) or _CALLED_SECRET.search(text, max(0, word_at - _CONTEXT_CHARS)):
        return word_at
    return length


def _key_is_complete(text: str, begin: int) -> bool:
    end = text.find(_KEY_END, begin)
    return end >= 0 and text.find("-----", end + len(_KEY_END)) >= 0


def _may_grow_into_a_secret(word: str) -> bool:
    if "://" in word or "-----" in word or word.endswith("-") or any(start in word for start in _STARTS):
        return True
    at = len(word)
    while at > 0 and (word[at - 1].isalnum() or word[at - 1] in "_-"):
        at -= 1
        if word[at:] in _PARTIAL_STARTS and (at == 0 or not word[at - 1].isalnum()):
            return True
        if len(word) - at > 16:
            break
    return False


class HeldText:
    """Text that streams through the rules: what may still become a secret waits here."""

    def __init__(self, redactor: TokenRedactor) -> None:
        self._redactor = redactor
        self._text = ""  # a little of what was shown, then what is held
        self._shown = 0

    def push(self, text: str) -> str:
        """What may be shown now, without secrets."""
        self._text += text
        return self._show(max(self._shown, hold_from(self._text)))

    def finish(self) -> str:
        """The rest."""
        return self._show(len(self._text))

    def _show(self, until: int) -> str:
        known = self._text[:until]
        out = _masked(known, self._redactor.spans(known), self._shown)
        keep_from = max(0, until - _CONTEXT_CHARS)
        self._text = self._text[keep_from:]
        self._shown = until - keep_from
        return out
