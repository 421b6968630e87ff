"""P9: one tenant cannot read, write, or learn of what another has.

Every verb at every door, about what another tenant has, about what nobody has, and about what was guessed: the same
answer in the same shape, and the audit of who asked says so. The doors are tables; a new route, verb or broker subject
without a case here fails.

To see it fail: in `Door.caller` and `Presence.hub` look for the run under any tenant; answer 403 instead of 404 for
runs that exist; in `REFUSALS_OF_ACCESS` leave a code out.
"""

import asyncio
import json
import re
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import httpx
import nats
import pytest
import pytest_asyncio
from click.testing import CliRunner

from runlane.cli.main import VERBS, runlane
from runlane_contracts.audit import PLATFORM
from runlane_contracts.subjects import Subjects
from support.eventually import eventually
from support.product import Product, Wire, fact, product

pytestmark = [pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="module")]

OWNER, STRANGER = "demo", "other"


@dataclass(frozen=True)
class Theirs:
    """What the owner has, with names that the stranger will try."""

    run_id: str
    command_id: str
    idempotency_key: str
    session_id: str
    agent: str
    pool: str
    cursor: str
    content: str


@dataclass(frozen=True)
class About:
    """A route about one thing, which is refused with `code` when it is not the caller's."""

    thing: str = "run_id"
    code: str = "run_not_found"
    body: Any = None
    query: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Lists:
    """A route that shows what the caller has: the same, whatever filter of another's it is given."""

    filters: tuple[str, ...]
    key: str


@dataclass(frozen=True)
class Makes:
    """A route that makes or takes something under names the caller chooses: those of others are free."""


@dataclass(frozen=True)
class Open:
    """A route that says nothing of any tenant."""


@dataclass(frozen=True)
class Operators:
    """Counts for who operates it, by tenant and agent; it names no run. Outside of `runlane up` the metrics aggregator
    serves them, on its health port, where no tenant comes."""


@dataclass(frozen=True)
class Socket:
    """The upgrade to a WebSocket; what is said over it has tests of its own."""


CASES: dict[tuple[str, str], About | Lists | Makes | Open | Operators | Socket] = {
    ("get", "/v1/runs"): Lists(("agent", "session_id", "status"), "runs"),
    ("post", "/v1/runs"): Makes(),
    ("post", "/v1/runs/{run_id}/re-execute"): About(body={"from": "input"}),
    ("get", "/v1/runs/{run_id}"): About(),
    ("get", "/v1/runs/{run_id}/watch"): About(query={"from": "start"}),
    ("get", "/v1/runs/{run_id}/snapshot"): About(query={"at_sequence": "1"}),
    ("get", "/v1/runs/{run_id}/timeline"): About(),
    ("get", "/v1/runs/{run_id}/events"): About(query={"limit": "10"}),
    ("post", "/v1/runs/{run_id}/events"): About(body={"lease_epoch": 1, "events": [fact("run.completed")]}),
    ("get", "/v1/approvals"): Lists(("status",), "approvals"),
    ("post", "/v1/runs/{run_id}/commands"): About(body={"type": "run.cancel", "payload": {}}),
    ("get", "/v1/commands"): About("idempotency_key", "command_not_found"),
    ("get", "/v1/commands/{command_id}"): About("command_id", "command_not_found"),
    ("post", "/v1/runs/{run_id}/lease"): About(body={"worker_id": "w1", "ttl_s": 5}),
    ("put", "/v1/runs/{run_id}/lease"): About(body={"worker_id": "w1", "lease_epoch": 1}),
    ("delete", "/v1/runs/{run_id}/lease"): About(body={"worker_id": "w1", "lease_epoch": 1}),
    ("post", "/v1/runs/{run_id}/previews"): About(body={"lease_epoch": 1, "previews": []}),
    ("post", "/v1/pools/{pool}/claim"): Makes(),
    ("post", "/v1/content"): About(body={"some": "content"}),
    ("get", "/v1/content/{ref}"): About("content", "not_found"),
    ("get", "/v1/ws"): Socket(),
    ("get", "/healthz"): Open(),
    ("get", "/readyz"): Open(),
    ("get", "/metrics"): Operators(),
    ("get", "/openapi.json"): Open(),
}
MAYBE_ABSENT = {("get", "/v1/ws")}
"""Cases of routes that an installation need not show."""

