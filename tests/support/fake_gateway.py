"""An edge gateway that does what a test tells it: enough of the protocol to bring the console into any state.

It holds told runs (`support.runs.Story`) and serves them as the real one would: list, watch with history, live
facts and previews, commands. On top of that a test may cut connections anywhere, restart it, refuse, or lie.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from runlane.edge_gateway.console_files import ConsoleFiles
from runlane_contracts import events, reducer
from runlane_contracts.codec import decode_json, encode
from runlane_contracts.envelope import Fact
from runlane_contracts.problems import Code, problem_document
from support.runs import Story

TENANT = "demo"
TOKEN = "token-of-demo"


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one watcher is sent next. `then`: go on, end the answer well, or break the connection."""

    body: bytes
    then: str = "go_on"


@dataclass
class Watcher:
    """One open watch."""

    last_event_id: str | None
    chunks: asyncio.Queue[Chunk] = field(default_factory=asyncio.Queue)


class FakeRun:
    """One told run and who watches it."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.watchers: list[Watcher] = []
        self.watches: list[str | None] = []  # the Last-Event-ID of every watch so far
        self.reset_reason: str | None = None  # the next watch with a cursor is told to reset
        self.withheld: set[int] = set()  # sequences the gateway wrongly skips when live

    @property
    def facts(self) -> list[Fact]:
        return self.story.facts

    @property
    def state(self) -> reducer.State:
        return self.state_at(len(self.facts))

    @property
    def is_over(self) -> bool:
        return self.story.run.is_terminal

    def state_at(self, sequence: int) -> reducer.State:
        state = reducer.initial_state(self.story.run.tenant_id, self.story.run.run_id)
        for fact in self.facts[:sequence]:
            reducer.reduce(state, fact)
        return state

    def row(self) -> dict[str, Any]:
        run = self.state["run"]
        names = ("run_id", "status", "agent", "session_id", "worker_id", "created_at", "updated_at", "ended_at")
        return {name: run[name] for name in names if name in run} | {"through_sequence": len(self.facts)}

    # -- telling ------------------------------------------------------------------------------------------

    def then(self, *payloads: events.Payload, **envelope: Any) -> None:
        """More happens, and watchers see it."""
        self._publish(lambda: self.story.then(*payloads, **envelope))

    def raw(self, type_: str, payload: Any) -> None:
        """A fact of any type."""
        self._publish(lambda: self.story.raw(type_, encode(payload)))

    def preview(self, preview_id: str, subject: tuple[str, str], preview_seq: int, data: Any, **more: Any) -> None:
        """One fragment."""
        kind, id_ = subject
        body = {"preview_id": preview_id, "subject": {"kind": kind, "id": id_}, "preview_seq": preview_seq,
                "operation": "append", "data": data, "lease_epoch": self.story.run.lease_epoch} | more  # fmt: skip
        self.send(frame("preview", body))

    def preview_gap(self, preview_id: str, first: int, last: int) -> None:
        """Fragments that did not get here."""
        body = {"preview_id": preview_id, "from": first, "to": last, "dropped": last - first + 1, "reason": "dropped"}
        self.send(frame("preview_gap", body))

    def end(self, reason: str, **more: Any) -> None:
        """Say goodbye to all who watch."""
        self.send(frame("end", {"reason": reason, "cursor": cursor(len(self.facts))} | more), then="end")

    def send(self, body: bytes, then: str = "go_on") -> None:
        """Raw bytes to all who watch; `then`: `go_on`, `end` (clean EOF) or `break`."""
        for watcher in self.watchers:
            watcher.chunks.put_nowait(Chunk(body, then))

    def _publish(self, tell: Callable[[], object]) -> None:
        before = len(self.facts)
        tell()
        for fact in self.facts[before:]:
            if fact.sequence not in self.withheld:
                self.send(fact_frame(fact))
        if self.is_over:
            self.end("run_terminal")

    # -- watching -----------------------------------------------------------------------------------------

    def opening(self, after: int | None, heartbeat_s: float) -> Iterator[bytes]:
        """What a new watcher is sent first: hello, state or suffix, and that it is caught up."""
        outcome, base = ("snapshot", len(self.facts)) if after is None else ("resumed", after)
        reason = None
        if after is not None and self.reset_reason is not None:
            outcome, base, reason, self.reset_reason = "reset_required", len(self.facts), self.reset_reason, None
        if self.is_over and outcome == "resumed":
            outcome = "run_terminal"
        hello = {"outcome": outcome, "run_id": self.story.run.run_id, "status": self.state["run"]["status"],
                 "baseline": {"sequence": base, "cursor": cursor(base)},
                 "high_water": {"sequence": len(self.facts), "cursor": cursor(len(self.facts))},
                 "reducer_version": 1, "heartbeat_s": heartbeat_s, "filter": {}}  # fmt: skip
        yield frame("hello", hello | ({"reason": reason} if reason else {}))
        if outcome in {"snapshot", "reset_required"}:
            state = self.state
            snapshot = {"state": state, "through_sequence": base, "reducer_version": 1,
                        "checksum": reducer.checksum(state)}  # fmt: skip
            yield frame("snapshot", snapshot, id_=cursor(base))
        for fact in self.facts[base:]:
            yield fact_frame(fact)
        yield frame("synced", {"sequence": len(self.facts)})


class FakeGateway:
    """The HTTP side. `url` stays the same over a restart."""

    def __init__(self) -> None:
        self.runs: dict[str, FakeRun] = {}
        self.heartbeat_s = 12.0
        self.is_silent = False  # no heartbeats, nothing: a connection that is dead and does not say so
        self.refusals: deque[tuple[Code, dict[str, str]]] = deque()  # answers to the next watches
        self.commands: list[dict[str, Any]] = []
        self.command_refusals: deque[tuple[Code, dict[str, Any]]] = deque()
        self.command_drops = 0  # so many next commands take effect, and their answers get lost
        self.command_silence = 0  # so many next commands are lost on their way
        self.commands_are_held = False  # they wait for the run
        self.contents: dict[str, tuple[bytes, str]] = {}  # stored content: ref → body, media type
        self.snapshot_reads: list[int] = []
        self.list_reads = 0
        self._answers: dict[str, dict[str, Any]] = {}
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def add(self, story: Story) -> FakeRun:
        """Hold one more run."""
        run = self.runs[story.run.run_id] = FakeRun(story)
        return run

    # -- life ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Serve, on the port of before if there was one."""
        config = uvicorn.Config(self._app(), host="127.0.0.1", port=self._port, log_level="critical", lifespan="off",
                                timeout_graceful_shutdown=1, ws="none")  # fmt: skip
        self._server = _QuietServer(config)
        self._serving = asyncio.create_task(self._server.serve())  # the test's loop ends it in `stop`
        async with asyncio.timeout(10):
            while not self._server.started:
                await asyncio.sleep(0.01)
        self._port = self._server.servers[0].sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Break every watch and stop listening."""
        assert self._server is not None
        assert self._serving is not None
        for run in self.runs.values():
            run.send(b"", then="break")
        self._server.should_exit = True
        await self._serving

    # -- answers ------------------------------------------------------------------------------------------

    def _app(self) -> ASGIApp:
        app = Starlette(routes=[
            Route("/v1/runs", self._list),
            Route("/v1/approvals", self._approvals),
            Route("/v1/runs/{run_id}/snapshot", self._snapshot),
            Route("/v1/runs/{run_id}/events", self._events),
            Route("/v1/runs/{run_id}/commands", self._command, methods=["POST"]),
            Route("/v1/commands", self._ledger),
            Route("/v1/content/{ref:path}", self._content),
            Route("/v1/runs/{run_id}/watch", _Watch(self)),
            *ConsoleFiles().routes(),
        ])  # fmt: skip
        return _unbroken(app)

    async def _list(self, request: Request) -> Response:
        if not authorized(request.scope):
            return problem(Code.UNAUTHENTICATED)
        self.list_reads += 1
        wanted = {n: request.query_params[n] for n in ("status", "agent", "session_id") if n in request.query_params}
        limit = int(request.query_params.get("limit", "50"))
        skip = int(request.query_params.get("page_token", "0"))
        rows = [run.row() for run in reversed(self.runs.values())]
        rows = [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]
        page: dict[str, Any] = {"runs": rows[skip : skip + limit]}
        return JSONResponse(page | ({"page_token": str(skip + limit)} if len(rows) > skip + limit else {}))

    async def _approvals(self, _request: Request) -> Response:
        waiting = [
            approval | {"run_id": run.story.run.run_id}
            for run in self.runs.values()
            for approval in reducer.open_approvals(run.state)
        ]
        return JSONResponse({"approvals": waiting})

    async def _snapshot(self, request: Request) -> Response:
        run = self.runs[request.path_params["run_id"]]
        at = int(request.query_params.get("at_sequence", len(run.facts)))
        self.snapshot_reads.append(at)
        state = run.state_at(at)
        body = {"state": state, "through_sequence": at, "checksum": reducer.checksum(state), "cursor": cursor(at)}
        return Response(encode(body), media_type="application/json")

    async def _events(self, request: Request) -> Response:
        run = self.runs[request.path_params["run_id"]]
        after = sequence_of(request.query_params.get("cursor")) or 0
        limit = int(request.query_params.get("limit", "100"))
        wanted = request.query_params.get("types", "*").split(",")  # the console asks for whole families only
        families = tuple(one.removesuffix("*") for one in wanted)
        rest = [fact for fact in run.facts[after:] if fact.type.startswith(families)]
        page = rest[:limit]
        last = page[-1].sequence if page else after
        body = {"events": page, "cursor": cursor(last), "has_more": len(rest) > limit}
        return Response(encode(body), media_type="application/json")

    async def _command(self, request: Request) -> Response:
        if not authorized(request.scope):
            return problem(Code.UNAUTHENTICATED)
        run = self.runs[request.path_params["run_id"]]
        body = decode_json(await request.body())
        key = request.headers["idempotency-key"]
        if self.command_silence > 0:
            self.command_silence -= 1
            return Response(status_code=503, headers={"Retry-After": "0"})
        if self.command_refusals:
            code, extra = self.command_refusals.popleft()
            return problem(code, **extra)
        if key not in self._answers:
            self.commands.append(body | {"idempotency_key": key, "prefer": request.headers.get("prefer")})
            _effect(run, body["type"], body["payload"])
            self._answers[key] = {"status": "applied", "applied_through": cursor(len(run.facts))}
            if self.commands_are_held:
                self._answers[key] = {"status": "accepted"}
                return JSONResponse(self._answers[key], 202)
        if self.command_drops > 0:
            self.command_drops -= 1
            return Response(status_code=503, headers={"Retry-After": "0"})
        return JSONResponse(self._answers[key])

    def settle(self, **entry: Any) -> None:
        """What the ledger says of the last command from now on."""
        self._answers[self.commands[-1]["idempotency_key"]] = entry

    async def _ledger(self, request: Request) -> Response:
        entry = self._answers.get(request.query_params["idempotency_key"])
        return problem(Code.COMMAND_NOT_FOUND) if entry is None else JSONResponse(entry)

    async def _content(self, request: Request) -> Response:
        if not authorized(request.scope):
            return problem(Code.UNAUTHENTICATED)
        found = self.contents.get(request.path_params["ref"])
        if found is None:
            return problem(Code.NOT_FOUND)
        body, media_type = found
        end = request.headers.get("range", "").removeprefix("bytes=0-")
        if not end:
            return Response(body, media_type=media_type)
        part = body[: int(end) + 1]
        content_range = {"Content-Range": f"bytes 0-{len(part) - 1}/{len(body)}"}
        return Response(part, 206, headers=content_range, media_type=media_type)


class _Watch:
    """The watch, as plain ASGI: the test decides where the answer stops."""

    def __init__(self, gateway: FakeGateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway, request = self._gateway, Request(scope)
        run = gateway.runs.get(request.path_params["run_id"])
        after = request.headers.get("last-event-id") or request.query_params.get("cursor")
        refusal = self._refusal(scope, run, after)
        if refusal is not None or run is None:
            await (refusal or problem(Code.RUN_NOT_FOUND))(scope, receive, send)
            return
        run.watches.append(after)
        if after is not None and run.is_over and sequence_of(after) == len(run.facts):
            await Response(status_code=204)(scope, receive, send)
            return
        watcher = Watcher(after)
        for body in run.opening(sequence_of(after), gateway.heartbeat_s):
            watcher.chunks.put_nowait(Chunk(body))
        if run.is_over:
            ending = frame("end", {"reason": "run_terminal", "cursor": cursor(len(run.facts))})
            watcher.chunks.put_nowait(Chunk(ending, "end"))
        run.watchers.append(watcher)
        try:
            await self._stream(watcher, send, receive)
        finally:
            run.watchers.remove(watcher)

    def _refusal(self, scope: Scope, run: FakeRun | None, after: str | None) -> Response | None:
        if not authorized(scope):
            return problem(Code.UNAUTHENTICATED)
        if self._gateway.refusals:
            code, headers = self._gateway.refusals.popleft()
            return problem(code, headers=headers)
        if run is None:
            return problem(Code.RUN_NOT_FOUND)
        if after is not None and sequence_of(after) is None:
            return problem(Code.CURSOR_INVALID)
        return None

    async def _stream(self, watcher: Watcher, send: Send, receive: Receive) -> None:
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with _until_gone(receive):
            while True:
                chunk = await self._next(watcher)
                if chunk.then == "break":
                    await send({"type": "http.response.body", "body": chunk.body, "more_body": True})
                    raise _Broken
                await send({"type": "http.response.body", "body": chunk.body, "more_body": chunk.then != "end"})
                if chunk.then == "end":
                    return

    async def _next(self, watcher: Watcher) -> Chunk:
        if self._gateway.is_silent:
            return await watcher.chunks.get()
        try:
            async with asyncio.timeout(self._gateway.heartbeat_s):
                return await watcher.chunks.get()
        except TimeoutError:
            return Chunk(b": beat\n\n")


class _Broken(Exception):
    """Leaves the answer unfinished: the client sees the connection break."""


class _QuietServer(uvicorn.Server):
    """Leaves the test runner's signals alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def _until_gone(receive: Receive) -> AsyncIterator[None]:
    current = asyncio.current_task()
    assert current is not None

    async def leave() -> None:
        while (await receive())["type"] != "http.disconnect":
            continue
        current.cancel()

    leaving = asyncio.create_task(leave())
    try:
        yield
    except asyncio.CancelledError:
        if not leaving.done():
            raise
    finally:
        leaving.cancel()


