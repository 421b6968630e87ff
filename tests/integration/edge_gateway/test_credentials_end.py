"""Credentials that end, end the watches that were opened with them; and the audit hears of it."""

import asyncio
from datetime import timedelta
from pathlib import Path

import jwt
import msgspec
import pytest
from pydantic import SecretStr

from runlane.hosting.api_keys import KeyRecord, key_hash
from runlane.hosting.authorizer import Right
from runlane.hosting.settings import AccessSettings
from runlane.kernel.clock import utc_now
from support.edge_server import edge_server
from support.runs import a_waiting_run
from support.tokens import AUDIENCE, ISSUER

SECRET = "s" * 32


def access(keys: Path) -> AccessSettings:
    return AccessSettings(
        api_keys_file=keys, cursor_keys=SecretStr("k1:" + b"0123456789abcdef".hex()),
        jwt_secret=SecretStr(SECRET), jwt_issuer=ISSUER, jwt_audience=AUDIENCE, jwt_leeway_s=0,
    )  # fmt: skip


@pytest.mark.parametrize("loss", ["revoked", "expired", "right lost", "token expired"])
async def test_an_open_watch_ends_within_seconds_when_its_credentials_do(tmp_path: Path, loss: str) -> None:
    """Take `_authorize_again` out of edge_gateway/watch.py to see it fail."""
    keys, story = tmp_path / "keys.json", a_waiting_run()
    tenant_id, run_id = story.run.tenant_id, story.run.run_id
    soon = utc_now() + timedelta(seconds=4)
    ann = KeyRecord(tenant_id=tenant_id, subject="ann", sha256=key_hash("key-ann"), rights=(Right.VIEW,))
    if loss == "expired":
        ann = msgspec.structs.replace(ann, expires_at=soon)
    keys.write_bytes(msgspec.json.encode([ann]))
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "tenant_id": tenant_id, "scope": "runlane:view"}
    key = jwt.encode(claims | {"exp": soon}, SECRET, "HS256") if loss == "token expired" else "key-ann"
    async with edge_server(tmp_path, access=access(keys)) as edge:
        await edge.commit(story.facts)
        async with asyncio.timeout(25), edge.watch(run_id, key=key, from_="start") as watch:
            await watch.until("synced")
            if loss == "revoked":
                keys.write_bytes(b"[]")
            elif loss == "right lost":
                keys.write_bytes(msgspec.json.encode([msgspec.structs.replace(ann, rights=(Right.PRODUCE,))]))
            end = (await watch.over())[-1]
        assert (end.event, end.data["reason"]) == ("end", "unauthorized")
        code = "forbidden" if loss == "right lost" else "unauthenticated"
        again = await edge.get(f"/v1/runs/{run_id}/watch", key=key, cursor=end.data["cursor"])
        assert again.json()["code"] == code
