"""Lists come from the read store; rights from the token."""

import asyncio
import hashlib
from pathlib import Path

from pydantic import SecretStr

from runlane.hosting.settings import AccessSettings
from runlane.read_store import PROJECTION, ReadStore
from runlane.read_store.rows import RunChange, StreamPosition
from runlane_contracts.cursor import Position
from runlane_contracts.reducer import initial_state, reduce
from runlane_contracts.subjects import RunAddress
from support.edge_server import edge_server
from support.runs import Story, a_short_run, a_waiting_run

THROUGH = StreamPosition("e", 100)


async def fold(
    store: ReadStore, *stories: Story, projection: str = "test", stream: str = "VIEW",
    through: StreamPosition = THROUGH,
) -> None:  # fmt: skip
    """What the projector does."""
    changes = []
    for story in stories:
        state = initial_state(story.run.tenant_id, story.run.run_id)
        for fact in story.facts:
            reduce(state, fact)
        run = RunAddress(story.run.tenant_id, story.run.run_id)
        position = Position("e", len(story.facts), len(story.facts))
        changes.append(RunChange(run=run, state=state, position=position, items=frozenset(state["items"])))
    before = await store.progress(projection, stream)
    await store.write(changes, before=before, position=through)


async def test_runs_and_open_approvals_of_the_tenant_are_listed_in_pages(tmp_path: Path) -> None:
    async with edge_server(tmp_path) as edge:
        mine = [a_short_run(f"run_{index}") for index in range(3)] + [a_waiting_run("run_w")]
        await fold(edge.store, *mine, a_waiting_run("run_o", tenant_id="other"))
        listed, token = [], ""
        while True:
            page = (await edge.get("/v1/runs", limit=2, page_token=token)).json()
            listed += [run["run_id"] for run in page["runs"]]
            token = page.get("page_token", "")
            if not token:
                break
        assert sorted(listed) == ["run_0", "run_1", "run_2", "run_w"]
        waiting = (await edge.get("/v1/runs", status="waiting")).json()["runs"]
        assert [(run["run_id"], run["status"], run["agent"]) for run in waiting] == [("run_w", "waiting", "payer")]
        assert waiting[0]["created_at"].endswith("Z")
        assert (await edge.get("/v1/runs", agent="nobody")).json() == {"runs": []}
        approvals = (await edge.get("/v1/approvals", status="waiting")).json()["approvals"]
        assert [(one["run_id"], one["approval_id"], one["risk"]) for one in approvals] == [("run_w", "a1", "high")]
        theirs = (await edge.get("/v1/approvals", key="key-other")).json()["approvals"]
        assert [one["run_id"] for one in theirs] == ["run_o"]
        for path, params in (
            ("/v1/runs", {"status": "odd"}), ("/v1/approvals", {"status": "odd"}), ("/v1/runs", {"page_token": "odd"}),
            ("/v1/approvals", {"page_token": "b2Rk"}), ("/v1/runs", {"limit": 0}),
        ):  # fmt: skip
            refused = await edge.get(path, **params)
            assert (refused.status_code, refused.json()["code"]) == (400, "invalid_request"), path


async def test_a_list_waits_for_the_projector_and_says_when_it_stands_still(tmp_path: Path) -> None:
    story = a_waiting_run("run_w")
    async with edge_server(tmp_path, lists_wait_s=2) as edge:
        await edge.commit(story.facts)
        assert (await edge.get("/v1/approvals")).json() == {"approvals": [], "behind": True}
        asking = asyncio.create_task(edge.get("/v1/approvals"))
        await asyncio.sleep(0.2)
        assert not asking.done()
        stream, epoch = edge.layout.view_stream_at(0), await edge.view_epoch()
        await fold(edge.store, story, projection=PROJECTION, stream=stream, through=StreamPosition(epoch, 1))
        answer = (await asking).json()
        assert [one["approval_id"] for one in answer["approvals"]] == ["a1"]
        assert "behind" not in answer


async def test_who_may_not_view_is_forbidden(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    digest = hashlib.sha256(b"key-producer").hexdigest()
    keys.write_text(f'[{{"tenant_id": "acme", "subject": "p", "sha256": "{digest}", "rights": ["produce"]}}]')
    access = AccessSettings(
        api_keys=SecretStr("acme:key-acme"),
        api_keys_file=keys,
        cursor_keys=SecretStr("k1:" + b"0123456789abcdef".hex()),
    )
    async with edge_server(tmp_path, access=access) as edge:
        for path in ("/v1/runs", "/v1/runs/run_1", "/v1/runs/run_1/watch", "/v1/approvals", "/v1/content/x"):
            for key, status, code in (("unknown", 401, "unauthenticated"), ("key-producer", 403, "forbidden")):
                reply = await edge.get(path, key=key)
                assert (reply.status_code, reply.json()["code"]) == (status, code)
                assert ("www-authenticate" in reply.headers) == (status == 401)
