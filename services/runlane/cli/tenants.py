"""`runlane tenants`: what each tenant may have of what all share, and what it has."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import click
import msgspec
from msgspec import Struct

from runlane.cli.link import Link, linked
from runlane_contracts.tenants import DEFAULT_KEY, TenantLimits

if TYPE_CHECKING:
    from runlane.kernel.direct import DirectReader
    from runlane.kernel.kv import Bucket
    from runlane_contracts.streams import Layout

DEFAULT_NAME = "(default)"
UNBOUNDED = "-"


class TenantRow(Struct, frozen=True, kw_only=True):
    """One line of the list. `limits`: those that count; its `own`, or those for everybody."""

    tenant_id: str
    running: int
    waiting: int
    limits: TenantLimits | None
    own: bool


@click.group()
def tenants() -> None:
    """Weights and bounds of tenants: show them, set them. Each verb takes --json."""


_nats_url = click.option("--nats-url", envvar="RUNLANE_NATS_URL", help="The broker, with the operator's credentials.")


def _bound(_ctx: click.Context, _param: click.Parameter, text: str | None) -> int | str | None:
    """A number of runs, or the word `none`."""
    if text is None or text == "none":
        return text
    if not (text.isascii() and text.isdigit()):
        raise click.BadParameter(f"{text!r} is neither a number of runs nor none")
    return int(text)


@tenants.command("list")
@_nats_url
@linked
async def list_tenants(link: Link, nats_url: str | None) -> None:
    """What each tenant may have, and what it has now."""
    from runlane.cli.output import emit  # noqa: PLC0415

    async with _desk(link, nats_url) as desk:
        rows = await desk.rows()
    for row in rows:
        if link.json:
            emit(row)
    if not link.json:
        click.echo(f"{'TENANT':<34}{'WEIGHT':>8}{'RUNNING':>16}{'WAITING':>16}")
        for row in rows:
            click.echo(_line(row))


@tenants.command("set")
@click.argument("name", metavar="TENANT", required=False)
@click.option("--default", "for_all", is_flag=True, help="For tenants that have no limits of their own.")
@click.option("--weight", type=click.FloatRange(0.01, 1000), help="Its part of the work while others wait too.")
@click.option(
    "--max-running", callback=_bound, metavar="N|none", help="Runs of pools that workers drive at the same time."
)
@click.option(
    "--max-waiting",
    callback=_bound,
    metavar="N|none",
    help="Runs that wait for a worker; then starts are `quota_exceeded`.",
)
@_nats_url
@linked
async def set_limits(
    link: Link,
    nats_url: str | None,
    name: str | None,
    weight: float | None,
    max_running: int | str | None,
    max_waiting: int | str | None,
    *,
    for_all: bool,
) -> None:
    """Change what is named and leave the rest. Counts within two seconds; what runs goes on."""
    changes: dict[str, float | int | None] = {} if weight is None else {"weight": weight}
    for limit, value in (("max_running", max_running), ("max_waiting", max_waiting)):
        if value is not None:
            changes[limit] = None if isinstance(value, str) else value
    if not changes:
        raise click.UsageError("name what shall change: --weight, --max-running, --max-waiting")
    key = _key(name, for_all=for_all)
    async with _desk(link, nats_url) as desk:
        limits = await desk.change(key, changes)
    _tell(link, key, limits)


@tenants.command("unset")
@click.argument("name", metavar="TENANT", required=False)
@click.option("--default", "for_all", is_flag=True, help="Those for tenants that have none of their own.")
@_nats_url
@linked
async def unset(link: Link, nats_url: str | None, name: str | None, *, for_all: bool) -> None:
    """Forget a tenant's own limits: those for everybody count again."""
    key = _key(name, for_all=for_all)
    async with _desk(link, nats_url) as desk:
        await desk.forget(key)
    _tell(link, key, None)


def _key(tenant: str | None, *, for_all: bool) -> str:
    from runlane_contracts.ids import is_tenant  # noqa: PLC0415

    if (tenant is None) == (not for_all):
        raise click.UsageError("name a tenant, or --default")
    if tenant is not None and not is_tenant(tenant):
        raise click.BadParameter(f"{tenant!r} is no tenant: a-z, 0-9 and -, at most 32", param_hint="TENANT")
    return tenant or DEFAULT_KEY


