"""Every rule finds its format, plain and encoded, and lets what only resembles it pass."""

import base64
import hashlib
import json
import time
import urllib.parse

import pytest
import regex

from runlane.masking.masker import mask_text
from runlane.masking.rules import MAX_OPENING_BYTES, RULES, RULES_VERSION, TOKENS, names_a_secret
from runlane.masking.scanner import Scanner
from support import secrets

SCANNER = Scanner()
TOKENS_BY_NAME = secrets.tokens()
CONTEXTS_BY_NAME = secrets.in_context()
SURVIVORS = secrets.survivors()


def mask(text: str) -> str:
    return mask_text(text, SCANNER)[0]


@pytest.mark.parametrize("name", TOKENS_BY_NAME)
@pytest.mark.parametrize(
    "around", ["{}", "use {} now", "x={}", "'{}'", "a,{},b", "\n{}\n", r"\n{}\t", "%3D{}", "({})."]
)
def test_a_token_is_masked_whole_wherever_it_stands(name: str, around: str) -> None:
    rule, token = TOKENS_BY_NAME[name]
    masked = mask(around.format(token))
    assert token[8:] not in masked
    assert masked == around.format(f"[masked:{rule}]")


@pytest.mark.parametrize("name", TOKENS_BY_NAME)
@pytest.mark.parametrize("before", ["", "a", "ab", "Basic x:", '{"key": "'])
def test_a_token_in_base64_is_masked(name: str, before: str) -> None:
    rule, token = TOKENS_BY_NAME[name]
    if name == "openai user" and len(before) % 3 == 2:
        return
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        text = encode((before + token + " tail").encode()).decode()
        masked = mask(f"data {text} end")
        assert f"[masked:{rule}]" in masked, text
        left = masked.removeprefix("data ").removesuffix(" end").partition("[masked")[0]
        assert token[8:16] not in base64.urlsafe_b64decode(left.replace("+", "-").replace("/", "_") + "===").decode(
            errors="replace"
        )


@pytest.mark.parametrize("name", TOKENS_BY_NAME)
@pytest.mark.parametrize("inner", ["", "a", "ab"])
@pytest.mark.parametrize("outer", ["", "a", "ab"])
def test_a_token_in_base64_in_base64_is_masked(name: str, inner: str, outer: str) -> None:
    """As in the data of a Kubernetes secret, shown in base64."""
    rule, token = TOKENS_BY_NAME[name]
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        once = encode(f"{inner}{token} tail".encode()).decode()
        text = encode(f"{outer}{once} end".encode()).decode()
        masked = mask(f"data {text} end")
        assert f"[masked:{rule}]" in masked, text
        assert text[30:50] not in masked


@pytest.mark.parametrize("name", TOKENS_BY_NAME)
def test_a_token_whose_characters_are_all_percent_encoded_is_masked(name: str) -> None:
    rule, token = TOKENS_BY_NAME[name]
    whole = "".join(f"%{byte:02X}" for byte in token.encode())
    half = "".join(f"%{ord(char):02x}" if at % 2 == 0 else char for at, char in enumerate(token))
    for text in (whole, whole.lower(), half):
        masked = mask(f"GET /x?q={text}&page=2")
        assert masked == f"GET /x?q=[masked:{rule}]&page=2"


@pytest.mark.parametrize("name", TOKENS_BY_NAME)
def test_a_token_in_a_url_is_masked(name: str) -> None:
    rule, token = TOKENS_BY_NAME[name]
    url = "https://x.example/?" + urllib.parse.urlencode({"q": f"key {token}"})
    assert token not in mask(url)
    assert f"[masked:{rule}]" in mask(url)


@pytest.mark.parametrize("name", CONTEXTS_BY_NAME)
def test_what_its_context_names_a_secret_is_masked_and_the_context_stays(name: str) -> None:
    rule, text, secret = CONTEXTS_BY_NAME[name]
    assert mask(text) == text.replace(secret, f"[masked:{rule}]")


def test_a_private_key_is_masked_from_its_header_to_its_end() -> None:
    key = secrets.private_key()
    assert mask(f"before\n{key}\nafter") == "before\n[masked:private-key]\nafter"
    assert mask(json.dumps({"key": key})) == '{"key": "[masked:private-key]"}'
    assert mask(urllib.parse.quote_plus(key, safe="-")) == "[masked:private-key]"
    assert mask(f"cut off: {key[:200]}") == "cut off: [masked:private-key]"
    encoded = base64.b64encode(key.encode()).decode()
    assert key.splitlines()[3] not in base64.b64decode(mask(encoded).partition("[")[0] + "===").decode(errors="replace")
    assert "[masked:private-key]" in mask(encoded)