VERB_CASES: dict[str, tuple[str, ...]] = {
    "re-execute": (), "watch": ("--json",), "replay": ("--at", "1"), "approve": ("a1",), "reject": ("a1",),
    "send": ("hello",), "retry": ("c1",), "reconcile": ("c1", "--executed", "--note", "n"), "pause": (), "resume": (),
    "cancel": (), "compact": (), "erase": ("--reason", "r"),
}  # fmt: skip
"""What each verb that takes a run is given besides it."""
OF_OPERATORS = {"compact", "erase"}
"""Verbs that need the operator's credentials of the broker: whoever has but a token cannot even ask."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def up(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Product]:
    async with product(tmp_path_factory.mktemp("p9") / "state") as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def theirs(up: Product) -> Theirs:
    """A run that waits for an approval, a command about it, one that waits in a pool. New for each test."""
    unique = uuid.uuid4().hex[:12]
    async with up.client(OWNER) as owner:
        run_id = await owner.start_run(run_id=f"run-{unique}", session_id=f"ses-{unique}", agent=f"agent-{unique}")
        epoch = await owner.lease(run_id)
        asked = fact("approval.requested", approval_id="a1", description="Eat?", risk="low", data={}, editable=False,
                     version=1, action_digest="d" * 64)  # fmt: skip
        waiting = fact("run.waiting", on=[{"kind": "approval", "id": "a1"}])
        await owner.append(run_id, epoch, fact("run.started"), asked, waiting)
        view = await owner.view(run_id)
        key = f"key-{unique}"
        sent = await owner.http.post(
            f"/v1/runs/{run_id}/commands", json={"type": "message.send", "payload": {"content": "psst"}},
            headers={"Idempotency-Key": key},
        )  # fmt: skip
        assert sent.status_code == 202, sent.text
        kept = await owner.http.post("/v1/content", params={"run_id": run_id}, content=b"psst")
        assert kept.status_code == 201, kept.text
        await owner.start_run(run_id=f"work-{unique}", pool=f"pool-{unique}", dispatch="pool")
    return Theirs(run_id, sent.json()["command_id"], key, f"ses-{unique}", f"agent-{unique}", f"pool-{unique}",
                  view["cursor"], kept.json()["ref"])  # fmt: skip


def guesses(existing: str) -> Iterator[str]:
    """Names that nobody has: near the one that exists, and of other forms."""
    yield existing[:-1] + ("0" if existing[-1] != "0" else "1")
    yield f"absent-{uuid.uuid4().hex}"
    yield existing.upper()


def shape(reply: httpx.Response, name: str) -> tuple[Any, ...]:
    """All that a caller can tell of an answer, but for the name it asked for itself."""
    headers = {key: value for key, value in reply.headers.items() if key not in {"date", "content-length"}}
    return reply.status_code, headers, reply.text.replace(name, "NAME")


async def test_p9_every_route_has_a_case(up: Product) -> None:
    async with up.client() as me:
        paths = (await me.http.get("/openapi.json")).json()["paths"]
    routes = {(method, path) for path, methods in paths.items() for method in methods}
    assert routes - CASES.keys() == set(), "a new route: say in CASES how a stranger would ask for another's"
    assert CASES.keys() - routes <= MAYBE_ABSENT, "a case of a route that is no more"


async def test_p9_what_another_has_answers_over_http_as_what_nobody_has_and_is_audited(up: Product, theirs: Theirs):
    everything, of_the_run = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    async with up.client(STRANGER) as me, up.client(OWNER) as owner:
        before = await owner.facts(theirs.run_id)
        for (method, path), case in CASES.items():
            if not isinstance(case, About):
                continue
            existing: str = getattr(theirs, case.thing)
            first = await ask(me, method, path, case, existing)
            assert first.status_code == 404, (method, path, first.text)
            assert first.json()["code"] == case.code, (method, path)
            for name in guesses(existing):
                assert shape(await ask(me, method, path, case, name), name) == shape(first, existing), (method, path)
            action = method.upper() + " " + re.sub(r"\{\w+\}", "*", path)
            everything[action, case.code] += 1 + len(list(guesses(existing)))
            if "{run_id}" in path:
                of_the_run[action, case.code] += 1
        assert await owner.facts(theirs.run_id) == before

    async def audited() -> bool:
        found = await refusals(up)
        about = [one for one in found if one["target"].get("run_id") == theirs.run_id]
        return (
            Counter((one["action"], one["outcome"]) for one in about) == of_the_run
            and Counter((one["action"], one["outcome"]) for one in found) >= everything
        )

    await eventually(audited, within_s=30, every_s=0.5)


async def refusals(up: Product) -> list[dict[str, Any]]:
    """What the audit has of the stranger being refused."""
    _, shown, _ = await up.cli("audit", "show", "--tenant", STRANGER, "--json")
    found = [one for line in shown.splitlines() if (one := json.loads(line))["category"] == "access"]
    assert {one["actor"]["id"] for one in found} <= {STRANGER}
    return found


async def ask(me: Wire, method: str, path: str, case: About, name: str) -> httpx.Response:
    query = dict(case.query)
    if "{" not in path:
        query[case.thing] = name
    where = path.replace("{ref}", name).replace("{" + case.thing + "}", name)
    return await me.http.request(method.upper(), where, params=query, json=case.body if case.body is not None else None)


async def test_p9_no_list_shows_or_counts_what_another_has(up: Product, theirs: Theirs):
    values = {"agent": theirs.agent, "session_id": theirs.session_id, "status": "waiting"}
    async with up.client(STRANGER) as me, up.client(OWNER) as owner:

        async def folded() -> bool:
            listed = (await owner.http.get("/v1/runs", params={"session_id": theirs.session_id})).json()["runs"]
            return [run["run_id"] for run in listed] == [theirs.run_id]

        await eventually(folded, within_s=30)
        for (method, path), case in CASES.items():
            if isinstance(case, Lists):
                for name in case.filters:
                    reply = await me.http.request(method.upper(), path, params={name: values[name], "limit": "500"})
                    assert reply.status_code == 200
                    assert theirs.run_id not in reply.text, (path, name)
                    other = {**values, "agent": "nobody", "session_id": "nobody", "status": "waiting"}[name]
                    if name != "status":
                        none = await me.http.request(method.upper(), path, params={name: other, "limit": "500"})
                        assert shape(reply, values[name]) == shape(none, other)


async def test_p9_names_that_another_has_taken_are_free(up: Product, theirs: Theirs):
    """A refusal would say that they exist: a run's id, a session's, a command's key, a pool's."""
    async with up.client(STRANGER) as me, up.client(OWNER) as owner:
        body = {"run_id": theirs.run_id, "session_id": theirs.session_id, "agent": "a", "input": {},
                "dispatch": "external"}  # fmt: skip
        started = await me.http.post("/v1/runs", json=body, headers={"Idempotency-Key": theirs.idempotency_key})
        assert started.status_code == 201, started.text
        assert started.json()["sequence"] == 1
        assert [one["type"] for one in await me.facts(theirs.run_id)] == ["run.created"]
        assert (await owner.facts(theirs.run_id))[0]["payload"]["agent"] == theirs.agent
        mine = await me.command(theirs.run_id, "run.cancel")
        assert mine.status_code == 200, mine.text
        assert (await owner.view(theirs.run_id))["status"] == "waiting"
        for pool in (theirs.pool, f"pool-{uuid.uuid4().hex[:8]}"):
            claimed = await me.http.post(
                f"/v1/pools/{pool}/claim", json={"worker_id": "w", "ttl_s": 5, "wait_s": 0}
            )  # fmt: skip
            assert (claimed.status_code, claimed.content) == (204, b"")


async def test_p9_a_cursor_of_another_opens_nothing(up: Product, theirs: Theirs):
    async with up.client(STRANGER) as me:
        mine = await me.start_run()
        for path in (f"/v1/runs/{mine}/events", f"/v1/runs/{mine}/watch", f"/v1/runs/{mine}/timeline"):
            foreign = await me.http.get(path, params={"cursor": theirs.cursor})
            assert (foreign.status_code, foreign.json()["code"]) == (422, "cursor_foreign"), path
            assert theirs.run_id not in foreign.text


async def test_p9_what_needs_no_credentials_names_nobody(up: Product, theirs: Theirs):
    async with httpx.AsyncClient(base_url=up.url) as nobody:
        for (method, path), case in CASES.items():
            reply = await nobody.request(method.upper(), path.replace("{", "").replace("}", ""))
            if isinstance(case, Open | Operators):
                names = [theirs.run_id, theirs.session_id, theirs.command_id, theirs.idempotency_key]
                for name in [*names, theirs.agent] if isinstance(case, Open) else names:
                    assert name not in reply.text, path
            elif not isinstance(case, Socket):
                assert (reply.status_code, reply.json()["code"]) == (401, "unauthenticated"), (method, path)


# --- the command line -----------------------------------------------------------------------------------------


async def test_p9_every_verb_that_takes_a_run_has_a_case() -> None:
    takes_a_run = set()
    for verb in VERBS:
        module, _, attribute = verb.target.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        if any(isinstance(one, click.Argument) and one.name == "run" for one in command.params):
            takes_a_run.add(verb.name)
    assert takes_a_run == VERB_CASES.keys(), "say in VERB_CASES what else the verb is given"


async def test_p9_what_another_has_answers_on_the_command_line_as_what_nobody_has(up: Product, theirs: Theirs):
    def said(verb: str, name: str) -> tuple[int, str]:
        arguments = [verb, name, *VERB_CASES[verb], "--url", up.url, "--token", up.tokens[STRANGER]]
        result = CliRunner().invoke(runlane, arguments, env={"RUNLANE_URL": "", "RUNLANE_TOKEN": ""})
        assert result.exception is None or isinstance(result.exception, SystemExit), (arguments, result.exception)
        return result.exit_code, result.output.replace(name, "NAME")

    async with up.client(OWNER) as owner:
        before = await owner.facts(theirs.run_id)
        for verb in VERB_CASES:
            first = await asyncio.to_thread(said, verb, theirs.run_id)
            assert (first[0], "run_not_found" in first[1]) == ((3, False) if verb in OF_OPERATORS else (1, True)), first
            for name in guesses(theirs.run_id):
                assert await asyncio.to_thread(said, verb, name) == first, verb
        assert await owner.facts(theirs.run_id) == before


# --- the broker -----------------------------------------------------------------------------------------------


SUBJECTS = (
    "rl.cmd.{v}.demo.{run_id}", "rl.log.{v}.demo.{run_id}", "rl.view.{v}.demo.{run_id}", "rl.live.demo.{run_id}",
    "rl.preview.raw.demo.{run_id}", "rl.preview.view.demo.{run_id}", "rl.work.demo.{pool}", "rl.audit.demo.run",
    "rl.outcome.demo.{command_id}", "$KV.RL_LEASES.demo.{run_id}", "$KV.RL_LEDGER.demo.{command_id}",
    "$JS.API.DIRECT.GET.RL_LOG_0.rl.log.{v}.demo.{run_id}", "$JS.API.DIRECT.GET.RL_VIEW_0.rl.view.{v}.demo.{run_id}",
    "$JS.API.DIRECT.GET.KV_RL_LEASES.$KV.RL_LEASES.demo.{run_id}", "$JS.API.STREAM.MSG.GET.RL_LOG_0",
    "$JS.API.CONSUMER.CREATE.RL_VIEW_0.x.rl.view.{v}.demo.{run_id}", "rl.svc.projector.rebuild",
)  # fmt: skip
"""What the verbs of the other doors come to on the broker."""


async def test_p9_outside_users_of_the_broker_are_refused_alike_what_is_and_what_is_not(up: Product, theirs: Theirs):
    """A tenant has no broker user; those handed out to services that listen may ask for nothing and write nowhere."""
    refused: list[str] = []

    async def note(error: Exception) -> None:
        refused.append(str(error))

    connection = json.loads((up.state_dir / "connection.json").read_text())
    names = [theirs, *(Theirs(*(f"{name[:-1]}{digit}" for name in vars(theirs).values())) for digit in "01")]
    for url, user in ((connection["nats_url"], "observer"), (connection["subscriber_nats_url"], "subscriber")):
        client = await nats.connect(url, error_cb=note, inbox_prefix=f"_INBOX_{user}")
        answers = []
        for one in names:
            refused.clear()
            fields = {**vars(one), "v": Subjects().log(OWNER, one.run_id).split(".")[2]}
            subjects = [subject.format(**fields) for subject in SUBJECTS]
            for subject in subjects:
                await client.publish(subject, b"{}", reply=f"_INBOX_{user}.x")
            await client.flush()
            await eventually(lambda: len(refused) >= len(SUBJECTS))
            said = [text.replace(subject.lower(), "SUBJECT") for text, subject in zip(refused, subjects, strict=True)]
            answers.append(said)
        assert answers[0] == answers[1] == answers[2]
        assert set(answers[0]) == {'nats: permissions violation for publish to "SUBJECT"'}
        await client.close()

    async def audited() -> bool:
        _, shown, _ = await up.cli("audit", "show", "--tenant", PLATFORM, "--json")
        found = [json.loads(line) for line in shown.splitlines()]
        about = {(one["actor"]["id"], one["outcome"]) for one in found if theirs.run_id in one["target"]["id"]}
        return about == {("observer", "forbidden"), ("subscriber", "forbidden")}

    await eventually(audited, within_s=30, every_s=0.5)


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
