"""P12, second half: a change to the audit shows.

Any byte of the stream's content, or of an export, changed; any record or file dropped, doubled or moved: the check
fails and names the first record, or the file, that is bad.
"""

import json
import re
from pathlib import Path
from random import Random

import pytest
import zstandard
from hypothesis import given, settings, strategies as st

from runlane.audit_sink.chain import ChainFault
from runlane.audit_sink.exporter import Exporter, Seal, check_export, export_statement
from runlane.audit_sink.signing import Signer
from runlane.audit_sink.verify import Kept
from runlane.object_store.store import Objects
from support.audit import EPOCH, KEY, MemoryAudit, a_message, a_sealer, an_entry, check

TRUSTED = {KEY.key_id: KEY.public_key}


async def an_audit() -> list[Kept]:
    audit = MemoryAudit()
    sealer = a_sealer(audit, checkpoint_records=4)
    for n in range(1, 8):
        tenants = ("acme", "other") if n % 2 else ("acme",)
        await sealer.seal(EPOCH, [a_message(n, *(an_entry(tenant, number=n) for tenant in tenants))])
    await sealer.checkpoint(0)
    return audit.messages


@pytest.fixture(scope="module")
def audit() -> list[Kept]:
    import asyncio  # noqa: PLC0415

    return asyncio.run(an_audit())


def flipped(data: bytes, at: int, bit: int) -> bytes:
    return data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]


def test_p12_an_audit_that_nobody_changed_is_whole(audit):
    """Control: without it the tests below would pass on a check that always fails."""
    chains = check(audit)
    assert chains.heads.keys() == {"acme", "other"}
    assert chains.records == len(audit)


def test_p12_each_byte_of_each_record_counts(audit):
    """In `Chains._what_is_wrong`, take out `record.hash != hash_of(record)`: flips in the fields pass."""
    for place, message in enumerate(audit):
        for at in range(len(message.data)):
            changed = message._replace(data=flipped(message.data, at, (place + at) % 7))
            with pytest.raises(ChainFault) as caught:
                check([*audit[:place], changed, *audit[place + 1 :]])
            assert caught.value.fault.where == f"stream sequence {message.seq}"


def test_p12_the_same_record_in_another_spelling_is_a_change(audit):
    """In `Chains.take`, take out `spelt != data`."""
    for change in (lambda data: data + b" ", lambda data: data.replace(b'"run"', b'"r\\u0075n"', 1)):
        with pytest.raises(ChainFault, match="spelt"):
            check([audit[0]._replace(data=change(audit[0].data)), *audit[1:]])


def test_p12_each_byte_of_the_progress_header_and_the_subject_counts(audit):
    """In `Chains.take`, take out the comparison with `progress_digest`."""
    for place, message in enumerate(audit):
        for field in ("progress", "subject"):
            text = getattr(message, field)
            for at in range(len(text)):
                if field == "subject" and at < len("rl.audit."):
                    continue  # the stream would not have it
                changed = message._replace(**{field: flipped(text.encode(), at, 0).decode()})
                with pytest.raises(ChainFault) as caught:
                    check([*audit[:place], changed, *audit[place + 1 :]])
                assert caught.value.fault.where == f"stream sequence {message.seq}"


def test_p12_each_dropped_record_is_named(audit):
    """In `Chains._what_is_wrong`, take out `prev_hash` and the sequences; for the last one of a chain, take out the
    check of `last_seq` in `StreamCheck.finish`."""
    for place, message in enumerate(audit):
        with pytest.raises(ChainFault) as caught:
            check([*audit[:place], *audit[place + 1 :]], len(audit))
        fault = caught.value.fault
        tenant_id = message.subject.split(".")[2]
        sequence = json.loads(message.data)["sequence"]
        is_last = all(one.subject.split(".")[2] != tenant_id for one in audit[place + 1 :])
        if is_last:
            assert fault.where == f"stream sequence {message.seq}"
        else:
            assert (fault.tenant_id, fault.sequence) == (tenant_id, sequence)
        assert "missing" in fault.reason


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_p12_records_that_change_places_or_come_twice_are_noticed(audit, data):
    """In `Chains._what_is_wrong`, take out `record.sequence <= head.sequence` and `prev_hash`."""
    one, other = sorted(data.draw(st.lists(st.integers(0, len(audit) - 1), min_size=2, max_size=2, unique=True)))
    moved = list(audit)
    if data.draw(st.booleans()):
        moved[one], moved[other] = moved[other], moved[one]
    else:
        moved[other] = moved[one]
    with pytest.raises(ChainFault):
        check(moved)


def test_p12_who_makes_all_hashes_anew_lacks_the_signature(audit):
    """In `Chains._what_is_wrong_with_checkpoint`, take out the call of `verify`."""
    import asyncio  # noqa: PLC0415

    forged = MemoryAudit()
    sealer = a_sealer(forged, checkpoint_records=4)
    sealer._key = Impostor()
    for n in range(1, 8):
        asyncio.run(sealer.seal(EPOCH, [a_message(n, an_entry(action="run.cancelled", number=n))]))
    with pytest.raises(ChainFault, match="signature is wrong"):
        check(forged.messages)


class Impostor:
    """Names the trusted key and has another."""

    key_id = KEY.key_id
    sign = Signer(bytes(32)).sign


# --- exports ------------------------------------------------------------------------------------------------


async def export_to(directory: Path, audit: list[Kept], *, sealed: bool = True) -> None:
    async def messages():
        for message in audit:
            yield message

    async def sign(sha256: str) -> Seal | None:
        return Seal(key_id=KEY.key_id, signature=KEY.sign(export_statement(sha256)).hex()) if sealed else None

    exporter = Exporter(Objects.at(str(directory)), TRUSTED, segment_records=5)
    await exporter.export(messages(), sign)


