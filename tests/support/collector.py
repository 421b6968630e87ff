"""A real OTLP receiver, and the spans it got."""

import asyncio
import json
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.eventually import eventually
from support.nats import free_port


@dataclass(frozen=True)
class SeenSpan:
    """A span as the receiver decoded it."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    started_ns: int
    ended_ns: int
    attributes: dict[str, Any] = field(hash=False)
    links: tuple[tuple[str, str], ...]
    """What each leads to, and why."""
    is_error: bool


class Collector:
    """`url` is what `RUNLANE_TELEMETRY_ENDPOINT` should be."""

    def __init__(self, url: str, output: Path) -> None:
        self.url = url
        self._output = output

    @property
    def text(self) -> str:
        return self._output.read_text(errors="replace")

    def spans(self) -> list[SeenSpan]:
        """Every span so far, each once: one may be sent twice."""
        found = {}
        for line in self.text.splitlines():
            if line.startswith('{"traceId"') and line.endswith("}"):
                one = _span(json.loads(line))
                found[one.trace_id, one.span_id] = one
        return list(found.values())

    def metrics(self) -> set[str]:
        lines = [line for line in self.text.splitlines() if line.startswith('{"name"') and line.endswith("}")]
        return {json.loads(line)["name"] for line in lines}

    async def wait(self, enough: Callable[[list[SeenSpan]], bool], within_s: float = 40) -> list[SeenSpan]:
        await eventually(lambda: enough(self.spans()), within_s=within_s, every_s=0.2)
        return self.spans()


def _span(one: dict[str, Any]) -> SeenSpan:
    return SeenSpan(
        one["name"], one["traceId"], one["spanId"], one["parentSpanId"], one["kind"], int(one["startTimeUnixNano"]),
        int(one["endTimeUnixNano"]), _attributes(one["attributes"]),
        tuple((link["spanId"], _attributes(link["attributes"]).get("runlane.link", "")) for link in one["links"]),
        (one.get("status") or {}).get("code") in {2, "STATUS_CODE_ERROR"},
    )  # fmt: skip


def _attributes(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    return {one["key"]: next(iter(one["value"].values())) for one in pairs}


def tree(spans: list[SeenSpan], trace_id: str) -> dict[str, list[str]]:
    """Names of children by name of parent, "" for roots; sorted."""
    mine = [one for one in spans if one.trace_id == trace_id]
    by_id = {one.span_id: one for one in mine}
    found: dict[str, list[str]] = defaultdict(list)
    for one in mine:
        if one.parent_id and one.parent_id not in by_id:
            found["?"].append(one.name)
        else:
            found[by_id[one.parent_id].name if one.parent_id else ""].append(one.name)
    return {parent: sorted(children) for parent, children in found.items()}


@asynccontextmanager
async def collector(folder: Path) -> AsyncIterator[Collector]:
    port, output = free_port(), folder / "otlp.ndjson"
    with output.open("wb") as stdout:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-u", "-m", "oteltap", "--port", str(port), stdout=stdout, stderr=stdout
        )
    try:
        await eventually(lambda: _listens(port), within_s=20)
        yield Collector(f"http://127.0.0.1:{port}", output)
    finally:
        process.terminate()
        await process.wait()


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
