"""Refusals on their way into the audit: noted at once, stored in the end, bounded, and the bound is told."""

import asyncio
import time

import httpx
import pytest
from starlette.routing import Route
from starlette.testclient import TestClient

from runlane.hosting import refusals
from runlane.hosting.api_keys import ApiKeyAuthorizer
from runlane.hosting.authorizer import Principal, Right, require
from runlane.hosting.http import ProblemError, application, json_response
from runlane.hosting.refusals import RefusalLog
from runlane.kernel.errors import Retryable
from runlane.kernel.publisher import PubAck
from runlane_contracts.audit import PLATFORM
from runlane_contracts.codec import decode_refusal
from runlane_contracts.headers import COMMIT_ID
from runlane_contracts.problems import Code
from runlane_contracts.subjects import Subjects
from support.eventually import eventually

ACME = Principal("acme", "eve")


class Intake:
    """A publisher that stores each message id once; `down`: nobody answers."""

    def __init__(self) -> None:
        self.stored: dict[str, tuple[str, bytes]] = {}
        self.down = False
        self.forgets_to_answer = 0

    async def send(self, subject, data, headers=None, *, timeout_s=5.0):
        if self.down:
            raise Retryable("not connected")
        self.stored.setdefault(headers[COMMIT_ID], (subject, data))
        future = asyncio.get_running_loop().create_future()
        if self.forgets_to_answer:
            self.forgets_to_answer -= 1
            future.set_exception(Retryable("no answer"))
        else:
            future.set_result(PubAck("RL_INTAKE", len(self.stored)))
        return future

    def refusals(self):
        return [decode_refusal(data) for _, data in self.stored.values()]


@pytest.fixture
def intake():
    return Intake()


def a_log(intake) -> RefusalLog:
    return RefusalLog(intake, Subjects(), "edge_gateway")


async def test_a_refusal_is_stored_with_who_what_and_why(intake):
    async with a_log(intake) as log:
        log.note(ACME, "GET /v1/runs/*", "run_1", Code.RUN_NOT_FOUND)
        log.note(None, "GET /v1/runs", None, Code.UNAUTHENTICATED)
    assert [subject for subject, _ in intake.stored.values()] == [
        "rl.intake.acme.edge_gateway", f"rl.intake.{PLATFORM}.edge_gateway",
    ]  # fmt: skip
    first, second = intake.refusals()
    assert (first.actor.id, first.target.run_id, first.outcome) == ("eve", "run_1", "run_not_found")
    assert (second.actor.id, second.outcome) == ("unknown", "unauthenticated")


async def test_what_nobody_stores_waits_and_what_was_not_answered_is_sent_again_under_the_same_id(intake, caplog):
    intake.down = True
    async with a_log(intake) as log:
        for n in range(10):
            log.note(ACME, "GET /v1/runs/*", f"run_{n}", Code.RUN_NOT_FOUND)
        await asyncio.sleep(0.05)
        assert not intake.stored
        assert log.trouble == "not connected"
        intake.down, intake.forgets_to_answer = False, 4
    assert log.trouble == ""
    assert len([line for line in caplog.records if "wait to be recorded" in line.message]) == 1
    assert [one.target.id for one in intake.refusals()] == [f"run_{n}" for n in range(10)]


async def test_noting_never_waits_and_what_does_not_fit_is_counted(intake, monkeypatch):
    monkeypatch.setattr(refusals, "BURST", 100.0)
    monkeypatch.setattr(refusals, "PER_S", 0.0)
    intake.down = True
    async with a_log(intake) as log:
        began = time.process_time()
        for _ in range(1000):
            log.note(ACME, "GET /v1/runs/*", "run_1", Code.RUN_NOT_FOUND)
        assert time.process_time() - began < 1
        log.note(Principal("other", "bob"), "GET /v1/runs/*", "run_1", Code.RUN_NOT_FOUND)
        intake.down = False
        await eventually(lambda: any(one.outcome == "dropped" for one in intake.refusals()))
    assert log.dropped == 900
    dropped = [one for one in intake.refusals() if one.outcome == "dropped"]
    assert [(one.tenant_id, one.count) for one in dropped] == [("acme", 900)]
    assert sum(one.count for one in intake.refusals()) == 1001
    assert sum(one.tenant_id == "other" for one in intake.refusals()) == 1


