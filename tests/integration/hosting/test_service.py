"""The shell around a service, in a process of its own."""

import asyncio
import os
import signal
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import nats
import pytest

from runlane_contracts.codec import decode_json
from support.eventually import eventually
from support.nats import free_port, nats_server

SAMPLE = Path(__file__).with_name("sample_service.py")


@asynccontextmanager
async def process(server, **environment):
    port, health_port = free_port(), free_port()
    child = await asyncio.create_subprocess_exec(
        sys.executable, str(SAMPLE),
        env={
            **os.environ, "RUNLANE_NATS_URL": server.url, "RUNLANE_NATS_PASSWORD": "pw-projector",
            "RUNLANE_INSTANCE": "one", "RUNLANE_HEALTH_PORT": str(health_port), "RUNLANE_LOG_FORMAT": "json",
            "SAMPLE_PORT": str(port), **environment,
        },
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with httpx.AsyncClient(trust_env=False, timeout=5) as http:
        try:
            yield child, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{health_port}", http
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()


@pytest.fixture
async def server():
    async with nats_server(users=True) as one:
        yield one


async def answers(http, url):
    try:
        return (await http.get(url)).status_code == 200
    except httpx.TransportError:
        return False


async def test_it_serves_reports_answers_and_stops_with_zero(server):
    async with process(server) as (child, url, health, http):
        await eventually(lambda: answers(http, f"{health}/readyz"))
        assert (await http.get(url)).text == "hello"
        assert (await http.get(f"{health}/healthz")).json() == {"alive": True}
        metrics = (await http.get(f"{health}/metrics")).text
        assert 'runlane_ready{service="projector"} 1' in metrics
        assert "runlane_up_info{" in metrics
        operator = await nats.connect(server.url_of("operator"), inbox_prefix=b"_INBOX_operator")

        async def ping():
            try:
                return decode_json((await operator.request("rl.svc.projector.ping", b"", timeout=1)).data)
            except nats.errors.NoRespondersError:
                return None

        assert (await eventually(ping))["instance"] == "one"
        await operator.close()
        began = time.monotonic()
        child.send_signal(signal.SIGTERM)
        _, said = await child.communicate()
        assert child.returncode == 0, said.decode()
        assert time.monotonic() - began < 3.0
        events = [decode_json(line)["event"] for line in said.splitlines()]
        assert events[-2:] == ["service.draining", "service.stopped"]


async def test_open_streams_end_before_it_stops(server):
    async with process(server) as (child, url, _health, http):
        await eventually(lambda: answers(http, url))
        async with http.stream("GET", f"{url}/endless") as response:
            lines = response.aiter_lines()
            assert await anext(lines) == "begun"
            child.send_signal(signal.SIGINT)
            assert await anext(lines) == "ended"
        assert await child.wait() == 0


async def test_one_that_does_not_end_is_ended_at_its_deadline(server):
    async with process(server, HANG="1", RUNLANE_DRAIN_DEADLINE_S="0.5") as (child, url, _health, http):
        await eventually(lambda: answers(http, url))
        began = time.monotonic()
        child.send_signal(signal.SIGTERM)
        await child.communicate()
        assert child.returncode == 1
        assert time.monotonic() - began < 5.0


async def test_a_service_that_fails_takes_its_process_with_it(server):
    async with process(server, STUMBLE="1") as (child, _url, _health, _http):
        _, said = await child.communicate()
        assert child.returncode == 1
        assert b"ZeroDivisionError" in said


async def test_a_wrong_password_is_named(server):
    async with process(server, RUNLANE_NATS_PASSWORD="wrong") as (child, *_):
        _, said = await child.communicate()
        assert (child.returncode, b"refuses the user" in said) == (1, True)


async def test_wrong_settings_are_named_and_exit_with_two(server):
    async with process(server, RUNLANE_LOG_STREAMS="0") as (child, *_):
        _, said = await child.communicate()
        assert (child.returncode, b"setting log_streams" in said) == (2, True)


async def test_it_is_not_ready_while_the_broker_is_gone_and_ready_again_after(server):
    async with process(server) as (_child, _url, health, http):
        await eventually(lambda: answers(http, f"{health}/readyz"))
        server.kill9()

        async def unready():
            return (await http.get(f"{health}/readyz")).status_code == 503

        await eventually(unready)
        await server.restart()
        await eventually(lambda: answers(http, f"{health}/readyz"), within_s=20)