def _unbroken(app: ASGIApp) -> ASGIApp:
    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(_Broken):
            await app(scope, receive, send)

    return wrapped


def authorized(scope: Scope) -> bool:
    """Whether the request carries the one token."""
    return Request(scope).headers.get("authorization") == f"Bearer {TOKEN}"


def problem(code: Code, *, headers: dict[str, str] | None = None, **extra: Any) -> Response:
    """A problem document."""
    document = problem_document(code, **extra)
    body = msgspec.json.encode(document)
    return Response(body, document.status, headers=headers, media_type="application/problem+json")


def cursor(sequence: int) -> str:
    """A cursor; this gateway's are readable."""
    return f"c1.{sequence}.fake"


def sequence_of(text: str | None) -> int | None:
    """The sequence in a cursor, or None when it is not one."""
    if text is None:
        return None
    parts = text.split(".")
    return int(parts[1]) if len(parts) == 3 and parts[0] == "c1" and parts[1].isdigit() else None


def frame(event: str, data: Any, *, id_: str | None = None) -> bytes:
    """One SSE frame."""
    head = f"event: {event}\n" + (f"id: {id_}\n" if id_ else "")
    return head.encode() + b"data: " + encode(data) + b"\n\n"


def fact_frame(fact: Fact) -> bytes:
    """The frame of one fact."""
    return frame("fact", fact, id_=cursor(fact.sequence))


