"""What others may import is said on purpose."""

from support.public_names import PINNED, public_names


def test_the_public_names_of_the_contract_are_the_pinned_ones() -> None:
    pinned, there = set(PINNED.read_text().split()), set(public_names())
    hint = "python -m support.public_names, and say it in contracts/CHANGELOG.md"
    assert not pinned - there, f"gone: {sorted(pinned - there)}; {hint}"
    assert not there - pinned, f"new: {sorted(there - pinned)}; {hint}"
