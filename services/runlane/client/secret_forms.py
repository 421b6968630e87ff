"""What a secret looks like: the forms that are masked before anything leaves the process. Pure.

Names and forms are those of the redaction filter, which knows more of them, also encoded ones. Here they are
plain `re`, ordered so that most texts are done after a few substring searches.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from runlane_contracts.secret_names import is_secret_name

MAX_HELD_CHARS = 4096
"""No more of a streamed text is looked at again."""


class Span(NamedTuple):
    """Where a secret lies in a text."""

    start: int
    end: int
    rule: str


class Hold(NamedTuple):
    """From `start` on the text may be an unfinished secret, which ends where `end` is found."""

    start: int
    end: re.Pattern[str]


# -- tokens: a literal beginning, then a known alphabet ------------------------------------------------------------

_ALNUM, _WORD = "[A-Za-z0-9]", "[A-Za-z0-9_-]"

# Rule, how it starts, what follows, how much of it at least, and whether only where a word begins.
_TOKENS: tuple[tuple[str, tuple[str, ...], str, int, bool], ...] = (
    ("anthropic-key", ("sk-ant-",), _WORD, 16, False),
    ("openai-key", ("sk-proj-", "sk-svcacct-", "sk-admin-"), _WORD, 16, False),
    ("openrouter-key", ("sk-or-v1-",), _ALNUM, 16, False),
    ("openai-key", ("sk-",), _ALNUM, 20, True),
    ("runlane-key", ("rlk_",), _WORD, 16, False),
    ("github-token", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), _ALNUM, 20, False),
    ("github-token", ("github_pat_",), "[A-Za-z0-9_]", 20, False),
    ("gitlab-token", ("glpat-",), _WORD, 16, False),
    ("aws-key-id", ("AKIA", "ASIA"), "[A-Z0-9]", 16, True),
    ("slack-token", ("xapp-", *(f"xox{kind}-" for kind in "abeoprs")), "[A-Za-z0-9-]", 10, False),
    ("google-key", ("AIza",), _WORD, 35, True),
    ("google-token", ("ya29.",), _WORD, 20, True),
    ("stripe-key", ("sk_live_", "rk_live_", "sk_test_", "rk_test_"), _ALNUM, 10, False),
    ("stripe-key", ("whsec_",), _ALNUM, 20, False),
    ("npm-token", ("npm_",), _ALNUM, 30, True),
    ("huggingface-token", ("hf_",), _ALNUM, 30, True),
    ("pypi-token", ("pypi-AgE",), _WORD, 20, True),
    ("groq-key", ("gsk_",), _ALNUM, 30, True),
    ("jwt", ("eyJ",), r"(?:[A-Za-z0-9_-]{8,2048}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]+)*)", 1, True),
)
_STARTS = tuple(start for _, starts, *_ in _TOKENS for start in starts)
_PARTIAL_STARTS = frozenset(start[:n] for start in _STARTS for n in range(1, len(start)))
_LONGEST_START = max(map(len, _STARTS))


class _Token(NamedTuple):
    rule: str
    starts: tuple[str, ...]
    pattern: re.Pattern[str]


def _token(rule: str, starts: tuple[str, ...], tail: str, least: int, *, word_start: bool) -> _Token:
    before = "(?<![A-Za-z0-9])" if word_start else ""
    literal = "|".join(map(re.escape, starts))
    return _Token(rule, starts, re.compile(f"{before}(?:{literal}){tail}{{{least},}}"))


_TOKEN_FORMS = tuple(
    _token(rule, starts, tail, least, word_start=begins) for rule, starts, tail, least, begins in _TOKENS
)
_PRIVATE_KEY = re.compile(
    r"-----BEGIN (?:[A-Z0-9]{1,16} ){0,3}PRIVATE KEY(?: BLOCK)?-----[\s\S]*?(?:-----END[^-]{0,48}-----|\Z)"
)
_URL_PASSWORD = re.compile(r"""://[^\s/?#:@"'<>]{0,64}:(?P<secret>[^\s/?#@"'<>]{1,256})(?=@)""")

