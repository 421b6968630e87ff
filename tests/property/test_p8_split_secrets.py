"""P8: a secret split over deltas, at every byte, shows in none of them, joined or apart."""

import base64
import itertools
import random

import pytest
from hypothesis import given, settings, strategies as st

from runlane.masking.scanner import Scanner
from runlane.redaction_filter.preview_text import PreviewText
from support import secrets

SCANNER = Scanner()
TOKENS = {name: token for name, (_, token) in secrets.tokens().items()}
CONTEXTS = secrets.in_context()
BASE64 = {name: base64.b64encode(token.encode()).decode() for name, token in TOKENS.items()}
TWICE = {name: base64.b64encode(once.encode()).decode() for name, once in BASE64.items()}
PERCENTS = {name: "".join(f"%{byte:02x}" for byte in token.encode()) for name, token in TOKENS.items()}
SHOWN_MOST = 7
"""No more of a secret than this in one piece: a public prefix may be out before anybody can know."""


def show(fragments: list[str]) -> list[str]:
    text = PreviewText(SCANNER)
    shown = [text.feed(fragment.encode()).decode() for fragment in fragments]
    # What never was decided is never shown; an end decides.
    return [*shown, text.feed(b" \n ").decode()]


def secret_parts(secret: str, length: int) -> set[str]:
    return {secret[at : at + length] for at in range(len(secret) - length + 1)}


def assert_hidden(shown: list[str], secret: str, prefix: int, most: int = SHOWN_MOST) -> None:
    """Nothing of the secret behind its public prefix."""
    joined = "".join(shown)
    hidden = secret[prefix:]
    for part in secret_parts(hidden, most):
        assert part not in joined, (part, joined)


def pieces(text: str, cuts: list[int]) -> list[str]:
    at = [0, *sorted(cuts), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(at)]


PREFIX = {"anthropic": 7, "openai project": 8, "openai service": 11, "openai user": 3, "github fine-grained": 11,
          "gitlab": 6, "slack bot": 5, "slack user": 5, "stripe": 8, "stripe restricted": 8}  # fmt: skip


@pytest.mark.parametrize("name", TOKENS)
def test_a_token_cut_in_two_anywhere_is_masked(name: str) -> None:
    before, after = "so it is: ", ", as they say."
    text = before + TOKENS[name] + after
    for cut in range(len(text) + 1):
        shown = show([text[:cut], text[cut:]])
        assert_hidden(shown, TOKENS[name], PREFIX.get(name, 4))
        joined = "".join(shown)
        assert joined.startswith(before)
        assert joined.rstrip().endswith(after)
        assert joined.count("[masked:") == 1


@pytest.mark.parametrize("name", TOKENS)
def test_a_token_that_comes_byte_by_byte_is_masked(name: str) -> None:
    shown = show(list("a " + TOKENS[name] + " b"))
    assert_hidden(shown, TOKENS[name], PREFIX.get(name, 4))
    assert "".join(shown).count("[masked:") == 1


@pytest.mark.parametrize("name", BASE64)
def test_a_token_in_base64_cut_in_two_anywhere_is_masked(name: str) -> None:
    text = f"data {BASE64[name]} end"
    for cut in range(len(text) + 1):
        shown = show([text[:cut], text[cut:]])
        assert_hidden(shown, BASE64[name], 16)
        assert "".join(shown).rstrip().endswith(" end")


@pytest.mark.parametrize("name", TOKENS)
def test_a_token_encoded_twice_or_in_percents_cut_in_two_anywhere_is_masked(name: str) -> None:
    for encoded, prefix in ((TWICE[name], 24), (PERCENTS[name], 3 * PREFIX.get(name, 4))):
        for cut in range(0, len(encoded) + 11, 5):
            text = f"data {encoded} end"
            shown = show([text[:cut], text[cut:]])
            assert_hidden(shown, encoded, prefix, 3 * SHOWN_MOST)
            assert "".join(shown).rstrip().endswith(" end")


@pytest.mark.parametrize("name", CONTEXTS)
def test_a_secret_named_by_its_context_cut_in_two_anywhere_is_masked(name: str) -> None:
    _, text, secret = CONTEXTS[name]
    expected = "".join(show([text])).rstrip()
    for cut in range(len(text) + 1):
        shown = show([text[:cut], text[cut:]])
        assert_hidden(shown, secret, 0)
        assert "".join(shown).rstrip() == expected
    assert_hidden(show(list(text)), secret, 0)


def test_a_private_key_cut_in_two_anywhere_is_masked() -> None:
    key = secrets.private_key()
    text = f"key:\n{key}\nafter"
    for cut in range(len(text) + 1):
        shown = show([text[:cut], text[cut:]])
        assert_hidden(shown, "\n".join(key.splitlines()[1:-1]), 0)
        assert "".join(shown).rstrip().endswith("\nafter")


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_secrets_in_prose_over_any_fragments_are_masked_and_the_prose_is_whole(data: st.DataObject) -> None:
    words = ["The", "quick", "brown", "fox", "said:", "naïve", "漢字", "pear.", "risk-averse", "sk", "token", "https://a.b/c",
             "eyJ", "x=1", "(see", "below)", "user@host", "12:30", "password"]  # fmt: skip
    parts, names = [], []
    for _ in range(data.draw(st.integers(1, 4))):
        parts += data.draw(st.lists(st.sampled_from(words), max_size=5))
        names.append(data.draw(st.sampled_from(sorted(TOKENS))))
        parts.append(TOKENS[names[-1]])
    parts += data.draw(st.lists(st.sampled_from(words), max_size=5))
    text = " ".join(parts)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=40))
    shown = show(pieces(text, cuts))
    joined = "".join(shown)
    for name in names:
        assert_hidden(shown, TOKENS[name], PREFIX.get(name, 4))
    assert joined.count("[masked:") == len(names)
    words_shown = [word for word in joined.split() if "[masked:" not in word]
    assert words_shown == [word for word in parts if word not in TOKENS.values()]


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=300), st.lists(st.integers(0, 300), max_size=30))
def test_any_text_over_any_fragments_is_shown_as_it_is_in_one_piece(text: str, cuts: list[int]) -> None:
    whole, split = "".join(show([text])), "".join(show(pieces(text, [min(cut, len(text)) for cut in cuts])))
    assert split == whole


@pytest.mark.parametrize("name", sorted(secrets.survivors()))
def test_what_is_no_secret_comes_out_complete_in_any_fragments(name: str) -> None:
    text = secrets.survivors()[name][:20_000]
    chance = random.Random(name)
    for _ in range(3):
        cuts = sorted(chance.choices(range(len(text)), k=min(len(text) // 3, 400)))
        assert "".join(show(pieces(text, cuts))).removesuffix(" \n ") == text
