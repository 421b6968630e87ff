from typing import Annotated

import httpx
import msgspec
import pytest
from starlette.responses import Response
from starlette.routing import Route

from runlane.hosting.api_keys import ApiKeyAuthorizer, KeyRecord, key_hash
from runlane.hosting.authorizer import Principal, Right, require
from runlane.hosting.http import (
    ProblemError,
    application,
    bearer_token,
    decode_body,
    json_response,
    prefer_wait,
    query_int,
)
from runlane.kernel.errors import Conflict, Fenced, Overloaded, Permanent
from runlane_contracts.cursor import CursorForeign, CursorInvalid
from runlane_contracts.lifecycle import Refused
from runlane_contracts.problems import Code


class Event(msgspec.Struct):
    type: Annotated[str, msgspec.Meta(max_length=5)]


class Body(msgspec.Struct):
    events: list[Event]


RAISES = {
    "problem": ProblemError(Code.ALREADY_RESOLVED, "decided", recorded={"decision": "approved"}),
    "refused": Refused(Code.SEQUENCE_CONFLICT, "moved", current_sequence=7),
    "full": Overloaded("full", retry_after_s=2.2),
    "conflict": Conflict("lost"),
    "fenced": Fenced("gone"),
    "invalid": CursorInvalid("changed"),
    "foreign": CursorForeign("another run"),
    "permanent": Permanent("the disk's name is secret"),
    "fault": ZeroDivisionError("secret"),
}


async def echo(request):
    return json_response(await decode_body(request, Body, max_bytes=100))


async def fail(request):
    raise RAISES[request.path_params["how"]]


async def page(request):
    return json_response(
        {
            "limit": query_int(request, "limit", default=50, minimum=1, maximum=100),
            "wait": prefer_wait(request, default_s=5),
            "bearer": bearer_token(request),
        }
    )


class Half:
    async def __call__(self, scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ZeroDivisionError


AUTHORIZER = ApiKeyAuthorizer.of_tokens([
    ("all", Principal("acme", "ops")),
    ("look", Principal("acme", "guest", frozenset({Right.VIEW}))),
])  # fmt: skip


async def guarded(request):
    principal = await require(request, AUTHORIZER, Right.OPERATE)
    return json_response({"tenant": principal.tenant_id})


@pytest.fixture
async def client():
    routes = [
        Route("/echo", echo, methods=["POST"]),
        Route("/fail/{how}", fail),
        Route("/page", page),
        Route("/half", Half()),
        Route("/guarded", guarded),
        Route("/empty", lambda _: Response(status_code=204)),
    ]
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(application(routes)), base_url="http://test", trust_env=False
    ) as one:
        yield one


def problem(response):
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    assert document["status"] == response.status_code
    return document


async def test_a_body_that_fits_is_decoded(client):
    response = await client.post("/echo", json={"events": [{"type": "a"}]})
    assert (response.status_code, response.json()) == (200, {"events": [{"type": "a"}]})


async def test_a_body_that_does_not_fit_is_told_where(client):
    response = await client.post("/echo", json={"events": [{"type": "a"}, {"type": "too long"}]})
    document = problem(response)
    assert (document["code"], document["index"]) == ("invalid_request", 1)
    assert "$.events[1].type" in document["detail"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"null", b"[" * 90])
async def test_what_is_no_body_is_refused(client, body):
    assert problem(await client.post("/echo", content=body))["code"] == "invalid_request"


async def test_a_large_body_is_refused_before_it_is_read(client):
    assert problem(await client.post("/echo", content=b"x" * 101))["code"] == "payload_too_large"


async def test_a_large_body_without_a_length_is_refused(client):
    async def chunks():
        for _ in range(11):
            yield b"x" * 10

    assert problem(await client.post("/echo", content=chunks()))["code"] == "payload_too_large"


