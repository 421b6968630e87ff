"""`runlane dead-letters`: what a service set aside, as an operator of a real broker sees it."""

import asyncio
import json
import os

import msgspec
from click.testing import CliRunner

from runlane.cli.main import runlane
from runlane.kernel.clock import utc_now
from runlane.kernel.connection import Connection, connect
from runlane.kernel.dead_letter import DeadLetterRecord
from runlane.kernel.provision import provision
from runlane_contracts.access import inbox_prefix
from runlane_contracts.subjects import Subjects
from support.nats import SMALL, NatsServer, nats_server


async def as_user(server: NatsServer, user: str) -> Connection:
    return await connect(url=server.url, user=user, password=f"pw-{user}", name=user, inbox_prefix=inbox_prefix(user))


async def test_an_operator_sees_what_was_set_aside_and_why_and_no_content() -> None:
    async with nats_server(users=True) as server:
        operator, supervisor = await as_user(server, "operator"), await as_user(server, "run_supervisor")
        await provision(operator, SMALL, now=utc_now)

        async def called(*words: str) -> list[str]:
            run = CliRunner().invoke
            words = ("dead-letters", "--nats-url", server.url_of("operator"), *words)
            result = await asyncio.to_thread(run, runlane, words, env={**os.environ, "RUNLANE_NATS_URL": ""})
            assert result.exit_code == 0, result.output
            return result.stdout.splitlines()

        assert await called() == []
        record = DeadLetterRecord(
            service="run_supervisor", tenant_id="acme", reason="not a command", stream="RL_COMMAND", stream_seq=7,
            subject="rl.cmd.00.acme.r1", deliveries=1, size=9, sha256="0" * 64, body="SECRET",
        )  # fmt: skip
        for data in (msgspec.json.encode(record), b"not a record"):
            await supervisor.nc.request(Subjects().dead("run_supervisor", "acme"), data)
        (line,) = await called()
        assert "RL_COMMAND/7" in line
        assert line.endswith(": not a command")
        (told,) = map(json.loads, await called("--json", "--service", "run_supervisor"))
        assert (told["tenant_id"], told["stream_seq"], told["reason"]) == ("acme", 7, "not a command")
        assert "SECRET" not in json.dumps(told) + line
        assert await called("--service", "projector") == []
        await operator.close()
        await supervisor.close()
