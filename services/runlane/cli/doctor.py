"""`runlane doctor`: look for what is wrong, and say what to do."""

import asyncio
import shutil
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Literal

import click

from runlane.cli.control import SERVICES, ask
from runlane.cli.failures import REFUSED, UNREACHABLE, Failure
from runlane.cli.layout import configured_layout
from runlane.cli.link import Link, linked
from runlane.cli.output import emit
from runlane.client.errors import RequestRefused, Unreachable
from runlane.kernel.clock import utc_now
from runlane.kernel.connection import Connection
from runlane.kernel.errors import Permanent, Retryable
from runlane.kernel.jetstream import ApiError, api
from runlane.kernel.provision import provision, require_api_level
from runlane_contracts.streams import Layout

Verdict = Literal["ok", "warn", "fail"]

FULL_WARN, FULL_FAIL = 0.8, 0.95
LAG_WARN = 1000
DISK_WARN_BYTES, DISK_FAIL_BYTES = 5 << 30, 1 << 30
_STYLE = {"ok": "green", "warn": "yellow", "fail": "red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `advice` says what to do, where there is something to do."""

    check: str
    verdict: Verdict
    detail: str
    advice: str = ""


@click.command()
@click.option(
    "--nats-url", envvar="RUNLANE_NATS_URL", help="The broker. Who: in it, or RUNLANE_NATS_USER and _PASSWORD."
)
@linked
async def doctor(link: Link, nats_url: str | None) -> int:
    """Look at the broker, streams, consumers, services, HTTP and the disk. Changes nothing. 1 when something fails."""
    findings: list[Finding] = []
    async with aclosing(_look(link, nats_url)) as looked:
        async for finding in looked:
            findings.append(finding)
            _show(link, finding)
    if any(one.check == "broker" and one.verdict == "fail" for one in findings):
        return UNREACHABLE
    return REFUSED if any(one.verdict == "fail" for one in findings) else 0


def _show(link: Link, finding: Finding) -> None:
    if finding.verdict == "ok":
        finding = replace(finding, advice="")
    if link.json:
        emit(finding)
        return
    mark = click.style(f"{finding.verdict:<5}", fg=_STYLE[finding.verdict])
    click.echo(f"{mark} {finding.check:<28} {finding.detail}")
    if finding.advice:
        click.echo(f"{'':5} {'':28} → {finding.advice}")


async def _look(link: Link, nats_url: str | None) -> AsyncGenerator[Finding, None]:
    layout = configured_layout()
    yield await _http(link)
    try:
        async with link.broker(nats_url) as broker:
            yield Finding("broker", "ok", f"connected, {broker.max_payload >> 20} MiB a message at most")
            for finding in await _on_broker(broker, layout):
                yield finding
    except (Retryable, Permanent, Failure) as exc:
        message = exc.message if isinstance(exc, Failure) else str(exc)
        yield Finding("broker", "fail", message, "start it with `runlane up`, or look at its log")
    if link.state_dir.exists():
        yield _disk(link)


async def _on_broker(broker: Connection, layout: Layout) -> list[Finding]:
    findings = [await _api_level(broker)]
    findings += await asyncio.gather(*(_stream(broker, spec.name, spec.max_bytes) for spec in layout.streams()))
    findings += await asyncio.gather(
        *(_consumer(broker, one.stream, one.durable, one.max_ack_pending) for one in layout.consumers())
    )
    findings.append(await _drift(broker, layout))
    findings.append(await _dead_letters(broker, layout))
    findings += await asyncio.gather(*(_service(broker, layout, name) for name in SERVICES))
    return findings


# -- the checks ------------------------------------------------------------------------------------------------


async def _http(link: Link) -> Finding:
    try:
        async with link.http() as transport:
            await transport.get_json("/readyz")
    except Failure as exc:
        return Finding("http", "fail", exc.message)
    except (Unreachable, RequestRefused) as exc:
        return Finding("http", "fail", str(exc), "the services below say which one is not ready")
    return Finding("http", "ok", f"ready at {transport.url}")


async def _api_level(broker: Connection) -> Finding:
    try:
        level = await require_api_level(broker)
    except Permanent as exc:
        return Finding("server", "fail", str(exc), "install a newer nats-server")
    return Finding("server", "ok", f"JetStream API level {level}")


async def _stream(broker: Connection, name: str, max_bytes: int) -> Finding:
    check = f"stream {name}"
    try:
        info: dict[str, Any] = await api(broker, f"STREAM.INFO.{name}", answer=dict[str, Any])
    except ApiError:
        return Finding(check, "fail", "it is not there", "runlane provision")
    state = info["state"]
    bound = info["config"].get("max_bytes") or max_bytes
    full = state["bytes"] / bound if bound > 0 else 0.0
    detail = f"{state['messages']} messages, {state['bytes'] >> 20} MiB, {full:.0%} full"
    verdict: Verdict = "fail" if full >= FULL_FAIL else "warn" if full >= FULL_WARN else "ok"
    return Finding(
        check, verdict, detail, "raise its bound or archive finished runs; a full stream refuses, it never drops"
    )


async def _consumer(broker: Connection, stream: str, durable: str, max_ack_pending: int) -> Finding:
    check = f"consumer {durable}"
    try:
        info: dict[str, Any] = await api(broker, f"CONSUMER.INFO.{stream}.{durable}", answer=dict[str, Any])
    except ApiError:
        return Finding(check, "fail", "it is not there", "runlane provision")
    lag, unacknowledged = int(info.get("num_pending", 0)), int(info.get("num_ack_pending", 0))
    detail = f"{lag} behind, {unacknowledged} in hand"
    if unacknowledged >= max_ack_pending:
        return Finding(check, "warn", detail, "it holds as much as it may: is its service stuck?")
    verdict: Verdict = "warn" if lag > LAG_WARN else "ok"
    return Finding(check, verdict, detail, "its service is down or too slow")


async def _drift(broker: Connection, layout: Layout) -> Finding:
    try:
        report = await provision(broker, layout, now=utc_now, dry_run=True)
    except Permanent as exc:
        return Finding("layout", "fail", str(exc), "the settings ask for what the broker cannot become")
    if not report.changes and report.former_in_use:
        detail = f"somebody works with another number of partitions: {', '.join(report.former_in_use)}"
        return Finding("layout", "warn", detail, "give all supervisors the same RUNLANE_SUPERVISOR_PARTITIONS")
    if not report.changes:
        return Finding("layout", "ok", f"{report.unchanged} streams and consumers as they should be")
    names = ", ".join(f"{change.name} ({change.kind} by it)" for change in report.changes[:5])
    return Finding("layout", "warn", f"{len(report.changes)} differ: {names}", "runlane provision")


async def _dead_letters(broker: Connection, layout: Layout) -> Finding:
    try:
        info: dict[str, Any] = await api(broker, f"STREAM.INFO.{layout.dead_stream}", answer=dict[str, Any])
    except ApiError:
        return Finding("dead letters", "fail", "their stream is not there", "runlane provision")
    count = int(info["state"]["messages"])
    return Finding("dead letters", "warn" if count else "ok", str(count), "`runlane dead-letters` says why")


async def _service(broker: Connection, layout: Layout, name: str) -> Finding:
    check = f"service {name}"
    try:
        said = await ask(broker, layout.subjects, name, "ping", timeout_s=3.0)
    except Retryable:
        return Finding(check, "fail", "does not answer", f"start it: python -m runlane.{name}")
    except RequestRefused as exc:
        return Finding(check, "fail", str(exc), "look at its log")
    verdict: Verdict = "ok" if said.get("ready") else "fail"
    detail = said.get("detail")
    trouble = detail.get("trouble") if isinstance(detail, dict) else None
    if trouble and verdict == "ok":
        return Finding(check, "warn", f"waits: {trouble}", "what it waits for is kept meanwhile; nothing is lost yet")
    return Finding(check, verdict, f"{said.get('version', '')} at {said.get('instance', '')}", f"{said.get('detail')}")


def _disk(link: Link) -> Finding:
    free = shutil.disk_usage(link.state_dir).free
    verdict: Verdict = "fail" if free < DISK_FAIL_BYTES else "warn" if free < DISK_WARN_BYTES else "ok"
    return Finding(
        "disk", verdict, f"{free >> 30} GiB free at {link.state_dir}", "make room before the streams are full"
    )
