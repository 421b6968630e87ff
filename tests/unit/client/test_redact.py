import msgspec
import pytest
from hypothesis import given, strategies as st

from runlane.client.redact import HOLD_BACK_CHARS, TokenRedactor

SECRETS = {
    "api_key": "sk-proj-a1b2c3d4e5f6g7h8i9j0k1l2",
    "github_token": "ghp_" + "a1B2c3D4e5" * 4,
    "gitlab_token": "glpat-a1b2c3d4e5f6g7h8i9j0",
    "slack_token": "xoxb-123456789012-abcdefghij",
    "aws_access_key": "AKIAIOSFODNN7EXAMPLE",
    "google_api_key": "AIza" + "a1B2c3D4e5" * 4,
    "stripe_key": "sk_live_a1b2c3d4e5f6g7h8",
    "npm_token": "npm_" + "a1B2c3D4e5" * 4,
    "huggingface_token": "hf_" + "a1B2c3D4e5" * 4,
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJlLXNpZ25hdHVyZQ",
    "private_key": "-----BEGIN RSA PRIVATE KEY-----\nMIIEow IBAAKCAQEA\n-----END RSA PRIVATE KEY-----",
}
IN_CONTEXT = [
    ("Authorization: Bearer {}", "abcdefghijklmnopqrstuvwx"),
    ("postgres://app:{}@db.internal/app", "s3cr3t-pw"),
    ("export API_KEY={}", "zYxWvU987"),
    ("password = '{}'", "correcthorse"),
    ('{{"client_secret": "{}"}}', "zYxWvU987654"),
]
PLAIN = [
    "An apple and a pear.",
    "the token count was 4,096 and the secret ingredient is salt",
    "see https://example.com/a/b?c=d and task-force skiing",
    "basic arithmetic; bearer of news",
    "passwords are hashed",
    "",
]

redactor = TokenRedactor()


@pytest.mark.parametrize("rule", SECRETS)
def test_a_secret_of_a_known_form_is_masked_by_name(rule: str):
    masked = redactor.text(f"before {SECRETS[rule]} after")
    assert masked == f"before [redacted:{rule}] after"


@pytest.mark.parametrize(("around", "secret"), IN_CONTEXT)
def test_a_value_that_is_called_a_secret_is_masked(around: str, secret: str):
    masked = redactor.text(around.format(secret))
    assert secret not in masked
    assert masked.startswith(around.split("{}", maxsplit=1)[0].replace("{{", "{"))


@pytest.mark.parametrize("text", PLAIN)
def test_plain_text_is_left_as_it_is(text: str):
    assert redactor.text(text) == text


def test_json_without_secrets_keeps_its_very_bytes():
    raw = b'{"b": 1.0,\n "a": ["usage", {"total_tokens": 21}], "password_hint": null}'
    assert redactor.json(raw) is raw


def test_json_is_masked_in_values_in_keys_called_secret_and_in_json_inside_strings():
    inner = msgspec.json.encode({"api_key": "zYxWvU987654"}).decode()
    raw = msgspec.json.encode({"password": "x", "deep": [{"cookie": "sid=1"}, inner], "n": 1, "ok": "fine"})
    masked = msgspec.json.decode(redactor.json(raw))
    assert masked["password"] == masked["deep"][0]["cookie"] == "[redacted:secret_field]"
    assert "zYxWvU987654" not in masked["deep"][1]
    assert (masked["n"], masked["ok"]) == (1, "fine")


def streamed(text: str, cuts: list[int]) -> str:
    stream = redactor.stream()
    out, at = [], 0
    for cut in [*sorted(set(cuts)), len(text)]:
        out.append(stream.push(text[at:cut]))
        at = cut
    return "".join(out) + stream.finish()


EVERYTHING = " ; ".join([*SECRETS.values(), *(around.format(secret) for around, secret in IN_CONTEXT), *PLAIN])


@given(st.lists(st.integers(0, len(EVERYTHING)), max_size=60))
def test_p8_however_a_text_is_cut_the_stream_shows_what_the_whole_shows(cuts: list[int]):
    assert streamed(EVERYTHING, cuts) == redactor.text(EVERYTHING)


def test_p8_a_text_cut_at_every_character_shows_what_the_whole_shows():
    assert streamed(EVERYTHING, list(range(len(EVERYTHING)))) == redactor.text(EVERYTHING)


@given(st.lists(st.text(max_size=8), max_size=30))
def test_a_stream_without_secrets_loses_and_adds_nothing(parts: list[str]):
    stream = redactor.stream()
    shown = "".join(stream.push(part) for part in parts) + stream.finish()
    assert shown == redactor.text("".join(parts)) == "".join(parts)


def test_ordinary_words_are_not_held_back():
    stream = redactor.stream()
    assert [stream.push(word) for word in ["An", " apple", " and", " a", " pear."]] == [
        "An", " apple", " and", " a", " pear.",
    ]  # fmt: skip


def test_what_is_held_back_is_bounded():
    stream = redactor.stream()
    stream.push("-----BEGIN PRIVATE KEY-----\n")
    for _ in range(100):
        stream.push("A" * 1000)
    assert len(stream._text) <= HOLD_BACK_CHARS + 1200