@pytest.mark.parametrize(
    ("how", "status", "code"),
    [
        ("problem", 409, "already_resolved"),
        ("refused", 409, "sequence_conflict"),
        ("full", 503, "overloaded"),
        ("conflict", 409, "sequence_conflict"),
        ("fenced", 409, "lease_fenced"),
        ("invalid", 422, "cursor_invalid"),
        ("foreign", 422, "cursor_foreign"),
        ("permanent", 500, "internal"),
        ("fault", 500, "internal"),
    ],
)
async def test_what_is_raised_leaves_as_a_problem(client, how, status, code):
    response = await client.get(f"/fail/{how}")
    assert (response.status_code, problem(response)["code"]) == (status, code)
    assert "secret" not in response.text


async def test_a_problem_carries_what_the_client_needs_to_go_on(client):
    assert problem(await client.get("/fail/problem"))["recorded"] == {"decision": "approved"}
    assert problem(await client.get("/fail/refused"))["current_sequence"] == 7
    assert (await client.get("/fail/full")).headers["retry-after"] == "3"


async def test_what_is_not_there_and_what_is_not_allowed_are_problems_too(client):
    assert problem(await client.get("/nowhere"))["code"] == "not_found"
    refused = await client.get("/echo")
    assert (problem(refused)["code"], refused.headers["allow"]) == ("method_not_allowed", "POST")


async def test_a_response_that_has_begun_is_broken_off(client):
    with pytest.raises(ZeroDivisionError):
        await client.get("/half")


async def test_a_number_in_the_query_has_bounds(client):
    assert (await client.get("/page", params={"limit": 100})).json()["limit"] == 100
    assert (await client.get("/page")).json()["limit"] == 50
    for bad in ("0", "101", "x", "1e3", "٣", "9" * 30):
        assert problem(await client.get("/page", params={"limit": bad}))["code"] == "invalid_request"


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("wait=3", 3),
        ("respond-async, wait=7", 7),
        ('Wait = "2"; x=y', 2),
        ("wait=99999", 60),
        ("wait=-1", 5),
        ("nothing", 5),
    ],
)
async def test_a_preference_to_wait_is_understood_or_ignored(client, header, seconds):
    assert (await client.get("/page", headers={"Prefer": header})).json()["wait"] == seconds


@pytest.mark.parametrize(
    ("header", "token"), [("Bearer abc", "abc"), ("bearer abc", "abc"), ("Basic abc", None), ("Bearer ", None)]
)
async def test_a_bearer_token_is_found(client, header, token):
    assert (await client.get("/page", headers={"Authorization": header})).json()["bearer"] == token


async def test_who_is_unknown_and_who_may_not_are_told_apart(client):
    assert (await client.get("/guarded", headers={"Authorization": "Bearer all"})).json() == {"tenant": "acme"}
    assert problem(await client.get("/guarded", headers={"Authorization": "Bearer look"}))["code"] == "forbidden"
    for headers in ({}, {"Authorization": "Bearer other"}):
        refused = await client.get("/guarded", headers=headers)
        assert (problem(refused)["code"], refused.headers["www-authenticate"]) == ("unauthenticated", "Bearer")


async def test_keys_come_from_a_text_or_from_a_file_of_hashes(tmp_path):
    of_text = ApiKeyAuthorizer.of_text("demo:k1, other/ci:k2")
    assert await of_text.authenticate("k2") == Principal("other", "ci")
    assert "k1" not in repr(of_text)
    record = KeyRecord(tenant_id="demo", subject="ci", sha256=key_hash("k3"), rights=(Right.VIEW,))
    path = tmp_path / "keys.json"
    path.write_bytes(msgspec.json.encode([record]))
    of_file = ApiKeyAuthorizer.of_file(path)
    assert await of_file.authenticate("k3") == Principal("demo", "ci", frozenset({Right.VIEW}))
    assert await of_file.authenticate(key_hash("k3")) is None


@pytest.mark.parametrize("text", ["demo", "demo:", "De mo:key", ":key"])
def test_a_key_without_a_tenant_is_refused(text):
    with pytest.raises(ValueError, match="tenant:key"):
        ApiKeyAuthorizer.of_text(text)
