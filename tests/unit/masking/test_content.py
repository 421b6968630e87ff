"""What people may see of large content."""

import gzip
import io
import zipfile

import pytest

from runlane.masking.content import MAX_SEARCHED_BYTES, seen
from runlane.masking.scanner import Scanner
from support import secrets

SCANNER = Scanner()
TOKEN = secrets.tokens()["github"][1]


def zipped(data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.txt", data)
    return file.getvalue()


@pytest.mark.parametrize("media_type", ["text/plain", "application/octet-stream", "image/png", "text/html"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_a_secret_in_a_text_is_masked_whatever_it_is_said_to_be(media_type: str, encoding: str) -> None:
    found = seen(f"before {TOKEN} after ü".encode(encoding), media_type, SCANNER)
    assert found.shown == "masked"
    assert found.view is not None
    text = found.view.decode(encoding)
    assert TOKEN not in text
    assert text.startswith("before [masked:")
    assert text.endswith("after ü")


@pytest.mark.parametrize("media_type", ["application/json", "application/vnd.runlane.result+json; charset=utf-8"])
def test_a_secret_that_json_spells_another_way_is_masked(media_type: str) -> None:
    hidden = "".join(f"\\u{ord(one):04x}" for one in TOKEN)
    found = seen(f'{{"a":["{hidden}"],"password":"tiger"}}'.encode(), media_type, SCANNER)
    assert found.shown == "masked"
    assert found.view is not None
    assert b"tiger" not in found.view
    assert hidden.encode() not in found.view
    assert TOKEN.encode() not in found.view


@pytest.mark.parametrize(
    "data",
    [
        gzip.compress(TOKEN.encode()),
        zipped(TOKEN.encode()),
        b"\xff\xfe\x00\xd8" + b"x" * 9,
        b"\xff\xd8\xff " + TOKEN.encode(),
    ],
    ids=["gzip", "zip", "broken utf-16", "picture"],
)
def test_what_cannot_be_searched_or_holds_a_secret_is_kept_from_people(data: bytes) -> None:
    shown = seen(data, "application/octet-stream", SCANNER).shown
    assert shown == ("as_it_is" if data.startswith(b"\xff\xfe") else "vaulted")


def test_what_is_too_large_to_be_searched_is_kept_from_people() -> None:
    assert seen(b"a" * (MAX_SEARCHED_BYTES + 1), "text/plain", SCANNER).shown == "vaulted"


@pytest.mark.parametrize(
    "data", [b"", b"plain", b'{"a":1}', bytes(range(128, 256)) * 9], ids=["none", "text", "json", "bytes"]
)
def test_what_holds_none_is_shown_as_it_is(data: bytes) -> None:
    assert seen(data, "application/json", SCANNER).shown == "as_it_is"
