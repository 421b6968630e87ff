import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from runlane.client.redact import TokenRedactor
from runlane.client.secret_forms import MAX_HELD_CHARS
from support import secrets

TOKENS = secrets.tokens()
ENCODED = {"encoded query"}
IN_CONTEXT = {name: found for name, found in secrets.in_context().items() if name not in ENCODED}
PLAIN = {**secrets.survivors(), "fruit": "An apple and a pear.", "nothing": ""}

redactor = TokenRedactor()


@pytest.mark.parametrize("name", TOKENS)
def test_a_secret_of_a_known_form_is_masked_by_the_name_the_filter_gives_it(name: str):
    rule, token = TOKENS[name]
    assert redactor.text(f"before {token} after") == f"before [masked:{rule}] after"


def test_a_private_key_is_masked_whole():
    assert redactor.text(f"x {secrets.private_key()} y") == "x [masked:private-key] y"


@pytest.mark.parametrize("name", IN_CONTEXT)
def test_a_value_that_is_called_a_secret_is_masked(name: str):
    _, text, secret = IN_CONTEXT[name]
    masked = redactor.text(text)
    assert secret not in masked
    assert "[masked:" in masked


@pytest.mark.parametrize("name", PLAIN)
def test_what_only_looks_like_a_secret_is_left_as_it_is(name: str):
    assert redactor.text(PLAIN[name]) == PLAIN[name]


def test_json_without_secrets_keeps_its_very_bytes():
    raw = b'{"b": 1.0,\n "a": ["usage", {"total_tokens": 21}], "password_hint": null}'
    assert redactor.json(raw) is raw


def test_json_is_masked_in_values_in_keys_called_secret_and_in_json_inside_strings():
    inner = msgspec.json.encode({"api_key": "zYxWvU987654"}).decode()
    raw = msgspec.json.encode({"password": "x", "deep": [{"cookie": "sid=1"}, inner], "n": 1, "ok": "fine"})
    masked = msgspec.json.decode(redactor.json(raw))
    assert masked["password"] == masked["deep"][0]["cookie"] == "[masked:secret-name]"
    assert "zYxWvU987654" not in masked["deep"][1]
    assert (masked["n"], masked["ok"]) == (1, "fine")


def streamed(text: str, cuts: list[int]) -> str:
    stream = redactor.stream()
    out, at = [], 0
    for cut in [*sorted(set(cuts)), len(text)]:
        out.append(stream.push(text[at:cut]))
        at = cut
    return "".join(out) + stream.finish()


EVERYTHING = " ; ".join([
    *(token for _, token in TOKENS.values()), secrets.private_key(), *(text for _, text, _ in IN_CONTEXT.values()),
    *(text for text in PLAIN.values() if len(text) < 1000),
])  # fmt: skip


@settings(deadline=None)
@given(st.lists(st.integers(0, len(EVERYTHING)), max_size=60))
def test_p8_however_a_text_is_cut_the_stream_shows_what_the_whole_shows(cuts: list[int]):
    assert streamed(EVERYTHING, cuts) == redactor.text(EVERYTHING)


def test_p8_a_text_cut_at_every_character_shows_what_the_whole_shows():
    assert streamed(EVERYTHING, list(range(len(EVERYTHING)))) == redactor.text(EVERYTHING)


@given(st.lists(st.text(max_size=8), max_size=30))
def test_a_stream_shows_what_the_whole_text_would(parts: list[str]):
    stream = redactor.stream()
    shown = "".join(stream.push(part) for part in parts) + stream.finish()
    assert shown == redactor.text("".join(parts))


def test_ordinary_words_are_not_held_back():
    stream = redactor.stream()
    assert [stream.push(word) for word in ["An", " apple", " and", " a", " pear."]] == [
        "An", " apple", " and", " a", " pear.",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("opening", "closing"),
    [("-----BEGIN PRIVATE KEY-----\n", "\n-----END PRIVATE KEY-----"), ('password: "', '"'), ("api_key=", " ")],
)
def test_a_secret_longer_than_what_may_wait_is_swallowed_to_its_end(opening: str, closing: str):
    stream = redactor.stream()
    shown = stream.push(f"see {opening}")
    for _ in range(100):
        shown += stream.push("A1" * 500)
        assert len(stream._text) <= MAX_HELD_CHARS + 1200
    for char in closing:
        shown += stream.push(char)
    shown += stream.push(" and then this") + stream.finish()
    assert "A1A1" not in shown
    assert shown.startswith("see ")
    assert shown.endswith(" and then this")
