"""An audit sink beside the write side, in this process or in one of its own, and what it wrote."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from runlane.audit_sink.app import serve
from runlane.audit_sink.chain import Chains
from runlane.audit_sink.settings import AuditSinkSettings
from runlane.audit_sink.signing import Signer, verifier
from runlane.audit_sink.verify import Kept, StreamCheck, kept
from runlane.hosting.service import Running
from runlane.kernel.direct import DirectReader
from runlane.kernel.durable import unpin
from runlane_contracts.audit import AuditRecord
from runlane_contracts.codec import decode_audit_record
from support.write_side import WriteSide

SEED = "5a" * 32
KEY = Signer(bytes.fromhex(SEED))


@asynccontextmanager
async def sink(side: WriteSide, **settings: object) -> AsyncIterator[Running]:
    """In this process, as its broker user."""
    made = AuditSinkSettings(common=side.common, signing_key=SEED, **settings)  # type: ignore[arg-type]
    async with serve(made, side.connections) as running:
        yield running


@contextmanager
def sink_process(side: WriteSide, **settings: object) -> Iterator["subprocess.Popen[bytes]"]:
    """In one of its own; killed with the block."""
    assert side.server.passwords is not None
    environment = {
        **os.environ,
        "RUNLANE_NATS_URL": side.server.url,
        "RUNLANE_NATS_PASSWORD": side.server.passwords["audit_sink"],
        "RUNLANE_STREAM_MAX_BYTES": str(side.layout.max_bytes),
        "RUNLANE_HEALTH_PORT": "-1",
        "RUNLANE_LOG_LEVEL": "WARNING",
        "RUNLANE_AUDIT_SINK_SIGNING_KEY": SEED,
        **{f"RUNLANE_AUDIT_SINK_{name.upper()}": str(value) for name, value in settings.items()},
    }
    process = subprocess.Popen([sys.executable, "-m", "runlane.audit_sink"], env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def forget_the_dead(side: WriteSide) -> None:
    """Do not wait until the pins of a killed sink run out."""
    operator = await side.connections.of("operator")
    for spec in side.layout.consumers():
        if spec.service == "audit_sink":
            await unpin(operator, spec)


async def stored(side: WriteSide) -> list[Kept]:
    """All of RL_AUDIT."""
    async with DirectReader(await side.connections.of("operator")) as reader:
        found: list[Kept] = []
        async for page in reader.pages(side.layout.audit_stream, side.layout.subjects.all_of("audit")):
            found += [kept(one.seq, one.subject, one.headers, one.data) for one in page.messages]
    return found


async def records(side: WriteSide, tenant_id: str | None = None, category: str | None = None) -> list[AuditRecord]:
    """What is sealed so far, without checking it."""
    found = [decode_audit_record(one.data) for one in await stored(side)]
    return [one for one in found if tenant_id in {None, one.tenant_id} and category in {None, one.category}]


async def check(side: WriteSide) -> Chains:
    """Verify all of it. Raises ChainFault."""
    chains = Chains({KEY.key_id: verifier(KEY.public_key)})
    checking = StreamCheck(chains)
    messages = await stored(side)
    for message in messages:
        checking.take(message)
    checking.finish(len(messages))
    return chains
