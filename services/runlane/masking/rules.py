"""What a secret looks like.

A `Rule` is one format. A match is an *opening*, which is public (a vendor's prefix, a key's name), followed by
the *secret*. Of one rule are made, and must agree: its `gate`, a relaxation that one pass of hyperscan looks for
in the raw JSON of a whole commit; its `opening_gate`, which says where in a text a match may begin; the exact
pattern, which is tried there; and the same pattern tried partially, which says whether a text that is still being
written may turn into a secret.

Every exact pattern is *monotone*: more text after a match never undoes it, so what was seen in a fragment holds.
Texts are searched as UTF-8; every match begins and ends at an ASCII character.

`RULES_VERSION` rises with every change here: a view message names the version that made it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import regex

from runlane_contracts.secret_names import is_secret_name

RULES_VERSION = "2"

MAX_OPENING_BYTES = 256
"""No opening, with what stands before it, is longer."""


@dataclass(frozen=True)
class Rule:
    """One format. `keeps_opening`: the opening is no part of the secret and stays when the secret is masked."""

    id: str
    pattern: str
    """What follows the opening and is masked."""
    literal_prefix: str
    """The vendor's public prefix, or a word that names the secret."""
    description: str
    opening: str = ""
    """Pattern of what stands before; by default the literal prefix."""
    opening_gate: str = ""
    """Hyperscan pattern, in a text, for a stretch in which an opening starts; by default the literal prefix."""
    gate: str = ""
    """Hyperscan pattern, in raw JSON, that every match contains; by default the prefix and the pattern."""
    keeps_opening: bool = False
    ignore_case: bool = False

    @property
    def mask(self) -> bytes:
        """What takes the place of the secret."""
        return f"[masked:{self.id}]".encode()

    @cached_property
    def opens(self) -> Any:
        """The compiled opening."""
        return regex.compile(self._opening.encode(), self._flags)

    @cached_property
    def exact(self) -> Any:
        """The compiled whole; the group `secret` is what is masked."""
        if self.keeps_opening:
            text = f"{self._opening}(?P<secret>{self.pattern})"
        else:
            text = f"(?P<secret>{self._opening}(?:{self.pattern}))"
        return regex.compile(text.encode(), self._flags)

    @property
    def opening_gate_pattern(self) -> str:
        """What hyperscan looks for where a match may begin."""
        return self.opening_gate or regex.escape(self.literal_prefix, special_only=True)

    @property
    def gate_pattern(self) -> str:
        """What hyperscan looks for where a match may be."""
        return self.gate or f"{self.opening_gate_pattern}(?:{self.pattern})"

    @property
    def _opening(self) -> str:
        return self.opening or regex.escape(self.literal_prefix, special_only=True)

    @property
    def _flags(self) -> int:
        return int(regex.IGNORECASE) if self.ignore_case else 0


# --- tokens: a literal, then characters that JSON never escapes -----------------------------------------------

# A word begins here: no letter or digit before, unless it ends an escape (JSON in JSON, a URL).
_START = r"(?:(?<![A-Za-z0-9])|(?<=\\[bfnrt])|(?<=\\u[0-9A-Fa-f]{4})|(?<=%[0-9A-Fa-f]{2}))"
_GATED_CHARACTERS = 8  # a longer gate would tell hardly more, and take longer to compile
_ALNUM = "[A-Za-z0-9]"
_WORD = "[A-Za-z0-9_-]"


def _token(id_: str, prefix: str, alphabet: str, least: int, description: str, *, starts: bool) -> Rule:
    """`starts`: only where a word begins. What hangs on to a token is masked with it: it may be the next one."""
    literal = regex.escape(prefix, special_only=True)
    return Rule(
        id=id_, literal_prefix=prefix, description=description, opening_gate=literal,
        gate=f"{literal}{alphabet}{{{max(1, _GATED_CHARACTERS - len(prefix))}}}",
        opening=(_START if starts else "") + literal, pattern=f"{alphabet}{{{least},}}{_WORD}*",
    )  # fmt: skip


