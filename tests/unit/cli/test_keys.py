"""`runlane keys` on a folder: what it prints, what it leaves, whom that lets in."""

import json
import threading
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from runlane.cli.key_file import KeyFile
from runlane.cli.key_journal import who_asks
from runlane.cli.main import runlane
from runlane.hosting.api_keys import ApiKeyAuthorizer, KeyRecord, key_hash
from runlane.hosting.authorizer import EVERY_RIGHT, Right


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    KeyFile(tmp_path / "api_keys.json").begin_with([("demo", "token-demo"), ("other", "token-other")])
    return tmp_path


def call(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(runlane, ["keys", *words, "--state-dir", str(folder)])


def listed(folder: Path) -> list[dict]:
    return [json.loads(line) for line in call(folder, "list", "--json").stdout.splitlines()]


async def let_in(folder: Path, token: str):
    return await ApiKeyAuthorizer.of_file(folder / "api_keys.json").authenticate(token)


async def test_a_new_folder_lets_in_its_own_tokens_and_the_file_shows_none(folder):
    who = await let_in(folder, "token-demo")
    assert who is not None
    assert (who.tenant_id, who.rights) == ("demo", EVERY_RIGHT)
    assert "token-demo" not in (folder / "api_keys.json").read_text() + call(folder, "list").stdout
    assert (folder / "api_keys.json").stat().st_mode & 0o077 == 0


async def test_a_key_is_added_shown_once_and_revoked_by_its_id(folder):
    added = call(folder, "add", "--tenant", "acme", "--subject", "ci", "--right", "view", "--json")
    made = json.loads(added.stdout)
    who = await let_in(folder, made["token"])
    assert who is not None
    assert (who.tenant_id, who.subject, who.rights) == ("acme", "ci", {Right.VIEW})
    assert made["key_id"] in {one["key_id"] for one in listed(folder)}
    assert call(folder, "revoke", made["key_id"]).exit_code == 0
    assert await let_in(folder, made["token"]) is None
    assert [one["tenant_id"] for one in listed(folder)] == ["demo", "other"]


async def test_a_key_may_be_revoked_by_itself_and_be_printed_plainly(folder):
    token = call(folder, "add").stdout.strip()
    assert await let_in(folder, token) is not None
    assert call(folder, "revoke", token, "--json").exit_code == 0
    assert await let_in(folder, token) is None


async def test_a_key_may_end_by_itself(folder):
    call(folder, "add", "--expires-in", "8h")
    (made,) = [one for one in listed(folder) if "expires_at" in one]
    assert made["expires_at"].endswith("Z")
    assert call(folder, "add", "--expires-in", "soon").exit_code == 2


def test_nobody_is_revoked_by_mistake(folder):
    before = (folder / "api_keys.json").read_bytes()
    for named in ("", "nobody", "token-demo "):
        result = call(folder, "revoke", named)
        assert (result.exit_code, "key_not_found" in result.stderr) == (1, True)
    path = folder / "api_keys.json"
    twins = [KeyRecord(tenant_id="demo", subject="x", sha256="ab" + letter * 62) for letter in "cd"]
    path.write_bytes(msgspec.json.encode(twins))
    assert "ambiguous_key" in call(folder, "revoke", "ab").stderr
    assert before != path.read_bytes() == msgspec.json.encode(twins)


def test_a_tenant_that_cannot_be_is_refused(folder):
    assert call(folder, "add", "--tenant", "Not A Tenant").exit_code == 2
    assert len(listed(folder)) == 2


def test_a_folder_without_keys_says_so(tmp_path):
    result = call(tmp_path, "list")
    assert (result.exit_code, "no_key_file" in result.stderr) == (1, True)


@pytest.mark.parametrize("words", [("add",), ("revoke", "4f2a"), ("list",)])
def test_a_folder_that_is_not_there_is_named_and_not_made(tmp_path, words):
    result = call(tmp_path / "gone", *words)
    assert (result.exit_code, "no_key_file" in result.stderr) == (1, True)
    assert not (tmp_path / "gone").exists()


def test_changes_at_the_same_time_all_count(folder):
    file = KeyFile(folder / "api_keys.json")

    def add() -> None:
        for _ in range(10):
            file.add(lambda hashed: KeyRecord(tenant_id="demo", subject="x", sha256=hashed), tenant_id="demo")

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(file.records()) == 42


def test_a_change_waits_for_the_audit_with_who_made_it_and_without_the_key(folder):
    made = json.loads(call(folder, "add", "--tenant", "acme", "--right", "view", "--json").stdout)
    revoked = call(folder, "revoke", made["key_id"])
    assert "the audit has not got this yet" in revoked.stderr
    journal = KeyFile(folder / "api_keys.json").journal
    records = [change.record for change in journal.changes()]
    assert [(one.action, one.outcome, one.tenant_id, one.target.id) for one in records] == [
        ("keys.add", "added", "acme", made["key_id"]), ("keys.revoke", "revoked", "acme", made["key_id"]),
    ]  # fmt: skip
    assert {one.actor.id for one in records} == {who_asks()}
    assert made["token"] not in journal.path.read_text()
    assert journal.path.stat().st_mode & 0o077 == 0


def test_a_change_that_is_not_written_is_not_told_either(folder, monkeypatch):
    """Taken out: `keep(waiting)` in `KeyFile._changing`."""
    file = KeyFile(folder / "api_keys.json")

    def full(self: KeyFile, records: list[KeyRecord]) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(KeyFile, "_write", full)
    with pytest.raises(OSError, match="No space"):
        file.revoke(key_hash("token-demo")[:12])
    assert file.journal.changes() == []
    assert len(file.records()) == 2


def test_what_was_revoked_stays_so_when_it_is_started_again(folder):
    file = KeyFile(folder / "api_keys.json")
    file.revoke(key_hash("token-demo")[:12])
    file.begin_with([("demo", "token-demo"), ("other", "token-other")])
    assert [record.tenant_id for record in file.records()] == ["other"]