def _tell(link: Link, key: str, limits: TenantLimits | None) -> None:
    from runlane.cli.output import emit  # noqa: PLC0415

    name = DEFAULT_NAME if key == DEFAULT_KEY else key
    if link.json:
        emit({"tenant_id": name, "limits": limits})
    elif limits is None:
        click.echo(f"{name}: no limits of its own")
    else:
        running, waiting = (UNBOUNDED if one is None else str(one) for one in (limits.max_running, limits.max_waiting))
        click.echo(f"{name}: weight {limits.weight:g}, running at most {running}, waiting at most {waiting}")


def _line(row: TenantRow) -> str:
    limits = row.limits or TenantLimits()
    weight = f"{limits.weight:g}" if row.own else f"({limits.weight:g})"
    running, waiting = _of(row.running, limits.max_running), _of(row.waiting, limits.max_waiting)
    return f"{row.tenant_id:<34}{weight:>8}{running:>16}{waiting:>16}"


def _of(count: int, most: int | None) -> str:
    return str(count) if most is None else f"{count} of {most}"


class _Desk:
    """Reads and writes the bucket, and counts."""

    def __init__(self, bucket: "Bucket", direct: "DirectReader", layout: "Layout") -> None:
        self._bucket, self._direct, self._layout = bucket, direct, layout

    async def rows(self) -> list[TenantRow]:
        """Every tenant that has limits, or anything that runs or waits; first what counts for the others."""
        from runlane.kernel.clock import utc_now  # noqa: PLC0415
        from runlane.kernel.direct import subjects_of  # noqa: PLC0415
        from runlane.kernel.seats import seats_by_tenant  # noqa: PLC0415

        limits = await self._limits()
        subjects = self._layout.subjects
        waiting: Counter[str] = Counter()
        found = await subjects_of(self._direct.connection, self._layout.work_stream, subjects.all_of("work"))
        for subject, count in found.items():
            waiting[subjects.tenant_of_work(subject)] += count
        running = await seats_by_tenant(self._direct, self._layout.lease_bucket, now=utc_now)
        for_all = limits.pop(DEFAULT_KEY, None)
        rows = [
            TenantRow(
                tenant_id=name, running=running[name], waiting=waiting[name], limits=limits.get(name, for_all),
                own=name in limits,
            )
            for name in sorted({*limits, *running, *waiting})
        ]  # fmt: skip
        if for_all is not None:
            rows.insert(0, TenantRow(tenant_id=DEFAULT_NAME, running=0, waiting=0, limits=for_all, own=True))
        return rows

    async def _limits(self) -> dict[str, TenantLimits]:
        from runlane.kernel.tenants import decode_limits  # noqa: PLC0415

        found: dict[str, TenantLimits] = {}
        async for page in self._direct.pages(self._bucket.stream, f"$KV.{self._bucket.name}.>"):
            for message in page.messages:
                limits = decode_limits(message.data)
                if limits is not None:
                    found[message.subject.rpartition(".")[2]] = limits
        return found

    async def change(self, key: str, changes: dict[str, float | int | None]) -> TenantLimits:
        """Set what is named; what somebody else changes at the same time stays changed."""
        from runlane.kernel.errors import Conflict  # noqa: PLC0415
        from runlane.kernel.tenants import decode_limits  # noqa: PLC0415

        while True:
            entry = await self._bucket.get(key)
            limits = (decode_limits(entry.value) if entry is not None else None) or TenantLimits()
            limits = msgspec.structs.replace(limits, **changes)
            value = msgspec.json.encode(limits)
            try:
                if entry is None:
                    await self._bucket.create(key, value)
                else:
                    await self._bucket.update(key, value, entry.revision)
            except Conflict:
                continue
            return limits

    async def forget(self, key: str) -> None:
        """It has none of its own."""
        await self._bucket.delete(key)


@asynccontextmanager
async def _desk(link: Link, nats_url: str | None) -> AsyncIterator[_Desk]:
    from runlane.cli.layout import configured_layout  # noqa: PLC0415
    from runlane.kernel.direct import DirectReader  # noqa: PLC0415
    from runlane.kernel.kv import Bucket  # noqa: PLC0415
    from runlane.kernel.publisher import WindowedPublisher  # noqa: PLC0415

    layout = configured_layout()
    async with link.broker(nats_url) as broker, DirectReader(broker) as direct:
        publisher = WindowedPublisher(broker)
        try:
            yield _Desk(Bucket(publisher, direct, layout.tenant_bucket), direct, layout)
        finally:
            await publisher.close()