_VENDORS: tuple[tuple[str, str, str, int, str, bool], ...] = (
    ("anthropic-key", "sk-ant-", _WORD, 16, "Anthropic API or admin key", False),
    ("openai-key", "sk-proj-", _WORD, 16, "OpenAI project key", False),
    ("openai-key", "sk-svcacct-", _WORD, 16, "OpenAI service account key", False),
    ("openai-key", "sk-admin-", _WORD, 16, "OpenAI admin key", False),
    ("openrouter-key", "sk-or-v1-", _ALNUM, 16, "OpenRouter key", False),
    ("openai-key", "sk-", _ALNUM, 20, "OpenAI user key, and the many that copied the form", True),
    ("runlane-key", "rlk_", _WORD, 16, "API key of this product", False),
    ("github-token", "ghp_", _ALNUM, 20, "GitHub personal token", False),
    ("github-token", "gho_", _ALNUM, 20, "GitHub OAuth token", False),
    ("github-token", "ghu_", _ALNUM, 20, "GitHub user-to-server token", False),
    ("github-token", "ghs_", _ALNUM, 20, "GitHub server token", False),
    ("github-token", "ghr_", _ALNUM, 20, "GitHub refresh token", False),
    ("github-token", "github_pat_", "[A-Za-z0-9_]", 20, "GitHub fine-grained token", False),
    ("gitlab-token", "glpat-", _WORD, 16, "GitLab personal token", False),
    ("aws-key-id", "AKIA", "[A-Z0-9]", 16, "AWS access key id", True),
    ("aws-key-id", "ASIA", "[A-Z0-9]", 16, "AWS temporary access key id", True),
    ("slack-token", "xoxa-", "[A-Za-z0-9-]", 10, "Slack app token", False),
    ("slack-token", "xoxb-", "[A-Za-z0-9-]", 10, "Slack bot token", False),
    ("slack-token", "xoxe-", "[A-Za-z0-9-]", 10, "Slack refresh token", False),
    ("slack-token", "xoxe.xox", "[A-Za-z0-9.-]", 10, "Slack configuration token", False),
    ("slack-token", "xoxo-", "[A-Za-z0-9-]", 10, "Slack OAuth token", False),
    ("slack-token", "xoxp-", "[A-Za-z0-9-]", 10, "Slack user token", False),
    ("slack-token", "xoxr-", "[A-Za-z0-9-]", 10, "Slack refresh token", False),
    ("slack-token", "xoxs-", "[A-Za-z0-9-]", 10, "Slack session token", False),
    ("slack-token", "xapp-", "[A-Za-z0-9-]", 10, "Slack app-level token", False),
    ("google-key", "AIza", _WORD, 35, "Google API key", True),
    ("google-token", "ya29.", _WORD, 20, "Google OAuth token", True),
    ("stripe-key", "sk_live_", _ALNUM, 10, "Stripe secret key", False),
    ("stripe-key", "rk_live_", _ALNUM, 10, "Stripe restricted key", False),
    ("stripe-key", "sk_test_", _ALNUM, 10, "Stripe secret key for tests", False),
    ("stripe-key", "rk_test_", _ALNUM, 10, "Stripe restricted key for tests", False),
    ("stripe-key", "whsec_", _ALNUM, 20, "Stripe webhook secret", False),
    ("npm-token", "npm_", _ALNUM, 30, "npm token", True),
    ("huggingface-token", "hf_", _ALNUM, 30, "Hugging Face token", True),
    ("pypi-token", "pypi-AgE", _WORD, 20, "PyPI token", True),
    ("groq-key", "gsk_", _ALNUM, 30, "Groq key", True),
)

_JWT = Rule(
    id="jwt", literal_prefix="eyJ", description="JSON Web Token: header, payload, signature",
    # Not after a `-` or `_` either, so that one run of characters is tried once.
    opening=_START.replace("(?<![A-Za-z0-9])", "(?<![A-Za-z0-9_-])") + "eyJ", opening_gate="eyJ",
    pattern=r"[A-Za-z0-9_-]{8,2048}+\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]+)*",
    gate=r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8}",
)  # fmt: skip

TOKENS: tuple[Rule, ...] = (
    *(_token(id_, prefix, alphabet, least, text, starts=starts)
      for id_, prefix, alphabet, least, text, starts in _VENDORS),
    _JWT,
)  # fmt: skip