def files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


@pytest.mark.parametrize("sealed", [True, False])
async def test_p12_an_export_is_whole_until_a_byte_of_it_is_changed(tmp_path, audit, sealed):
    """In `check_export`, take out the comparison of the bodies."""
    await export_to(tmp_path, audit, sealed=sealed)
    checked = await check_export(Objects.at(str(tmp_path)), TRUSTED)
    assert (checked.records, checked.sealed, checked.trusted) == (len(audit), sealed, True)
    random = Random(1)
    for path in files(tmp_path):
        whole = path.read_bytes()
        places = range(len(whole)) if path.name == "manifest.json" else random.sample(range(len(whole)), 60)
        for at in places:
            path.write_bytes(flipped(whole, at, random.randrange(8)))
            with pytest.raises(ChainFault):
                await check_export(Objects.at(str(tmp_path)), TRUSTED)
        path.write_bytes(whole)
    await check_export(Objects.at(str(tmp_path)), {})


async def test_p12_an_export_without_one_of_its_files_names_it(tmp_path, audit):
    """In `_check_segment`, go on where a file is missing."""
    await export_to(tmp_path, audit)
    segments = [path for path in files(tmp_path) if path.name != "manifest.json"]
    assert len(segments) == -(-len(audit) // 5)
    for path in segments:
        whole = path.read_bytes()
        path.unlink()
        with pytest.raises(ChainFault, match=path.name):
            await check_export(Objects.at(str(tmp_path)), TRUSTED)
        path.write_bytes(whole)


def segments_in(directory: Path) -> list[Path]:
    return [path for path in files(directory) if path.name != "manifest.json"]


async def fault_of(directory: Path, trusted=None):
    with pytest.raises(ChainFault) as caught:
        await check_export(Objects.at(str(directory)), TRUSTED if trusted is None else trusted)
    return caught.value.fault


def rewritten(path: Path, change) -> None:
    lines = zstandard.ZstdDecompressor().decompress(path.read_bytes(), max_output_size=1 << 24).splitlines(True)
    path.write_bytes(zstandard.ZstdCompressor().compress(b"".join(change(lines))))


async def test_p12_a_file_cut_anywhere_names_the_first_record_that_is_gone(tmp_path, audit):
    """In `messages_of`, go on where a file cannot be decompressed."""
    await export_to(tmp_path, audit)
    for number, path in enumerate(segments_in(tmp_path)):
        whole = path.read_bytes()
        for length in (0, 1, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:length])
            fault = await fault_of(tmp_path)
            assert path.name in fault.where
            if length < len(whole) - 8:
                assert f"stream sequence {5 * number + 1}" in fault.where
        path.write_bytes(whole)


async def test_p12_each_record_changed_dropped_or_moved_in_an_export_is_named(tmp_path, audit):
    """Whoever does it compresses the file again. In `_check_segment`, do not `take` what is read."""
    await export_to(tmp_path, audit)
    (first, *_) = segments_in(tmp_path)
    whole = first.read_bytes()
    for place, message in enumerate(audit[:5]):
        tenant_id, sequence = message.subject.split(".")[2], json.loads(message.data)["sequence"]
        changes = {
            "changed": lambda lines, at=place: [*lines[:at], lines[at].replace(b"bob", b"eve"), *lines[at + 1 :]],
            "dropped": lambda lines, at=place: [*lines[:at], *lines[at + 1 :]],
            "doubled": lambda lines, at=place: [*lines[: at + 1], *lines[at:]],
            "cut": lambda lines, at=place: [*lines[:at], lines[at][:30]],
        }
        for name, change in changes.items():
            rewritten(first, change)
            fault = await fault_of(tmp_path)
            named = f"tenant {fault.tenant_id}, record {fault.sequence} ({fault.where})"
            if name == "changed" and b"bob" not in message.data:
                assert first.name in fault.where  # a checkpoint, that has no bob: only the file is another
            else:
                by_chain = (fault.tenant_id, fault.sequence) == (tenant_id, sequence)
                by_place = re.search(
                    rf"stream sequence ({message.seq}|{message.seq + (name == 'doubled')})$", fault.where
                )
                assert by_chain or by_place, (name, named)
            first.write_bytes(whole)


async def test_p12_files_that_change_places_are_noticed(tmp_path, audit):
    await export_to(tmp_path, audit)
    first, second, *_ = segments_in(tmp_path)
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)
    fault = await fault_of(tmp_path)
    assert (fault.sequence, "missing" in fault.reason) == (1, True)


async def test_p12_an_export_shortened_with_its_manifest_lacks_the_seal(tmp_path, audit):
    """In `_check_seal`, take out the call of `verify`: what was cut off behind a signature is not missed."""
    await export_to(tmp_path / "whole", audit)
    await export_to(tmp_path / "short", audit[:9])
    whole, short = (json.loads((tmp_path / name / "manifest.json").read_bytes()) for name in ("whole", "short"))
    short["seal"] = whole["seal"]
    from runlane_contracts.canonical import canonical_json  # noqa: PLC0415

    (tmp_path / "short" / "manifest.json").write_bytes(canonical_json(short))
    with pytest.raises(ChainFault, match="seal is wrong"):
        await check_export(Objects.at(str(tmp_path / "short")), TRUSTED)


async def test_p12_an_export_with_keys_of_its_own_is_not_trusted(tmp_path, audit):
    await export_to(tmp_path, audit)
    with pytest.raises(ChainFault, match="which is not known"):
        await check_export(Objects.at(str(tmp_path)), {"0" * 16: Signer(bytes(32)).public_key})
    assert not (await check_export(Objects.at(str(tmp_path)), {})).trusted
