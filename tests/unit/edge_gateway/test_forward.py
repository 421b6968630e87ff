"""What belongs to the command gateway is handed on, and nothing else."""

import asyncio
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from runlane.edge_gateway.app import EdgeApp, joined
from runlane.edge_gateway.forward import Forwarder
from runlane.hosting.health import Health, HealthDesk

SEEN = ("authorization", "idempotency-key", "prefer", "content-type", "traceparent", "cookie", "x-forwarded-for")


async def health() -> Health:
    return Health(ready=True)


def a_gateway(answer) -> httpx.AsyncClient:
    forwarder = Forwarder(
        httpx.AsyncClient(base_url="http://command", transport=httpx.MockTransport(answer)), max_body_bytes=1000
    )
    app = EdgeApp(_never, [Route("/v1/runs", _listed)], elsewhere=forwarder, desk=HealthDesk({"edge_gateway": health}))
    return httpx.AsyncClient(base_url="http://edge", transport=httpx.ASGITransport(app))


async def _never(scope, receive, send) -> None:
    raise AssertionError("not a watch")


async def _listed(request) -> Response:
    return JSONResponse({"runs": []})


def mirror(request: httpx.Request) -> httpx.Response:
    body = {
        "method": request.method, "target": str(request.url), "body": request.content.decode(),
        "headers": {name: request.headers[name] for name in SEEN if name in request.headers},
    }  # fmt: skip
    return httpx.Response(418, json=body, headers={"Retry-After": "7", "Preference-Applied": "wait", "X-Secret": "no"})


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/runs"), ("POST", "/v1/runs/r1/commands"), ("GET", "/v1/commands/cmd_1"),
        ("GET", "/v1/commands?idempotency_key=a%20b"), ("POST", "/v1/runs/r1/lease"), ("PUT", "/v1/runs/r1/lease"),
        ("DELETE", "/v1/runs/r1/lease"), ("POST", "/v1/runs/r1/events"), ("POST", "/v1/runs/r1/previews"),
        ("POST", "/v1/pools/p1/claim"), ("POST", "/v1/content?run_id=r1"),
        ("POST", "/v1/runs/a%20b/commands"), ("POST", "/v1/runs/r1/re-execute"),
    ],
)  # fmt: skip
async def test_a_verb_is_handed_on_as_it_came_and_its_answer_comes_back(method: str, path: str) -> None:
    headers = {
        "Authorization": "Bearer k", "Idempotency-Key": "i", "Prefer": "wait=3", "Content-Type": "application/json",
        "traceparent": "00-1", "Cookie": "c", "X-Forwarded-For": "me",
    }  # fmt: skip
    async with a_gateway(mirror) as http:
        reply = await http.request(method, path, content=b'{"a": 1}', headers=headers)
    assert reply.status_code == 418
    assert (reply.headers["retry-after"], reply.headers["preference-applied"]) == ("7", "wait")
    assert "x-secret" not in reply.headers
    got = reply.json()
    assert (got["method"], got["target"], got["body"]) == (method, f"http://command{path}", '{"a": 1}')
    assert got["headers"] == {
        "authorization": "Bearer k", "idempotency-key": "i", "prefer": "wait=3", "content-type": "application/json",
        "traceparent": "00-1",
    }  # fmt: skip


async def test_a_key_in_any_script_is_handed_on_byte_for_byte() -> None:
    def seen(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"key": dict(request.headers.raw)[b"idempotency-key"].decode()})

    async with a_gateway(seen) as http:
        reply = await http.post("/v1/runs/r1/commands", headers=[(b"Idempotency-Key", "schlüssel-鍵".encode())])
    assert reply.json() == {"key": "schlüssel-鍵"}


