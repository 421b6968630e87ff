"""P8: a secret crosses no boundary it should not.

Secrets are planted in everything that a run, its previews and the commands about it can say, plain and encoded and cut
in pieces. Then every place is searched, in every encoding, that anybody but the platform's own workers can read: views,
live messages, signals, read store, lists, snapshots, timelines, command line, traces, metrics, log lines, dead letters,
audit and its export; and all that the broker has on its disk but the restricted streams. Then the run is erased, and
they are not even there.

To see it fail: in `Deriver._masked` return `examined` as it is; in `ENCODED` take out a line; in `EdgeApp` or any
service log a payload.
"""

import asyncio
import contextlib
import gzip
import json
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import nats
import pytest
import zstandard
from websockets.asyncio.client import connect

from runlane.cli.state_dir import Secrets
from runlane_contracts.subjects import Subjects
from support.canaries import Canary, canaries, found
from support.eventually import eventually
from support.product import Product, Wire, fact, product
from support.websocket import WsClient

pytestmark = pytest.mark.timeout(240)

PLANTED = canaries()
TEXT = " ; ".join(canary.planted for canary in PLANTED)
MARKED = Canary("restricted or marked secret", "zebra-crossing-umbrella", "zebra-crossing-umbrella")
ALL = [*PLANTED, MARKED]
DATA: dict[str, Any] = {
    "deep": [{"note": TEXT}, {TEXT[:60]: 1}],
    "password": MARKED.planted,
    "x-api-key": MARKED.planted,
}
RESTRICTED = ("/RL_LOG_", "/RL_COMMAND/", "/RL_WORK/", "/objects/")
"""Who executes needs what is to be executed: only workers and services of the platform read these streams, and content
as it came is for who may produce it."""


