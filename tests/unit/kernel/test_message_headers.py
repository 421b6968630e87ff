"""Headers are read as nats-py reads them, only faster."""

from hypothesis import given, strategies as st
from nats.aio.client import Client

from runlane.kernel.connection import _Client

NAMES = st.text("ABCdef-_.0123456789:", min_size=1, max_size=12).filter(lambda name: name.strip(":"))
VALUES = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=20)


@given(st.lists(st.tuples(NAMES, st.sampled_from([": ", ":", ":\t"]), VALUES), max_size=8))
def test_a_header_block_reads_as_nats_py_reads_it(lines: list[tuple[str, str, str]]) -> None:
    block = b"".join(f"{name}{colon}{value}\r\n".encode() for name, colon, value in lines if name[0] != ":") + b"\r\n"
    assert _Client._parse_header_lines(block) == Client._parse_header_lines(block)


def test_what_is_no_header_is_left_out_and_a_broken_value_is_kept() -> None:
    block = (
        b"Good: yes\r\nno colon\r\nB\xc3\xa4d: x\r\nSpace in: name\r\n: nothing\r\nOdd:\xff\r\nGood-Too:a:b \r\n\r\n"
    )
    assert _Client._parse_header_lines(block) == {"Good": "yes", "Odd": "\ufffd", "Good-Too": "a:b"}
    assert _Client._parse_header_lines(b"") == {}