async def test_what_is_nobodys_is_not_handed_on() -> None:
    async with a_gateway(mirror) as http:
        for method, path, status in (
            ("GET", "/v1/nowhere", 404), ("POST", "/v2/runs", 404), ("PATCH", "/v1/runs", 405),
            ("GET", "/v1/runs/r1/commands", 405), ("POST", "/v1/runs/r1/commands/x", 404),
            ("POST", "/v1/runs/a%2Fb/commands", 404), ("POST", "/v1/runs/r1/watch", 405),
        ):  # fmt: skip
            reply = await http.request(method, path)
            assert reply.status_code == status, path
            assert reply.headers["content-type"].startswith("application/problem+json")
        assert (await http.get("/v1/runs")).json() == {"runs": []}
        assert (await http.get("/healthz")).status_code == 200


async def test_a_body_that_is_too_large_is_refused_here() -> None:
    async with a_gateway(mirror) as http:
        reply = await http.post("/v1/runs", content=b"x" * 1001)
    assert (reply.status_code, reply.json()["code"]) == (413, "payload_too_large")


@pytest.mark.parametrize("error", [httpx.ConnectError, httpx.ReadTimeout, httpx.RemoteProtocolError, httpx.PoolTimeout])
async def test_a_command_gateway_that_is_away_has_a_name(error: type[httpx.HTTPError]) -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        raise error("away")

    async with a_gateway(fail) as http:
        reply = await http.post("/v1/runs", json={})
    assert (reply.status_code, reply.json()["code"]) == (502, "upstream_unavailable")
    assert reply.json()["retryable"] is True


async def test_both_gateways_share_one_port_in_one_process() -> None:
    async def started(request) -> Response:
        return JSONResponse({"run_id": "r1"}, 201)

    edge = EdgeApp(_never, [Route("/v1/runs", _listed)], elsewhere=None, desk=HealthDesk({}))
    commands = Starlette(routes=[Route("/v1/runs", started, methods=["POST"])])
    door = joined(edge, commands, HealthDesk({"a": health, "b": health}))
    async with httpx.AsyncClient(base_url="http://x", transport=httpx.ASGITransport(door)) as http:
        assert (await http.get("/v1/runs")).json() == {"runs": []}
        assert (await http.post("/v1/runs")).status_code == 201
        assert set((await http.get("/readyz")).json()["services"]) == {"a", "b"}
        assert (await http.get("/openapi.json")).json()["openapi"].startswith("3.1")
    with pytest.raises(TypeError):
        joined(commands, commands, HealthDesk({}))


async def test_content_is_handed_on_piece_by_piece_whatever_its_size() -> None:
    """The bound of other bodies does not hold for it: the command gateway has one of its own."""

    def count(request: httpx.Request) -> httpx.Response:
        return httpx.Response(201, json={"size": len(request.content), "declared": request.headers["content-length"]})

    async def answer(request: httpx.Request) -> httpx.Response:
        await request.aread()
        return count(request)

    async with a_gateway(answer) as http:
        reply = await http.post("/v1/content", content=b"x" * 100_000)
    assert (reply.status_code, reply.json()) == (201, {"size": 100_000, "declared": "100000"})


async def test_a_claim_is_given_up_with_who_made_it() -> None:
    """Take `_while_there` out of the forwarder to see it fail: the command gateway goes on looking for work."""
    gone, ended = asyncio.Event(), asyncio.Event()
    body = [{"type": "http.request", "body": b"{}", "more_body": False}]

    async def never(_request: httpx.Request) -> httpx.Response:
        gone.set()  # once the claim has arrived, the worker dies
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return httpx.Response(204)

    async def receive() -> Any:
        if body:
            return body.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(_message: Any) -> None:
        return None

    forwarder = Forwarder(
        httpx.AsyncClient(base_url="http://command", transport=httpx.MockTransport(never)), max_body_bytes=1000
    )
    path = "/v1/pools/p/claim"
    scope = {
        "type": "http", "method": "POST", "scheme": "http", "path": path, "raw_path": path.encode(), "root_path": "",
        "query_string": b"", "headers": [], "http_version": "1.1",
    }  # fmt: skip
    async with asyncio.timeout(10):
        await forwarder(scope, receive, send)
        await ended.wait()