class Collector:
    """An OTLP/HTTP receiver that keeps every byte it is sent."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        bodies = self.bodies

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                bodies.append(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @contextlib.contextmanager
    def serving(self) -> Iterator["Collector"]:
        thread = threading.Thread(target=self._server.serve_forever)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()


async def test_p8_no_secret_is_anywhere_but_in_the_restricted_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Collector().serving() as collector:
        monkeypatch.setenv("RUNLANE_TELEMETRY_ENDPOINT", collector.url)
        monkeypatch.setenv("RUNLANE_TELEMETRY_INTERVAL_S", "1")
        monkeypatch.setenv("RUNLANE_METRICS_AGGREGATOR_CONTENT_TENANTS", "demo")
        monkeypatch.setenv("RUNLANE_LOG_LEVEL", "DEBUG")
        async with product(tmp_path / "state") as up, up.client() as me, heard(up) as live:
            said: list[tuple[str, bytes]] = []
            run_id = await plant(me, up, said)
            said += await asked(me, run_id)
            said += await shown(up, run_id)
            said += await exported(up, tmp_path / "audit")
            said += [("a NATS subscription", message) for message in live]
            await eventually(lambda: any(b"gen_ai.tool.call.arguments" in one for one in collector.bodies), within_s=30)
            kept = contents_of(up.state_dir)
            await up.cli("erase", run_id, "--reason", "asked for")
        said += [("traces and metrics", body) for body in collector.bodies]
        said += [("log lines", up.said().encode())]
    folder = up.state_dir
    said += [(f"file {path.relative_to(folder)}", data) for path, data in kept.items() if is_wide(path)]
    restricted = [(path.name, data) for path, data in kept.items() if not is_wide(path)]
    assert found(said, ALL) == []
    dead = b"".join(data for place, data in said if "RL_DEAD" in place)
    assert b"hunt-poison" in dead, "nothing died"
    assert {hit.partition(" in ")[0] for hit in found(restricted, ALL)} == {one.name for one in ALL}, "nothing planted"
    rest = [(str(path.relative_to(folder)), data) for path, data in contents_of(folder).items()]
    assert found(rest, PLANTED) == [], "what was erased is still there"
    leaked = credentials(folder)
    allowed = ("file keys.json", "file connection.json", "file nats/server.conf")
    assert [hit for hit in found(said, leaked) if not hit.endswith(allowed)] == []


# --- planting -------------------------------------------------------------------------------------------------


async def plant(me: Wire, up: Product, said: list[tuple[str, bytes]]) -> str:
    """A run that says all of it, in every field that takes a text, and people who say it too."""
    run_id = await me.start_run(run_id="hunt", agent=f"agent {PLANTED[0].planted}", input={"task": TEXT, **DATA})
    epoch = await me.lease(run_id)
    url = up.url.replace("http://", "ws://") + "/v1/ws"
    headers = {"Authorization": f"Bearer {up.tokens['demo']}"}
    async with (
        me.watch(run_id, previews="true", **{"from": "start"}) as frames,
        connect(url, additional_headers=headers) as socket,
    ):
        watching = asyncio.ensure_future(collect(frames))
        client = WsClient(socket)
        await client.initialize()
        await client.watch(run_id, previews=True, credit=1000)
        for canary in PLANTED:
            await preview(me, run_id, epoch, canary)
        for batch in (work(), questions()):
            await me.append(run_id, epoch, *batch)
        said += [("kept content", body) for body in await content(me, run_id)]
        said += [("an answer to a command", reply.content) for reply in await commands(me, run_id)]
        said += [("an answer to nonsense", reply) for reply in await nonsense(me, run_id, epoch)]
        await poison(up, run_id)
        await me.append(run_id, epoch, fact("run.failed", error={"code": "boom", "message": TEXT}))
        said += [("a watch", json.dumps(frame).encode()) for frame in await asyncio.wait_for(watching, 30)]
        said += [("a WebSocket", note.text.encode()) for note in await client.until("run/end", within_s=30)]
        assert client.of("run/preview")
    return run_id


def work() -> list[dict[str, Any]]:
    restricted = {"type": "message.completed", "classification": "restricted",
                  "payload": {"message_id": "m9", "role": "user", "content": MARKED.planted}}  # fmt: skip
    return [
        fact("run.started"),
        fact("plan.updated", version=1, steps=[{"title": TEXT}]),
        fact("message.completed", message_id="m1", role="assistant", content=TEXT),
        fact("message.completed", message_id="m2", role="user", content={"parts": [DATA]}),
        fact("message.started", message_id="m3", role="assistant"),
        fact("message.failed", message_id="m3", error={"code": "x", "message": TEXT}),
        fact("message.started", message_id="m4", role="assistant"),
        fact("message.cancelled", message_id="m4", reason=TEXT),
        restricted,
        fact("reasoning.completed", reasoning_id="r1", content=TEXT, summary=TEXT),
        fact("tool.requested", tool_call_id="c1", name=f"say {PLANTED[0].planted}", arguments=DATA,
             action_digest="d" * 64, side_effect="none"),
        fact("tool.running", tool_call_id="c1"),
        fact("tool.completed", tool_call_id="c1", result=DATA),
        fact("tool.requested", tool_call_id="c2", name="say", arguments={"text": TEXT}, action_digest="e" * 64),
        fact("tool.failed", tool_call_id="c2", error={"code": "x", "message": TEXT, "retryable": True}),
        fact("task.created", task_id="t1", title=TEXT, description=TEXT),
        fact("task.updated", task_id="t1", detail=DATA),
        fact("task.completed", task_id="t1", result=DATA),
        fact("artifact.completed", artifact_id="a1", name=TEXT, content=DATA),
    ]  # fmt: skip


def questions() -> list[dict[str, Any]]:
    return [
        fact("approval.requested", approval_id="ap1", description=TEXT, risk="low", data=DATA, editable=True, version=1,
             action_digest="f" * 64),
        fact("input.requested", input_id="i1", prompt=TEXT, schema={"type": "string", "writeOnly": True}),
        fact("run.waiting", on=[{"kind": "approval", "id": "ap1"}, {"kind": "input", "id": "i1"}]),
    ]  # fmt: skip


async def content(me: Wire, run_id: str) -> list[bytes]:
    """What is kept beside the log, as it is shown."""
    shown = []
    for media_type, body in (("text/plain", TEXT), ("application/json", json.dumps(DATA))):
        headers = {"Content-Type": media_type}
        kept = await me.http.post("/v1/content", params={"run_id": run_id}, content=body, headers=headers)
        assert kept.status_code == 201, kept.text
        shown += [kept.content, (reply := await me.http.get(kept.json()["uri"])).content]
        assert reply.status_code == 200, reply.text
    return shown


async def commands(me: Wire, run_id: str) -> list[Any]:
    edited = {"approval_id": "ap1", "decision": "modified", "data": DATA, "reason": TEXT}
    return [
        await me.command(run_id, "message.send", {"content": TEXT}),
        await me.command(run_id, "tool.retry", {"tool_call_id": "c2"}),
        await me.command(run_id, "input.provide", {"input_id": "i1", "value": MARKED.planted}),
        await me.command(run_id, "approval.resolve", edited),
        await me.command(run_id, "approval.resolve", edited | {"decision": "rejected"}),
        await me.command(run_id, "approval.resolve", {"approval_id": TEXT[:60], "decision": "approved"}),
        await me.command(run_id, "run.cancel", {"reason": TEXT}),
    ]


async def nonsense(me: Wire, run_id: str, epoch: int) -> list[bytes]:
    """What cannot be taken: the answer must not repeat it, nor a log line."""
    at = f"/v1/runs/{run_id}"
    bodies = [("/events", {"lease_epoch": epoch, "events": [fact("message.completed", content=TEXT)]}),
              ("/events", {"lease_epoch": epoch, "events": [fact("run.started", **{TEXT: TEXT}), {"type": TEXT}]}),
              ("/commands", {"type": TEXT, "payload": DATA}), ("/commands", {"type": "run.cancel", "payload": TEXT}),
              ("/lease", {"worker_id": TEXT, "ttl_s": TEXT}),
              ("/previews", {"lease_epoch": epoch, "previews": [{"data": TEXT}]})]  # fmt: skip
    replies = [await me.http.post(at + path, json=body) for path, body in bodies]
    replies += [await me.http.post(at + "/events", content=TEXT), await me.http.get(at, params={"min_sequence": TEXT})]
    replies += [await me.http.get(at + "/events", params={"cursor": TEXT, "types": "x"})]
    replies += [await me.http.get("/v1/runs", headers={"Authorization": f"Bearer {PLANTED[0].planted}"})]
    assert all(400 <= reply.status_code < 500 for reply in replies), [reply.status_code for reply in replies]
    return [reply.content for reply in replies]


async def preview(me: Wire, run_id: str, epoch: int, canary: Canary) -> None:
    """Cut into pieces of three characters, and of seven, and once replaced whole."""
    name = "pvw_" + canary.name.replace(" ", "_")
    for length, kind in ((3, "message"), (7, "reasoning")):
        pieces = [canary.planted[at : at + length] for at in range(0, len(canary.planted), length)]
        previews = [
            {"preview_id": f"{name}_{length}", "preview_seq": seq, "operation": "append", "data": piece,
             "subject": {"kind": kind, "id": "m1"}}
            for seq, piece in enumerate([*pieces, " end "], 1)
        ]  # fmt: skip
        for first in range(0, len(previews), 5):
            body = {"lease_epoch": epoch, "previews": previews[first : first + 5]}
            assert (await me.http.post(f"/v1/runs/{run_id}/previews", json=body)).status_code == 202
    whole = {"preview_id": f"{name}_w", "preview_seq": 1, "operation": "latest_value", "data": {"out": canary.planted},
             "subject": {"kind": "tool", "id": "c1"}}  # fmt: skip
    body = {"lease_epoch": epoch, "previews": [whole]}
    assert (await me.http.post(f"/v1/runs/{run_id}/previews", json=body)).status_code == 202


async def poison(up: Product, run_id: str) -> None:
    """What no producer may write, from a user that may: it ends among the dead letters."""
    connection = json.loads((up.state_dir / "connection.json").read_text())
    worker = await nats.connect(connection["worker_nats_url"], inbox_prefix="_INBOX_worker")
    broken = json.dumps({"facts": [{"type": MARKED.planted, "payload": {"password": MARKED.planted}}]}).encode()
    await worker.jetstream().publish(Subjects().log("demo", f"{run_id}-poison"), broken)
    await worker.close()


# --- looking --------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def heard(up: Product) -> AsyncIterator[list[bytes]]:
    """All that a service may listen to."""
    messages: list[bytes] = []

    async def keep(message: Any) -> None:
        messages.append(f"{message.subject} {message.headers}".encode() + message.data)

    observer = await nats.connect(up.nats_url, inbox_prefix="_INBOX_observer")
    await observer.subscribe("rl.live.>", cb=keep)
    await observer.subscribe("rl.signal.>", cb=keep)
    await observer.flush()
    yield messages
    await observer.close()


async def collect(frames: AsyncIterator[Any]) -> list[Any]:
    return [(frame.event, frame.data) async for frame in frames]


async def asked(me: Wire, run_id: str) -> list[tuple[str, bytes]]:
    """Every read."""
    at = f"/v1/runs/{run_id}"
    paths = ["/v1/runs?limit=500", "/v1/approvals", "/v1/approvals?status=modified", at, f"{at}/events?limit=1000",
             f"{at}/snapshot", f"{at}/timeline", "/metrics", "/healthz", "/readyz"]  # fmt: skip
    through = (await me.view(run_id))["through_sequence"]
    paths += [f"{at}/snapshot?at_sequence={sequence}" for sequence in range(1, through + 1, 4)]
    replies = [await me.http.get(path) for path in paths]
    assert {reply.status_code for reply in replies} == {200}
    return [(path, reply.content) for path, reply in zip(paths, replies, strict=True)]


async def shown(up: Product, run_id: str) -> list[tuple[str, bytes]]:
    """What the command line prints."""
    said = []
    verbs = (
        ("runs", "--json"), ("runs",), ("replay", run_id, "--at", "20"), ("replay", run_id, "--rows"),
        ("watch", run_id, "--json"), ("watch", run_id), ("doctor",),
    )  # fmt: skip
    for words in verbs:
        _, out, err = await up.cli(*words, check=False)
        said.append((" ".join(words), (out + err).encode()))
    return said


async def exported(up: Product, place: Path) -> list[tuple[str, bytes]]:
    """The audit, as it is shown and as it is kept elsewhere."""

    async def is_sealed() -> bool:
        _, out, _ = await up.cli("audit", "show", "--run", "hunt", "--json")
        return '"run.failed"' in out and '"run.cancel"' in out

    await eventually(is_sealed, within_s=30, every_s=0.5)
    _, out, _ = await up.cli("audit", "show", "--json")
    await up.cli("audit", "export", str(place))
    plain = zstandard.ZstdDecompressor()
    segments = [plain.decompress(path.read_bytes(), max_output_size=1 << 26) for path in (place / "segments").iterdir()]
    assert segments
    return [("audit show", out.encode()), *(("audit export", one) for one in segments)]


def contents_of(folder: Path) -> dict[Path, bytes]:
    """Every file; one that goes while somebody works there is not missed."""
    read: dict[Path, bytes] = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file():
                read[path] = path.read_bytes()
    return read


def is_wide(path: Path) -> bool:
    """Whether more than the platform's workers may come to see it."""
    return not any(name in str(path) for name in RESTRICTED)


def credentials(folder: Path) -> list[Canary]:
    """The product's own secrets: what lets anybody in, or signs."""
    held = msgspec.json.decode((folder / "keys.json").read_bytes(), type=Secrets)
    own = {**held.api_keys, **held.broker_passwords, **held.cursor_keys, "audit": held.audit_signing_key}
    return [Canary(name, secret, secret) for name, secret in own.items()]
