"""Text masked while it is being written."""

import pytest

from runlane.masking.scanner import Scanner
from runlane.redaction_filter.preview_text import MAX_BUFFER_BYTES, UNDECIDED_MASK, PreviewText
from support import secrets

SCANNER = Scanner()
TOKENS = secrets.tokens()


def feed(*fragments: str) -> list[str]:
    text = PreviewText(SCANNER)
    return [text.feed(fragment.encode()).decode() for fragment in fragments]


@pytest.mark.parametrize(
    "text",
    ["pear.", "words", "see s", "sk-", "gh", "ghp_", "password", "eyJ", "https://example.com",
     "-----BEGIN", "a = b", "naïve café 漢字", "Basic training", "asking for tokens", "risk-"],
)  # fmt: skip
def test_ordinary_text_and_bare_openings_flow_at_once(text: str) -> None:
    assert feed(text) == [text]
    assert feed(*text) == list(text)


def test_a_word_after_an_opening_is_held_only_until_it_ends() -> None:
    assert feed("The bearer ", "of", " the", " ring") == ["The bearer ", "", "of the", " ring"]
    assert feed("see http://localhost:", "42", "22/x") == ["see http://localhost:", "", "4222/x"]


def test_what_may_become_a_secret_is_held_until_it_is_decided() -> None:
    assert feed("key: gh", "p_", "abc", "def", " no") == ["key: gh", "p_", "", "", "abcdef no"]


def test_a_secret_is_masked_as_soon_as_it_is_one_and_its_rest_is_swallowed() -> None:
    token = TOKENS["github"][1]
    assert feed("a ghp_", token[4:10], token[10:30], token[30:], " b") == [
        "a ghp_", "", "[masked:github-token]", "", " b",
    ]  # fmt: skip


def test_two_secrets_side_by_side_are_two_masks() -> None:
    one, two = TOKENS["github"][1], TOKENS["stripe"][1]
    assert "".join(feed(one[:20], one[20:] + ",", two[:5], two[5:])).count("[masked:") == 2


def test_a_private_key_is_swallowed_line_by_line() -> None:
    key = secrets.private_key()
    shown = "".join(feed("x\n", *(line + "\n" for line in key.splitlines()), "after"))
    assert shown in {"x\n-----BEGIN RSA PRIVATE KEY-----[masked:private-key]\nafter", "x\n[masked:private-key]\nafter"}


def test_a_secret_without_end_ends_the_text() -> None:
    text = PreviewText(SCANNER)
    text.feed(b"password: '")
    for _ in range(2 * MAX_BUFFER_BYTES // 1000):
        assert b"x" not in text.feed(b"x" * 1000)
        assert text.size <= MAX_BUFFER_BYTES + 1000
    assert text.is_sealed
    assert text.feed(b"' and more") == b""


def test_what_stays_undecided_for_too_long_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runlane.redaction_filter.preview_text.MAX_BUFFER_BYTES", 600)
    text = PreviewText(SCANNER)
    assert text.feed(b"eyJ") == b"eyJ"
    shown = b"".join(text.feed(b"a" * 50) for _ in range(20))
    assert UNDECIDED_MASK in shown
    assert text.size <= 650


def test_after_a_gap_nothing_of_the_first_word_is_shown() -> None:
    text = PreviewText(SCANNER)
    text.feed(b"all is well ")
    text.skip()
    assert text.feed(b"rest-of-a-") == b""
    assert text.feed(b"secret and on it") == b"and on it"
    assert text.feed(b" goes") == b" goes"


def test_after_a_gap_the_lines_of_a_key_are_not_shown() -> None:
    key = secrets.private_key()
    for cut in (40, 64 * 3, 64 * 5 + 1):
        text = PreviewText(SCANNER)
        text.skip()
        shown = b"".join(text.feed(bytes([byte])) for byte in key[cut:].encode() + b"\nand it goes on")
        assert not any(line.encode() in shown for line in key.splitlines()[1:-1])
        assert shown.endswith(b"it goes on")


def test_a_gap_within_a_secret_ends_the_text() -> None:
    for fragment in (b"ghp_abc", b"password: 'correct ", TOKENS["jwt"][1].encode()):
        text = PreviewText(SCANNER)
        text.feed(fragment)
        text.skip()
        assert text.is_sealed
        assert text.feed(b" horse' and more") == b""