# -- values that are called a secret -------------------------------------------------------------------------------

_QUOTE = r"""(?:\\{0,3}["']|%22)?"""
_IS = r"\s{0,8}(?:=>|:=|==?|:|%3a|%3d)\s{0,8}"
_BARE = r"""[^\s"'\\,;&<>(){}\[\]|`$%]"""
_QUOTED_VALUES = (
    re.compile(r"""\\{1,3}["'](?P<secret>[^"'\\\n]+)"""),
    re.compile(r"""(?P<quote>["'])(?P<secret>(?:(?!(?P=quote))[^\\\n]|\\[^\n])+)"""),
)
_BARE_VALUE = re.compile(rf"(?:%22)?(?P<secret>(?={_BARE}{{0,64}}[0-9]){_BARE}{{8,}})")


class _Calling(NamedTuple):
    """`opening` is searched in the lower-case text; one of `values` has to match where it ends."""

    rule: str
    needles: tuple[str, ...]
    opening: re.Pattern[str]
    values: tuple[re.Pattern[str], ...]


_CALLINGS = (
    _Calling(
        "aws-secret",
        ("key",),
        re.compile(
            r"""(?:aws|amazon|secret)[_. -]?(?:secret)?[_. -]?(?:access)?[_. -]?key["']?\s{0,8}[:=]\s{0,8}["']?"""
        ),
        (re.compile(r"(?P<secret>[A-Za-z0-9/+]{40,})"),),
    ),
    _Calling(
        "authorization",
        ("authorization",),
        re.compile(
            r"""authorization["']?\s{0,8}[:=]\s{0,8}["']?(?:(?:bearer|basic|token|digest|apikey|negotiate)\s{1,4})?"""
        ),
        (re.compile(r"""(?P<secret>(?=[^\s"']{0,255}[0-9=])[^\s"'\\,;<>{}]{8,})"""),),
    ),
    _Calling(
        "bearer-token",
        ("bearer",),
        re.compile(r"(?<![a-z0-9])bearer(?:\s|%20|\+){1,4}"),
        (re.compile(r"(?P<secret>(?=[A-Za-z._~+/%-]{0,255}[0-9])[A-Za-z0-9._~+/%-]{20,}=*)"),),
    ),
    _Calling(
        "named-secret",
        ("passw", "passphrase", "pwd", "secret", "key", "token"),
        re.compile(rf"(?P<name>passw(?:or)?d|passphrase|pwd|secret|key|token){_QUOTE}{_IS}"),
        (*_QUOTED_VALUES, _BARE_VALUE),
    ),
)
# What may stand at the end of a name: `api_key`, `AccessToken`, `token` alone, but not `monkey` or `page_token`.
_WHOLE_NAME = re.compile(
    r"(?:pass(?:word|wd|phrase)|pwd|secret|(?:client|app)[_. -]?secret|api[_. -]?key"
    r"|(?:access|refresh|auth|id|session|bearer|api)[_. -]?token"
    r"|(?:private|secret|access|account|encryption|signing)[_. -]?key|(?<![a-z0-9_.-])token)\Z"
)
_LONGEST_NAME = 24

_NEEDLES = tuple(sorted({
    *(start.lower() for start in _STARTS), *(needle for one in _CALLINGS for needle in one.needles),
    "private key", "://", "cookie", "credentials",
}))  # fmt: skip


def may_hold_a_secret(text: str) -> bool:
    """Whether looking closer is worth it. Most texts say no, after a few substring searches."""
    lowered = text.lower()
    return any(needle in lowered for needle in _NEEDLES)


def names_a_secret(field: str) -> bool:
    """Whether the value under this object key is a secret whatever it holds (``password``, ``X-Api-Key``)."""
    return len(field) <= 128 and is_secret_name(field)


def spans(text: str) -> list[Span]:
    """Where secrets lie; in order, not overlapping."""
    found = sorted(_all_spans(text))
    return _without_overlap(found) if len(found) > 1 else found