def _effect(run: FakeRun, type_: str, payload: dict[str, Any]) -> None:
    """What the platform would write when it applies a command."""
    match type_:
        case "approval.resolve":
            asked = run.state["items"][f"approval:{payload['approval_id']}"]
            data = {"data": payload["data"]} if "data" in payload else {}
            run.then(
                events.ApprovalResolved(approval_id=payload["approval_id"], decision=payload["decision"],
                                        decided_by="dana", version=asked["version"], reason=payload.get("reason"),
                                        **data),
                events.RunResumed(),
            )  # fmt: skip
        case "input.provide":
            run.then(events.InputProvided(input_id=payload["input_id"], value=payload["value"], by="dana"),
                     events.RunResumed())  # fmt: skip
        case "message.send":
            run.then(events.MessageCompleted(message_id=f"said-{len(run.facts)}", role="user",
                                             content=payload["content"]))  # fmt: skip
        case "tool.reconcile":
            run.then(events.ToolReconciled(by="dana", **payload))
        case "run.pause":
            run.then(events.RunPauseRequested(), events.RunPaused())
        case "run.resume":
            run.then(events.RunResumed())
        case "run.cancel":
            run.then(events.RunCancelRequested(deadline_at="2026-03-01T12:00:00.000000Z", reason=payload.get("reason")))
        case _:
            pass