# --- contexts: what stands before says that this is a secret ---------------------------------------------------

_SPACE = r"(?:[ \t+]|%20)"
_SCHEMES = "(?:bearer|basic|token|digest|apikey|negotiate)"
_NAMES = (
    r"(?:pass(?:word|wd|phrase)|pwd|secret|(?:client|app)[_. -]?secret|api[_. -]?key"
    r"|(?:access|refresh|auth|id|session|bearer|api)[_. -]?token"
    r"|(?:private|secret|access|account|encryption|signing)[_. -]?key|secret[_. -]?access[_. -]?key)"
)
# `token` alone, but not `next_page_token`, which is no secret.
_NAME = rf"(?:{_NAMES}|(?:(?<![A-Za-z0-9_.-])|(?<=\\[bfnrt])|(?<=%[0-9A-Fa-f]{{2}}))token)"
_QUOTE = r"""(?:\\{0,3}["']|%22)?"""
_IS = r"\s{0,8}(?:=>|:=|==?|:|%3[AaDd])\s{0,8}"
_IS_NEAR = r"[^:=%]{0,16}(?:[:=]|%3[AaDd])"
# A bare value: up to a space, a quote, a bracket or an `&`, also where those are URL-encoded.
_NOT_BARE = r"""\s"'\\,;&<>(){}\[\]|`$%"""
_PERCENT = "%(?=[^2]|2[^26])"
_BARE_VALUE = rf"(?=[^{_NOT_BARE}0-9]{{0,64}}+(?:[0-9]|{_PERCENT}))(?:[^{_NOT_BARE}]|{_PERCENT}){{8,}}"
_GATED_NAME = f"(?i)(?:{_NAMES}|token)"
_NAMED = _GATED_NAME + _IS_NEAR

_AWS = rf"(?:aws|amazon|secret)[_. -]?(?:secret)?[_. -]?(?:access)?[_. -]?key{_QUOTE}{_IS}{_QUOTE}"
_AUTHORIZATION = rf"authorization{_QUOTE}{_IS}(?:%20|\+)?{_QUOTE}(?:{_SCHEMES}(?:\s|%20|\+){{1,4}})?"
_BEARER = r"bearer(?:\s|%20|\+){1,4}"
_USER = r"""://[^\s/?#:@"'<>\\\[\]]{0,64}:"""
_IN_ESCAPED_QUOTES = rf"""\\{{1,3}}["']{_IS}\\{{1,3}}["']"""
_ASSIGNED = f"{_QUOTE}{_IS}(?:%22)?"