@pytest.mark.parametrize("name", SURVIVORS)
def test_what_is_no_secret_survives(name: str) -> None:
    assert mask(SURVIVORS[name]) == SURVIVORS[name]


def test_two_secrets_in_one_text_are_both_masked() -> None:
    one, two = TOKENS_BY_NAME["github"][1], TOKENS_BY_NAME["slack bot"][1]
    assert mask(f"{one} and {two}") == "[masked:github-token] and [masked:slack-token]"


@pytest.mark.parametrize("name", TOKENS_BY_NAME)
def test_two_tokens_run_together_leave_nothing_of_either(name: str) -> None:
    token = TOKENS_BY_NAME[name][1]
    masked = mask(token + token)
    assert token[12:24] not in masked
    assert "[masked:" in masked


def test_where_rules_overlap_one_mask_covers_them_all() -> None:
    token = TOKENS_BY_NAME["anthropic"][1]
    assert mask(f"Authorization: Bearer {token}") == "Authorization: Bearer [masked:anthropic-key]"
    assert mask(f'"password": "{token} and more"') == '"password": "[masked:anthropic-key]"'


def test_masking_a_masked_text_changes_nothing_more() -> None:
    for _, token in TOKENS_BY_NAME.values():
        once = mask(f"a {token} b")
        assert mask(once) == once


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.id} {rule.literal_prefix}")
def test_every_rule_is_whole(rule: object) -> None:
    assert rule.id  # type: ignore[attr-defined]
    assert regex.fullmatch(r"[a-z0-9-]{1,32}", rule.id)  # type: ignore[attr-defined]
    assert rule.description  # type: ignore[attr-defined]
    assert rule.exact.groupindex["secret"]  # type: ignore[attr-defined]
    assert rule.exact.search(b"") is None  # type: ignore[attr-defined]


def test_the_gate_reports_whatever_the_exact_pattern_finds() -> None:
    for rule in TOKENS:
        for text in (rule.literal_prefix + "aA0" * 30, rule.literal_prefix + "AA2" * 20):
            if rule.exact.search(text.encode()):
                assert SCANNER.has_candidates(text.encode()), rule.id
                assert SCANNER.spans(text.encode()), rule.id


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("password", True), ("Password", True), ("db_password", True), ("X-Api-Key", True), ("apiKey", True),
        ("client_secret", True), ("clientSecret", True), ("AWS_SECRET_ACCESS_KEY", True), ("access_token", True),
        ("token", True), ("Authorization", True), ("private key", True), ("set-cookie", True),
        ("tokens", False), ("input_tokens", False), ("next_page_token", False), ("max_tokens", False),
        ("key", False), ("passwords_changed", False), ("author", False), ("secretary", False),
        ("idempotency_key", False),
    ],
)  # fmt: skip
def test_which_keys_name_a_secret(key: str, expected: bool) -> None:
    assert names_a_secret(key) is expected
    if expected:
        assert SCANNER.is_suspicious(json.dumps({key: "v"}).encode())


@pytest.mark.parametrize(
    "unit",
    ["eyJ-", "eyJ.", " eyJaaaaaaaa", "token=", "sk-", "https://a:", "a://b:c", "bearer ", "password='",
     '\\"password\\":\\"',
     "-----BEGIN PRIVATE KEY-----", "\\\\", "authorization: ", "AIza-", "secret_access_key:", "%3D", "c2st"],
)  # fmt: skip
def test_no_text_makes_a_rule_slow(unit: str) -> None:
    text = unit * (100_000 // len(unit))
    before = time.process_time()
    mask(text)
    assert time.process_time() - before < 2.0


def test_the_version_rises_with_every_change_of_the_rules() -> None:
    """The view is a function of the log and this version. A changed rule needs a new version, and then this digest."""
    text = "\n".join(f"{rule.id} {rule.exact.pattern!r} {rule.exact.flags}" for rule in RULES)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    assert (RULES_VERSION, digest) == ("2", "ce470377959ba23b")


def test_openings_are_short() -> None:
    for rule in RULES:
        longest = max(
            (
                len(one.group())
                for one in rule.opens.finditer(
                    f"{rule.literal_prefix} password \t: ' authorization  :  ' bearer    x://{'u' * 64}:".encode()
                )
            ),
            default=0,
        )
        assert longest < MAX_OPENING_BYTES
