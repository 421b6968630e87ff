"""Runlane's HTTP over a `MemoryLane`: what clients of the protocol meet, without a broker."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from runlane.client.errors import RequestRefused, Unreachable
from runlane.client.transports.ports import Frame, NewRun, WatchRequest
from runlane.hosting.http import application
from runlane.hosting.http_server import http_server
from runlane.run_supervisor.re_execution import Parent, re_executed
from runlane_contracts import reducer
from runlane_contracts.codec import decode_json, encode
from runlane_contracts.commands import ReExecuteRun
from runlane_contracts.envelope import Fact
from runlane_contracts.lifecycle import FactDraft, Refused, RunLifecycle
from runlane_contracts.previews import Preview, PreviewGap
from runlane_contracts.reducer import open_approvals
from runlane_contracts.resume import End, Hello, SnapshotFrame, Synced
from runlane_contracts.timeline import timeline_of
from support.memory_lane import MemoryLane, MemoryRun

TOKEN = "rlk_demo_token"
_EVENTS = {
    Hello: "hello", SnapshotFrame: "snapshot", Fact: "fact", Preview: "preview", PreviewGap: "preview_gap",
    Synced: "synced", End: "end",
}  # fmt: skip


class FakeEdge:
    """`async with FakeEdge(lane).serve() as url`. `drop_after` cuts a watch after so many bytes, once each."""

    def __init__(self, lane: MemoryLane) -> None:
        self.lane = lane
        self.requests: list[tuple[str, str]] = []
        self.seen_headers: list[dict[str, str]] = []

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        app = application([
            Route("/v1/runs", self._answer(self.start_run), methods=["POST"]),
            Route("/v1/runs", self._answer(self.list_runs), methods=["GET"]),
            Route("/v1/runs/{run_id}/re-execute", self._answer(self.re_execute), methods=["POST"]),
            Route("/v1/approvals", self._answer(self.approvals), methods=["GET"]),
            Route("/v1/runs/{run_id}/lease", self._answer(self.lease), methods=["POST", "PUT", "DELETE"]),
            Route("/v1/runs/{run_id}/events", self._answer(self.append), methods=["POST"]),
            Route("/v1/runs/{run_id}/events", self._answer(self.history), methods=["GET"]),
            Route("/v1/runs/{run_id}/previews", self._answer(self.previews), methods=["POST"]),
            Route("/v1/runs/{run_id}/commands", self._answer(self.command), methods=["POST"]),
            Route("/v1/runs/{run_id}/timeline", self._answer(self.timeline), methods=["GET"]),
            Route("/v1/runs/{run_id}/snapshot", self._answer(self.snapshot), methods=["GET"]),
            Route("/v1/runs/{run_id}/watch", self._answer(self.watch), methods=["GET"]),
            Route("/v1/pools/{pool}/claim", self._answer(self.claim), methods=["POST"]),
            Route("/v1/commands", self._answer(self.find_command), methods=["GET"]),
            Route("/readyz", self._answer(self.ready), methods=["GET"]),
        ])  # fmt: skip
        async with http_server(app, drain_deadline_s=1) as address:
            yield address.url

    def _answer(self, handler: Any) -> Any:
        async def answer(request: Request) -> Response:
            self.requests.append((request.method, request.url.path))
            self.seen_headers.append(dict(request.headers))
            if request.headers.get("authorization") != f"Bearer {TOKEN}":
                return _problem(401, {"code": "unauthenticated"})
            try:
                return await handler(request)
            except RequestRefused as refused:
                body = msgspec.to_builtins(refused.problem)
                return _problem(refused.problem.status, {k: v for k, v in body.items() if v is not None})
            except Unreachable:
                return _problem(503, {"code": "overloaded", "retryable": True})

        return answer

    async def ready(self, _request: Request) -> Response:
        return _json({"ready": True})

    async def start_run(self, request: Request) -> Response:
        body = decode_json(await request.body())
        body.setdefault("run_id", request.headers["idempotency-key"])
        new = msgspec.convert(body | {"idempotency_key": request.headers["idempotency-key"]}, NewRun)
        return _json(await self.lane.start_run(new), 201)

    async def re_execute(self, request: Request) -> Response:
        """By the supervisor's own rules."""
        body = decode_json(await request.body())
        old = self.lane.run(request.path_params["run_id"])
        parent = Parent(run=RunLifecycle(tenant_id=self.lane.tenant_id, run_id=request.path_params["run_id"]))
        parent.take(old.facts)
        new = MemoryRun(RunLifecycle(tenant_id=self.lane.tenant_id, run_id=body.pop("run_id")))
        asked = msgspec.convert(body | {"parent_run_id": parent.run.run_id}, ReExecuteRun)
        try:
            begun = re_executed(new.life, asked, parent)
        except Refused as exc:
            return _problem(409, {"code": exc.code, "detail": exc.detail})
        await self.lane.write(new, begun)
        self.lane.runs[new.life.run_id] = new
        return _json({"run_id": new.life.run_id, "command_id": "cmd_1", "status": "created"}, 201)

    async def list_runs(self, request: Request) -> Response:
        rows = [
            {"run_id": run_id, "status": run.life.status, "agent": run.life.created.agent if run.life.created else None,
             "created_at": "2026-03-01T00:00:00.000000Z", "updated_at": "2026-03-01T00:00:00.000000Z",
             "through_sequence": run.life.sequence}
            for run_id, run in reversed(self.lane.runs.items())
            if request.query_params.get("status") in (None, run.life.status)
        ]  # fmt: skip
        return _json({"runs": rows[: int(request.query_params.get("limit", 50))]})

    async def approvals(self, _request: Request) -> Response:
        waiting = [
            {"run_id": run_id, "approval": item}
            for run_id in self.lane.runs
            for item in open_approvals(self._state(run_id))
        ]
        return _json({"approvals": waiting})

    async def lease(self, request: Request) -> Response:
        body, run_id = decode_json(await request.body()), request.path_params["run_id"]
        match request.method:
            case "POST":
                return _json(await self.lane.take_lease(run_id, **body), 201)
            case "PUT":
                return _json(await self.lane.confirm_lease(run_id, **body))
            case _:
                await self.lane.release_lease(run_id, **body)
                return _json({})

    async def append(self, request: Request) -> Response:
        body = decode_json(await request.body())
        drafts = msgspec.convert(
            [one | {"payload": msgspec.Raw(encode(one.get("payload", {})))} for one in body["events"]], list[FactDraft]
        )
        written = await self.lane.append(
            request.path_params["run_id"], drafts, lease_epoch=body["lease_epoch"],
            expected_sequence=body.get("expected_sequence"),
        )  # fmt: skip
        return _json({"events": written})

    async def previews(self, request: Request) -> Response:
        body = decode_json(await request.body())
        previews = msgspec.convert(body["previews"], list[Preview])
        await self.lane.publish_previews(request.path_params["run_id"], previews, lease_epoch=body["lease_epoch"])
        return _json({}, 202)

    async def claim(self, request: Request) -> Response:
        claim = await self.lane.claim(request.path_params["pool"], **decode_json(await request.body()))
        return Response(status_code=204) if claim is None else _json(claim)

    async def command(self, request: Request) -> Response:
        body = decode_json(await request.body())
        receipt = await self.lane.submit(
            request.path_params["run_id"], body["type"], body["payload"],
            idempotency_key=request.headers["idempotency-key"], wait_s=0,
        )  # fmt: skip
        return _json(receipt)

    async def find_command(self, request: Request) -> Response:
        found = await self.lane.find_command(request.query_params["idempotency_key"])
        return _problem(404, {"code": "command_not_found"}) if found is None else _json(found)

    async def history(self, request: Request) -> Response:
        facts = self.lane.run(request.path_params["run_id"]).facts
        after = int((request.query_params.get("cursor") or "c0")[1:])
        page = facts[after : after + int(request.query_params.get("limit", 100))]
        through = page[-1].sequence if page else after
        return _json({"events": page, "cursor": f"c{through}", "has_more": through < len(facts)})

    async def timeline(self, request: Request) -> Response:
        facts = self.lane.run(request.path_params["run_id"]).facts
        rows = timeline_of(facts[: int(request.query_params.get("at_sequence", len(facts)))])
        after = int((request.query_params.get("cursor") or "c0")[1:])
        rows = [row for row in rows if row.first_sequence > after]
        page = rows[: min(3, int(request.query_params.get("limit", 100)))]
        reached = page[-1].first_sequence if page else after
        return _json({"rows": page, "cursor": f"c{reached}", "has_more": len(rows) > len(page)})

    async def snapshot(self, request: Request) -> Response:
        run_id = request.path_params["run_id"]
        through = int(request.query_params.get("at_sequence", self.lane.run(run_id).life.sequence))
        return _json(self.lane.snapshot(run_id, through))

    async def watch(self, request: Request) -> Response:
        query = request.query_params
        asked = WatchRequest(
            run_id=request.path_params["run_id"],
            cursor=request.headers.get("last-event-id") or query.get("cursor"),
            from_=query.get("from"),
            previews=query.get("previews") != "false",
            types=tuple(query["types"].split(",")) if "types" in query else (),
        )
        watching = self.lane.watch(asked)
        frames = await watching.__aenter__()
        if frames is None:
            await watching.__aexit__(None, None, None)
            return Response(status_code=204)
        return StreamingResponse(_sse(watching, frames), media_type="text/event-stream")

    def _state(self, run_id: str) -> reducer.State:
        return self.lane.snapshot(run_id, self.lane.runs[run_id].life.sequence).state


async def _sse(watching: Any, frames: AsyncIterator[Frame]) -> AsyncIterator[bytes]:
    yield b": hello\n\n"
    async for frame in frames:
        id_line = b"" if frame.cursor is None else f"id: {frame.cursor}\n".encode()
        yield (
            b"event: " + _EVENTS[type(frame.item)].encode() + b"\n" + id_line + b"data: " + encode(frame.item) + b"\n\n"
        )
    await watching.__aexit__(None, None, None)


def _json(value: Any, status: int = 200) -> Response:
    return Response(encode(value), status, media_type="application/json")


def _problem(status: int, body: dict[str, Any]) -> Response:
    return JSONResponse(body | {"status": status}, status, media_type="application/problem+json")