CONTEXTS: tuple[Rule, ...] = (
    Rule(
        id="private-key", literal_prefix="-----BEGIN", description="PEM private key, to its end or the text's",
        opening=rf"-----BEGIN{_SPACE}(?:[A-Z0-9]{{1,16}}{_SPACE}){{0,3}}PRIVATE{_SPACE}KEY(?:{_SPACE}BLOCK)?-----",
        pattern=r"[\s\S]*?(?:-----END[^-]{0,48}-----|\Z)",
        opening_gate=r"-----BEGIN[A-Z0-9 \t+%]{1,70}-----", gate="PRIVATE(?:[ +]|%20|.t)KEY",
    ),
    Rule(
        id="aws-secret", literal_prefix="aws", description="AWS secret key where it is assigned",
        keeps_opening=True, ignore_case=True, opening=_AWS, opening_gate="(?i)" + _AWS,
        pattern=r"(?:[A-Za-z0-9/+]|%2[BbFf]){40,}", gate=f"(?i)key{_IS_NEAR}",
    ),
    Rule(
        id="authorization", literal_prefix="authorization", description="Authorization header",
        keeps_opening=True, ignore_case=True, opening=_AUTHORIZATION, opening_gate="(?i)" + _AUTHORIZATION,
        pattern=rf"""(?!{_SCHEMES}(?![A-Za-z0-9]))[^\s"'\\,;<>{{}}]{{8,}}""", gate=f"(?i)authorization{_IS_NEAR}",
    ),
    Rule(
        id="bearer-token", literal_prefix="bearer", description="A bearer token, wherever it stands",
        keeps_opening=True, ignore_case=True,
        opening=rf"(?<![A-Za-z0-9]){_BEARER}", opening_gate="(?i)" + _BEARER,
        pattern=r"(?=[A-Za-z._~+/%-]{0,255}+[0-9])[A-Za-z0-9._~+/%-]{20,}=*",
        gate=r"(?i)bearer[^A-Za-z0-9]",
    ),
    Rule(
        id="url-credentials", literal_prefix="://", description="user:password@ in a URL", keeps_opening=True,
        opening=rf"(?<=[A-Za-z0-9+.-]){_USER}", opening_gate=_USER,
        pattern=r"""[^\s/?#@"'<>\\]{1,256}(?=@)""", gate=r"""://[^\s/?#@"]*:[^\s/?#@"]*@""",
    ),
    Rule(
        id="named-secret", literal_prefix="password", keeps_opening=True, ignore_case=True,
        description='"password": "…" in a JSON text inside a string',
        opening=_NAME + _IN_ESCAPED_QUOTES, opening_gate=_GATED_NAME + _IN_ESCAPED_QUOTES, gate=_NAMED,
        pattern=r"""(?:[^"\\\n]|\\{2,}+"?|\\[^"\\\n])+""",  # `\"` closes what `\"` opened; `\\\"` does not
    ),
    Rule(
        id="named-secret", literal_prefix="password", keeps_opening=True, ignore_case=True,
        description='"password": "…" or password = "…" in a text',
        opening=rf"""{_NAME}["']?{_IS}(?P<quote>["'])""", opening_gate=rf"""{_GATED_NAME}["']?{_IS}["']""", gate=_NAMED,
        pattern=r"""(?:(?!(?P=quote))[^\\\n]|\\[^\n])+""",
    ),
    Rule(
        id="named-secret", literal_prefix="password", keeps_opening=True, ignore_case=True,
        description="password=… without quotes: eight characters or more, one of them a digit",
        opening=_NAME + _ASSIGNED, opening_gate=_GATED_NAME + _ASSIGNED, gate=_NAMED, pattern=_BARE_VALUE,
    ),
)  # fmt: skip


# --- the same, encoded ------------------------------------------------------------------------------------------

_BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_URL_SAFE = {"+": "-", "/": "_"}
_LEAST_FRAGMENT = 3
_ENCODED_BYTES = 20


def _in_base64(rule: Rule, alphabet: str) -> Iterator[Rule]:
    """The rule's token in base64, once and twice, at each of the ways its bytes can fall into groups of three.

    Exact, not a guess: each base64 character is limited to what the token's own alphabet can give.
    """
    bytes_ = [frozenset([byte]) for byte in rule.literal_prefix.encode()]
    bytes_ += [_bytes_of(alphabet)] * max(8, _ENCODED_BYTES - len(bytes_))
    for once in _base64_forms(bytes_):
        yield from _base64_rule(rule, once, "in base64")
        as_bytes = [frozenset(ord(both) for char in one for both in (char, _URL_SAFE.get(char, char))) for one in once]
        for twice in _base64_forms(as_bytes):
            yield from _base64_rule(rule, twice, "in base64, and that in base64 again")


_Classes = list[frozenset[str]]


def _base64_rule(rule: Rule, classes: _Classes, how: str) -> Iterator[Rule]:
    fragment = "".join(_leading_literal(classes))
    if len(fragment) >= _LEAST_FRAGMENT:
        literal = regex.escape(fragment, special_only=True)
        rest = [_class(one) for one in classes[len(fragment) :]]
        yield Rule(
            id=rule.id, literal_prefix=fragment, description=f"{rule.description}, {how}", opening_gate=literal,
            gate=literal + "".join(rest[: max(0, _GATED_CHARACTERS + 2 - len(fragment))]),
            pattern=f"{''.join(rest)}[A-Za-z0-9+/_-]*={{0,2}}",
        )  # fmt: skip


@cache
def _bytes_of(alphabet: str) -> frozenset[int]:
    return frozenset(byte for byte in range(128) if regex.fullmatch(alphabet, chr(byte)))


def _base64_forms(bytes_: list[frozenset[int]]) -> Iterator[_Classes]:
    for shift in range(3):
        yield _base64_classes(bytes_, shift)


