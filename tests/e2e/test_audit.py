"""`runlane audit` as a person uses it: on a running product, and on an export of it."""

import json
from pathlib import Path

import pytest

from runlane.object_store.store import Objects
from support.object_store import s3_bucket
from support.product import Product, product


async def _verified(up: Product, *arguments: str) -> dict:
    _, out, _ = await up.cli("audit", "verify", "--json", *arguments)
    return dict(json.loads(out))


async def test_the_audit_is_shown_verified_and_exported_and_a_change_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with product(tmp_path / "state") as up:
        async with up.client() as me, up.client("other") as other:
            run_id = await me.start_run()
            await me.command(run_id, "run.cancel")
            assert (await other.http.get(f"/v1/runs/{run_id}")).status_code == 404
            assert (await other.http.get(f"/v1/runs/{run_id}/watch")).status_code == 404
        copy = str(tmp_path / "copy")
        while (await _verified(up))["records"] < 8:
            pass
        _, shown, _ = await up.cli("audit", "show", "--run", run_id, "--json")
        actions = [json.loads(line)["action"] for line in shown.splitlines()]
        assert {"run.start", "run.created", "run.cancel", "run.cancelled"} <= set(actions)
        _, shown, _ = await up.cli("audit", "show", "--run", run_id, "--tenant", "other")
        assert shown.count("run_not_found") == 2
        assert list((await _verified(up, "--tenant", "other"))["chains"]) == ["other"]

        _, out, _ = await up.cli("audit", "export", copy, "--json")
        assert json.loads(out)["sealed"] is True
        code, _, err = await up.cli("audit", "export", copy, check=False)
        assert (code, "already" in err) == (1, True)

        whole = await _verified(up, "--from", copy)
        assert (whole["ok"], whole["sealed"], whole["trusted"]) == (True, True, True)
        (segment,) = Path(copy, "segments").iterdir()
        segment.write_bytes(segment.read_bytes()[:-1] + b"\0")
        code, out, err = await up.cli("audit", "verify", "--from", copy, "--json", check=False)
        assert code == 1
        assert segment.name in json.loads(out)["where"]
        assert "audit_broken" in err

        with s3_bucket(monkeypatch):
            await _kept_in_a_bucket(up)


async def _kept_in_a_bucket(up: Product) -> None:
    place = "s3://bucket/2026/march"
    _, out, _ = await up.cli("audit", "export", place, "--json")
    assert json.loads(out)["sealed"] is True
    code, _, err = await up.cli("audit", "export", place, check=False)
    assert (code, "already" in err) == (1, True)
    whole = await _verified(up, "--from", place)
    assert (whole["ok"], whole["sealed"], whole["trusted"]) == (True, True, True)

    store = Objects.at(place)
    (segment,) = await store.list("segments")
    held = await store.get(segment)
    assert held is not None
    await store.put(segment, held[:-5] + bytes([held[-5] ^ 1]) + held[-4:])
    code, out, _ = await up.cli("audit", "verify", "--from", place, "--json", check=False)
    assert (code, Path(segment).name in json.loads(out)["where"]) == (1, True)
    await store.delete(segment)
    code, out, _ = await up.cli("audit", "verify", "--from", place, "--json", check=False)
    assert (code, "missing" in json.loads(out)["reason"]) == (1, True)