async def test_who_is_refused_is_told_when_it_is_stored(intake):
    """In `Problems`, take out the call of `stored`."""

    async def absent(_request):
        raise ProblemError(Code.RUN_NOT_FOUND)

    intake.down = True
    async with a_log(intake) as log:
        app = application([Route("/v1/runs/{run_id}", absent)], on_refusal=log.of_http)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
            asking = asyncio.ensure_future(client.get("/v1/runs/run_1"))
            await eventually(lambda: log.noted == 1)
            await asyncio.sleep(0.1)
            assert not asking.done()
            intake.down = False
            assert (await asking).status_code == 404
            assert len(intake.stored) == 1


async def test_an_answer_waits_for_its_record_no_longer_than_it_must(intake, monkeypatch):
    monkeypatch.setattr(refusals, "TOLD_WITHIN_S", 0.05)
    intake.down = True
    async with a_log(intake) as log:
        await log.note(ACME, "GET /v1/runs", None, Code.FORBIDDEN).stored()
        assert not intake.stored
        intake.down = False
    assert len(intake.stored) == 1


async def test_what_is_only_counted_is_not_waited_for(intake, monkeypatch):
    monkeypatch.setattr(refusals, "BURST", 0.0)
    monkeypatch.setattr(refusals, "PER_S", 0.0)
    monkeypatch.setattr(refusals, "TOLD_WITHIN_S", 600.0)
    intake.down = True
    async with a_log(intake) as log:
        await log.note(ACME, "GET /v1/runs", None, Code.FORBIDDEN).stored()
        intake.down = False


async def test_what_waits_is_bounded(intake, monkeypatch):
    monkeypatch.setattr(refusals, "MAX_WAITING", 50)
    intake.down = True
    async with a_log(intake) as log:
        for _ in range(80):
            log.note(ACME, "GET /v1/runs", None, Code.FORBIDDEN)
        assert len(log._waiting) == 50
        intake.down = False
        await eventually(lambda: sum(one.count for one in intake.refusals()) == 80)


@pytest.mark.parametrize(
    ("path", "action", "run_id"),
    [
        ("/v1/runs/run_1/events", "GET /v1/runs/*/events", "run_1"),
        ("/v1/runs/not an id", "GET /v1/runs/*", None),
        ("/v1/content/secret/thing", "GET /v1/content/*/*", None),
        ("/v1/runs", "GET /v1/runs", None),
    ],
)
def test_what_is_put_into_a_path_stays_out_but_for_the_run(path, action, run_id):
    assert refusals._named("GET", path) == (action, run_id)


def test_an_application_tells_of_each_refusal_and_of_nothing_else():
    told: list[tuple[str | None, Code]] = []
    authorizer = ApiKeyAuthorizer.of_tokens([
        ("all", ACME), ("views", Principal("acme", "bob", frozenset({Right.VIEW}))),
    ])  # fmt: skip

    async def run(request):
        await require(request, authorizer, Right.OPERATE)
        if request.path_params["run_id"] == "bad":
            raise ProblemError(Code.INVALID_REQUEST)
        if request.path_params["run_id"] == "absent":
            raise ProblemError(Code.RUN_NOT_FOUND)
        return json_response({})

    def on_refusal(scope, code):
        principal = scope.get(refusals.PRINCIPAL)
        told.append((principal and principal.subject, code))

    client = TestClient(application([Route("/v1/runs/{run_id}", run)], on_refusal=on_refusal))
    for token, run_id in [("x", "r"), ("views", "r"), ("all", "r"), ("all", "bad"), ("all", "absent")]:
        client.get(f"/v1/runs/{run_id}", headers={"Authorization": f"Bearer {token}"})
    client.get("/nowhere")
    assert told == [(None, Code.UNAUTHENTICATED), ("bob", Code.FORBIDDEN), ("eve", Code.RUN_NOT_FOUND)]