def _base64_classes(bytes_: list[frozenset[int]], shift: int) -> _Classes:
    """What each base64 character can be that holds only bits of `bytes_`, which start `shift` bytes into a group."""
    first, last = -(-8 * shift // 6), 8 * (shift + len(bytes_)) // 6
    return [_base64_class(bytes_, 6 * index - 8 * shift) for index in range(first, last)]


def _base64_class(bytes_: list[frozenset[int]], bit: int) -> frozenset[str]:
    """The characters for the six bits from `bit` on."""
    at, offset = divmod(bit, 8)
    if offset <= 2:
        return _characters(bytes_[at], offset)
    return _characters_of_two(bytes_[at], bytes_[at + 1], offset)


@cache
def _characters(of: frozenset[int], offset: int) -> frozenset[str]:
    return frozenset(_BASE64[byte >> (2 - offset) & 63] for byte in of)


@cache
def _characters_of_two(left: frozenset[int], right: frozenset[int], offset: int) -> frozenset[str]:
    taken = offset - 2  # bits of the right one
    high = {byte << taken & 63 for byte in left}
    low = {byte >> (8 - taken) for byte in right}
    return frozenset(_BASE64[one | other] for one in high for other in low)


def _leading_literal(classes: _Classes) -> Iterator[str]:
    for one in classes:
        if len(one) > 1:
            return
        yield from one


@cache
def _class(characters: frozenset[str]) -> str:
    both = characters | {_URL_SAFE[one] for one in characters if one in _URL_SAFE}
    return "[" + "".join(regex.escape(one) for one in sorted(both)) + "]"


_HEX = "[0-9A-Fa-f]"


def _in_percents(rule: Rule, alphabet: str) -> Rule:
    """The rule's token where characters that need not be are percent-encoded, its first one at least."""
    first, *others = (f"%{ord(char):02x}" for char in rule.literal_prefix)
    opening = _any_case(first) + "".join(
        f"(?:{_any_case(encoded)}|{regex.escape(char, special_only=True)})"
        for char, encoded in zip(rule.literal_prefix[1:], others, strict=True)
    )
    return Rule(
        id=rule.id, literal_prefix=first, description=f"{rule.description}, percent-encoded", opening=opening,
        opening_gate=opening, gate=f"{opening}(?:{alphabet}|%{_HEX}{{2}}){{4}}",
        pattern=rf"(?:{alphabet}|%[2-7]{_HEX}){{16,}}(?:{_WORD}|%[2-7]{_HEX})*",
    )  # fmt: skip


def _any_case(encoded: str) -> str:
    return "".join(f"[{digit}{digit.upper()}]" if digit.isalpha() else digit for digit in encoded)


ENCODED: tuple[Rule, ...] = (
    *(_in_percents(rule, vendor[2]) for rule, vendor in zip(TOKENS, _VENDORS, strict=False)),
    _in_percents(_JWT, "[A-Za-z0-9_.-]"),
    *(variant for rule, vendor in zip(TOKENS, _VENDORS, strict=False) for variant in _in_base64(rule, vendor[2])),
    *_in_base64(_JWT, _WORD),
    *_in_base64(Rule(id="private-key", literal_prefix="PRIVATE KEY-----", description="PEM private key", pattern=""),
                r"[A-Za-z0-9+/=\r\n:, -]"),
)  # fmt: skip

RULES: tuple[Rule, ...] = (*TOKENS, *CONTEXTS, *ENCODED)


# --- names ------------------------------------------------------------------------------------------------------

KEY_NAME_RULE = "secret-name"
KEY_NAME_GATE = (
    r'(?i)(?:pass(?:word|wd|phrase)|pwd|secret|token|authorization|cookie|credentials|key)[^A-Za-z0-9]{0,8}"[^"]{0,16}:'
)
"""Hyperscan pattern for an object key, in raw JSON, that `names_a_secret` may say yes to."""


def names_a_secret(key: str) -> bool:
    """Whether the value under this object key is a secret whatever it holds (``password``, ``X-Api-Key``)."""
    return len(key) <= MAX_OPENING_BYTES and is_secret_name(key)
