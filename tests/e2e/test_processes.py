"""The services as processes of their own, as a cluster runs them; without containers."""

import json
import signal
from pathlib import Path

import pytest

from support.fleet import SERVICES, TOKEN, fleet
from support.product import Wire, fact


@pytest.mark.timeout(120)
async def test_the_same_services_run_apart_and_each_may_die(tmp_path: Path) -> None:
    async with fleet(tmp_path) as all_, Wire(all_.url, TOKEN) as wire:
        run_id = await wire.start_run()
        epoch = await wire.lease(run_id, ttl_s=120)
        await wire.append(run_id, epoch, fact("run.started"))
        for name in SERVICES:
            await all_.stop(name, signal.SIGKILL)
            await all_.start(name)
            await all_.answers()
            await wire.append(run_id, epoch, fact("task.created", task_id=f"after-{name}"))
        assert (await wire.command(run_id, "run.cancel", {"reason": "enough"})).status_code == 200
        await wire.append(run_id, epoch, fact("run.cancelled", reason="enough"))
        facts = await wire.facts(run_id)
        assert [f["sequence"] for f in facts] == list(range(1, len(facts) + 1))
        assert [f["payload"]["task_id"] for f in facts if f["type"] == "task.created"] == [
            f"after-{n}" for n in SERVICES
        ]
        assert (await wire.view(run_id))["status"] == "cancelled"
        codes = {name: await all_.stop(name) for name in SERVICES}
        assert set(codes.values()) == {0}, json.dumps(codes)
