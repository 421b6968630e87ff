"""Real EventSource clients, none of them ours, reconnect by themselves and get every fact once, in order.

P5: leave the `id:` out of a fact's frame (`frame` in `edge_gateway.frames`) to see it fail.
"""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from support.browser import chromium
from support.cutting_proxy import CuttingProxy, cutting_proxy
from support.product import Product, Wire, fact, product

FACTS = 10_000
BATCH = 200
CLIENTS = Path(__file__).parent / "sse_clients"

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow, pytest.mark.timeout(240)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def up(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Product]:
    async with product(tmp_path_factory.mktemp("clients") / "state") as running:
        yield running


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the clients in it, from the npm registry."""
    folder = tmp_path_factory.mktemp("npm")
    for name in ("package.json", "package-lock.json", "watch.mjs"):
        shutil.copy(CLIENTS / name, folder)
    return folder


async def npm_install(folder: Path) -> None:
    if (folder / "node_modules").exists():
        return
    npm = shutil.which("npm")
    assert npm is not None, "no npm on PATH; install it: apt-get update && apt-get install -y nodejs npm"
    command = [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, said.decode()


async def of_node(folder: Path, client: str, url: str) -> dict[str, Any]:
    node = shutil.which("node")
    assert node is not None, "no node on PATH"
    process = await asyncio.create_subprocess_exec(
        node, "watch.mjs", client, url, cwd=folder, stdout=asyncio.subprocess.PIPE, env=dict(os.environ), limit=1 << 24
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(), 200)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return dict(json.loads(said))


OF_THE_BROWSER = """
(url) => new Promise((resolve) => {
  const seen = { sequences: [], opens: 0, ends: [] };
  const source = new EventSource(url);
  source.addEventListener("fact", (e) => seen.sequences.push(JSON.parse(e.data).sequence));
  source.addEventListener("hello", () => { seen.opens += 1; });
  source.addEventListener("end", (e) => seen.ends.push(JSON.parse(e.data).reason));
  source.addEventListener("error", () => { if (source.readyState === EventSource.CLOSED) resolve(seen); });
})
"""


async def of_chromium(origin: str, path: str) -> dict[str, Any]:
    async with chromium() as browser:
        page = await browser.new_page()
        await page.goto(f"{origin}/healthz")
        async with asyncio.timeout(200):
            return dict(await page.evaluate(OF_THE_BROWSER, path))


async def test_p5_three_real_clients_behind_a_cutting_proxy_get_10000_facts_once_in_order(
    up: Product, installed: Path
) -> None:
    await npm_install(installed)
    async with (
        up.client() as wire,
        cutting_proxy(up.url, up.tokens["demo"], seed=1) as one,
        cutting_proxy(up.url, up.tokens["demo"], seed=2) as two,
        cutting_proxy(up.url, up.tokens["demo"], seed=3) as three,
        asyncio.TaskGroup() as tasks,
    ):
        run_id = await wire.start_run()
        path = f"/v1/runs/{run_id}/watch?from=start"
        watching: dict[str, tuple[CuttingProxy, asyncio.Task[dict[str, Any]]]] = {
            "eventsource": (one, tasks.create_task(of_node(installed, "eventsource", one.url + path))),
            "eventsource-client": (two, tasks.create_task(of_node(installed, "eventsource-client", two.url + path))),
            "chromium": (three, tasks.create_task(of_chromium(three.url, path))),
        }
        last = await _write(wire, run_id)
        for name, (proxy, watched) in watching.items():
            seen = await watched
            assert seen["sequences"] == list(range(1, last + 1)), name
            assert seen["ends"] in ([], ["run_terminal"]), name  # cut inside `end`, the next answer is 204
            assert proxy.cuts >= 5, name
            assert seen["opens"] > 1, name


async def _write(wire: Wire, run_id: str) -> int:
    epoch = await wire.lease(run_id)
    await wire.append(run_id, epoch, fact("run.started"))
    for start in range(0, FACTS, BATCH):
        said = (fact("message.completed", message_id=f"m{n}", role="assistant", content=f"fact {n} " + "x" * 60)
                for n in range(start, start + BATCH))  # fmt: skip
        await wire.append(run_id, epoch, *said)
        await asyncio.sleep(0.1)
    await wire.append(run_id, epoch, fact("run.completed"))
    return wire.written[run_id]
