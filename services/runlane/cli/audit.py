"""`runlane audit`: check the record of who did what, look at it, take a sealed copy of it."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runlane.cli.link import Link, linked

if TYPE_CHECKING:
    from runlane.audit_sink.exporter import ChainRange, Seal
    from runlane.audit_sink.verify import Kept
    from runlane.kernel.connection import Connection
    from runlane_contracts.audit import AuditRecord
    from runlane_contracts.streams import Layout

BAD = 1


@click.group()
def audit() -> None:
    """Check, show and export the record of who did what. Each verb takes --json."""


_nats_url = click.option("--nats-url", envvar="RUNLANE_NATS_URL", help="The broker, with the operator's credentials.")
_keys = click.option(
    "--key", "keys", multiple=True, metavar="HEX",
    help="A public key that is trusted. Default: the state directory's, else the sink is asked.",
)  # fmt: skip


@audit.command("verify")
@click.option("--from", "source", metavar="DIR", help="An export, a folder or a URL. Default: what the broker holds.")
@_keys
@_nats_url
@linked
async def verify(link: Link, source: str | None, keys: tuple[str, ...], nats_url: str | None) -> int:
    """Check every record. Names the first bad one and exits with 1: chain broken, hash or signature wrong, missing."""
    from runlane.audit_sink.chain import ChainFault  # noqa: PLC0415

    tenant_id = _given_tenant(link)
    try:
        if source is not None:
            return await _verify_export(link, source, keys, tenant_id)
        return await _verify_stream(link, keys, nats_url, tenant_id)
    except ChainFault as exc:
        _show_fault(link, exc)
        return BAD


@audit.command("show")
@click.option("--run", "run_id", metavar="RUN", help="Only what is about this run.")
@_nats_url
@linked
async def show(link: Link, run_id: str | None, nats_url: str | None) -> None:
    """Show a tenant's records, oldest first."""
    from runlane.cli.layout import configured_layout  # noqa: PLC0415
    from runlane.cli.output import emit  # noqa: PLC0415
    from runlane_contracts.codec import decode_audit_record  # noqa: PLC0415

    layout = configured_layout()
    async with (
        link.broker(nats_url) as broker,
        _messages(broker, layout, layout.subjects.audit(link.tenant, ">")) as messages,
    ):
        async for message in messages:
            record = decode_audit_record(message.data)
            if run_id is not None and run_id not in {record.target.run_id, record.target.id}:
                continue
            if link.json:
                emit(record)
            else:
                click.echo(_line(record))


@audit.command("export")
@click.argument("place", metavar="DIR")
@_keys
@_nats_url
@linked
async def export(link: Link, place: str, keys: tuple[str, ...], nats_url: str | None) -> int:
    """Copy all records to DIR, a folder or a URL such as s3://bucket/prefix, sealed by the sink."""
    from runlane.audit_sink.chain import ChainFault  # noqa: PLC0415
    from runlane.audit_sink.exporter import Exporter  # noqa: PLC0415
    from runlane.cli.layout import configured_layout  # noqa: PLC0415
    from runlane.object_store.store import Objects  # noqa: PLC0415

    layout = configured_layout()
    async with link.broker(nats_url) as broker:
        await _sign_chains(broker, layout)
        exporter = Exporter(Objects.at(place), await _trusted(link, keys, broker, layout))
        try:
            async with _messages(broker, layout, layout.subjects.all_of("audit")) as messages:
                manifest = await exporter.export(messages, lambda sha256: _seal(broker, layout, sha256))
        except ChainFault as exc:
            _show_fault(link, exc)
            return BAD
    sealed = manifest.seal is not None
    _tell(
        link, manifest.body.last_seq, manifest.body.chains, {"sealed": sealed, "segments": len(manifest.body.segments)}
    )
    return 0


# --- verifying ----------------------------------------------------------------------------------------------


async def _verify_stream(link: Link, keys: tuple[str, ...], nats_url: str | None, tenant_id: str | None) -> int:
    from runlane.audit_sink.chain import Chains  # noqa: PLC0415
    from runlane.audit_sink.exporter import chain_ranges  # noqa: PLC0415
    from runlane.audit_sink.signing import verifiers  # noqa: PLC0415
    from runlane.audit_sink.verify import StreamCheck  # noqa: PLC0415
    from runlane.cli.layout import configured_layout  # noqa: PLC0415
    from runlane.kernel.direct import DirectReader  # noqa: PLC0415

    layout = configured_layout()
    async with link.broker(nats_url) as broker:
        chains = Chains(verifiers((await _trusted(link, keys, broker, layout)).values()))
        check = StreamCheck(chains, tenant_id=tenant_id)
        subjects = layout.subjects.all_of("audit") if tenant_id is None else layout.subjects.audit(tenant_id, ">")
        async with DirectReader(broker) as reader:
            last_seq = (await reader.stream_state(layout.audit_stream)).last_seq
        async with _messages(broker, layout, subjects) as messages:
            async for message in messages:
                check.take(message)
        check.finish(last_seq)
    _tell(link, chains.records, chain_ranges(chains), {})
    return 0


