"""`python -m runlane.audit_sink.follow` beside a real broker: what that refuses is on its way into the audit."""

import asyncio
import os
import sys

from runlane.kernel.clock import utc_now
from runlane.kernel.connection import connect
from runlane.kernel.direct import DirectReader
from runlane.kernel.provision import provision
from runlane_contracts.access import inbox_prefix
from support.eventually import eventually
from support.nats import SMALL, nats_server


async def test_what_a_broker_refuses_is_handed_over_and_its_log_is_shown() -> None:
    """Taken out: the right of `broker_log` to its part of the intake; or `show`."""
    async with nats_server(users=True) as server:
        operator = await connect(
            url=server.url, user="operator", password="pw-operator", name="operator",
            inbox_prefix=inbox_prefix("operator"),
        )  # fmt: skip
        await provision(operator, SMALL, now=utc_now)
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "runlane.audit_sink.follow", stdout=asyncio.subprocess.PIPE,
            env={
                **os.environ, "RUNLANE_NATS_URL": server.url, "RUNLANE_NATS_USER": "broker_log",
                "RUNLANE_NATS_PASSWORD": "pw-broker_log", "RUNLANE_BROKER_LOG_PATH": str(server.log_path),
                "RUNLANE_STREAM_MAX_BYTES": str(SMALL.max_bytes),
            },
        )  # fmt: skip
        assert child.stdout is not None
        try:
            await operator.nc.publish("rl.log.00.acme.forged", b"")
            async with asyncio.timeout(30):
                while b"rl.log.00.acme.forged" not in await child.stdout.readline():
                    pass
            async with DirectReader(operator) as reader:

                async def handed_over() -> bool:
                    return (await reader.stream_state(SMALL.intake_stream)).messages == 1

                await eventually(handed_over, within_s=30)
            child.terminate()
            await child.stdout.read()
            assert await child.wait() == 0
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
            await operator.close()