def _all_spans(text: str) -> Iterator[Span]:
    for form in _TOKEN_FORMS:
        if any(start in text for start in form.starts):
            yield from (Span(*hit.span(), form.rule) for hit in form.pattern.finditer(text))
    if "PRIVATE KEY" in text:
        yield from (Span(*hit.span(), "private-key") for hit in _PRIVATE_KEY.finditer(text))
    if "://" in text:
        yield from (Span(*hit.span("secret"), "url-credentials") for hit in _URL_PASSWORD.finditer(text))
    for calling, at in _openings(_lower(text)):
        for value in calling.values:
            hit = value.match(text, at)
            if hit is not None:
                yield Span(*hit.span("secret"), calling.rule)
                break


def _openings(lowered: str, start: int = 0) -> Iterator[tuple[_Calling, int]]:
    """Where a value begins that is called a secret."""
    for calling in _CALLINGS:
        if not any(needle in lowered for needle in calling.needles):
            continue
        for hit in calling.opening.finditer(lowered, start):
            if "name" not in hit.groupdict() or _is_whole_name(lowered, hit.end("name")):
                yield calling, hit.end()


def _is_whole_name(lowered: str, end: int) -> bool:
    return _WHOLE_NAME.search(lowered, max(0, end - _LONGEST_NAME), end) is not None


def _lower(text: str) -> str:
    """Lower case at the same places: a few letters have a lower case of another length, and stay."""
    lowered = text.lower()
    return lowered if len(lowered) == len(text) else text.translate(_ASCII_LOWER)


_ASCII_LOWER = {ord(char): char.lower() for char in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}


def _without_overlap(found: list[Span]) -> list[Span]:
    kept = [found[0]]
    for span in found[1:]:
        last = kept[-1]
        if span.start >= last.end:
            kept.append(span)
        elif span.end > last.end:
            kept[-1] = Span(last.start, span.end, last.rule)
    return kept


# -- text that streams ---------------------------------------------------------------------------------------------

_KEY_BEGIN = "-----BEGIN "
_KEY_ENDS = re.compile(r"-----END[^-]{0,48}-----")
_QUOTE_ENDS = re.compile(r"""["'\n]""")
_WORD_ENDS = re.compile(r"(?=\s)")
_QUOTE_OPENS = re.compile(r"""\\{0,3}["']""")


def hold_from(text: str) -> Hold | None:
    """From where the end of `text` may be an unfinished secret; None when it may not."""
    floor = 0
    begin = text.rfind(_KEY_BEGIN)
    if begin >= 0:
        ends = _KEY_ENDS.search(text, begin)
        if ends is None:
            return Hold(begin, _KEY_ENDS)
        floor = ends.end()  # what is complete is not cut again
    called = _unfinished_value(text, floor)
    if called is not None:
        return called
    word_at = max(floor, 1 + max(text.rfind(" "), text.rfind("\n"), text.rfind("\t")))
    word = text[word_at:]
    return Hold(word_at, _WORD_ENDS) if word and _may_grow_into_a_secret(word) else None


def _unfinished_value(text: str, floor: int) -> Hold | None:
    unfinished: Hold | None = None
    for _, at in _openings(_lower(text), floor):
        quote = _QUOTE_OPENS.match(text, at)
        ends = _WORD_ENDS if quote is None else _QUOTE_ENDS
        begins = at if quote is None else quote.end()
        if ends.search(text, begins) is None and (unfinished is None or at < unfinished.start):
            unfinished = Hold(at, ends)
    return unfinished


def _may_grow_into_a_secret(word: str) -> bool:
    if "://" in word or "-----" in word or word.endswith("-") or any(start in word for start in _STARTS):
        return True
    for length in range(1, min(len(word), _LONGEST_START) + 1):
        begins_a_word = length == len(word) or not word[-length - 1].isalnum()
        if (begins_a_word or length >= 3) and word[-length:] in _PARTIAL_STARTS:
            return True
    return False