async def _verify_export(link: Link, source: str, keys: tuple[str, ...], tenant_id: str | None) -> int:
    from runlane.audit_sink.exporter import check_export  # noqa: PLC0415
    from runlane.cli.failures import Failure  # noqa: PLC0415
    from runlane.cli.output import say  # noqa: PLC0415
    from runlane.object_store.store import Objects  # noqa: PLC0415

    if _is_missing(source):
        raise Failure("not_found", f"there is no folder {source}")
    checked = await check_export(Objects.at(source), _given(keys) or _own_key(link), tenant_id)
    if not checked.trusted:
        say("the keys are those that the export itself names: give --key to know whose they are")
    if not checked.sealed:
        say("the export is not sealed: it is whole, but anybody could have made it")
    _tell(link, checked.records, checked.chains, {"sealed": checked.sealed, "trusted": checked.trusted})
    return 0


def _is_missing(place: str) -> bool:
    return "://" not in place and not Path(place).is_dir()


def _tell(link: Link, records: int, chains: "dict[str, ChainRange]", more: dict[str, Any]) -> None:
    from runlane.cli.output import emit  # noqa: PLC0415

    if link.json:
        emit({"ok": True, "records": records, "chains": chains, **more})
        return
    for tenant_id, one in sorted(chains.items()):
        click.echo(f"{tenant_id}: {one.last_sequence} records, signed up to {one.signed_up_to}")
    click.echo(f"{records} records, nothing was changed")


def _show_fault(link: Link, exc: Any) -> None:
    from runlane.cli.output import emit  # noqa: PLC0415

    fault = exc.fault
    if link.json:
        emit({"ok": False, **fault._asdict()})
    click.echo(f"runlane: audit_broken: {fault}", err=True)


def _line(record: "AuditRecord") -> str:
    from runlane.cli.output import printable  # noqa: PLC0415

    target = record.target
    where = "" if target.run_id in {None, target.id} else f" of {target.run_id}"
    times = f" ×{record.count}" if record.count > 1 else ""
    return printable(
        f"{record.sequence:>6}  {record.time[:23]}  {record.actor.kind}:{record.actor.id}  {record.action}  "
        f"{target.kind} {target.id}{where}  {record.outcome}{times}"
    )


# --- the broker, the sink, the keys -------------------------------------------------------------------------


@asynccontextmanager
async def _messages(broker: "Connection", layout: "Layout", subjects: str) -> "AsyncIterator[AsyncIterator[Kept]]":
    from runlane.audit_sink.verify import kept  # noqa: PLC0415
    from runlane.cli.stored import stored_messages  # noqa: PLC0415

    async with (
        stored_messages(broker, layout.audit_stream, subjects) as stored,
        aclosing(kept(one.seq, one.subject, one.headers, one.data) async for one in stored) as messages,
    ):
        yield messages


async def _sign_chains(broker: "Connection", layout: "Layout") -> None:
    """So that the copy ends with signatures. Without a sink it ends where it ends."""
    from runlane.cli.control import ask  # noqa: PLC0415
    from runlane.cli.output import say  # noqa: PLC0415
    from runlane.client.errors import RequestRefused  # noqa: PLC0415
    from runlane.kernel.errors import Retryable  # noqa: PLC0415

    try:
        await ask(broker, layout.subjects, "audit_sink", "checkpoint", timeout_s=15.0)
    except (Retryable, RequestRefused) as exc:
        say(f"the chains could not be signed first: {exc}")


async def _seal(broker: "Connection", layout: "Layout", sha256: str) -> "Seal | None":
    from runlane.audit_sink.exporter import Seal  # noqa: PLC0415
    from runlane.cli.control import ask  # noqa: PLC0415
    from runlane.cli.output import say  # noqa: PLC0415
    from runlane.kernel.errors import Retryable  # noqa: PLC0415

    try:
        made = await ask(broker, layout.subjects, "audit_sink", "sign", {"sha256": sha256})
    except Retryable:
        say("the audit sink does not answer: the export is not sealed")
        return None
    return Seal(key_id=made["key_id"], signature=made["signature"])


async def _trusted(link: Link, keys: tuple[str, ...], broker: "Connection", layout: "Layout") -> dict[str, bytes]:
    from runlane.cli.control import ask  # noqa: PLC0415

    known = _given(keys) or _own_key(link)
    if known:
        return known
    answer = await ask(broker, layout.subjects, "audit_sink", "key")
    return {answer["key_id"]: bytes.fromhex(answer["public_key"])}


def _given(keys: tuple[str, ...]) -> dict[str, bytes]:
    from runlane.audit_sink.signing import key_id_of  # noqa: PLC0415

    try:
        found = [bytes.fromhex(key) for key in keys]
    except ValueError as exc:
        raise click.BadParameter("a public key is 64 hex digits", param_hint="--key") from exc
    return {key_id_of(key): key for key in found}


def _own_key(link: Link) -> dict[str, bytes]:
    """That of the state directory, if there is one."""
    from runlane.audit_sink.signing import Signer  # noqa: PLC0415
    from runlane.cli.state_dir import audit_signing_key  # noqa: PLC0415

    seed = audit_signing_key(link.state_dir)
    if not seed:
        return {}
    signer = Signer(bytes.fromhex(seed))
    return {signer.key_id: signer.public_key}


def _given_tenant(link: Link) -> str | None:
    """The tenant, if the command line names one: without it all chains are looked at."""
    context = click.get_current_context()
    given = context.get_parameter_source("tenant") is not click.core.ParameterSource.DEFAULT
    return link.tenant if given else None
