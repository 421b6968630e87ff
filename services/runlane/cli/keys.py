"""`runlane keys`: who is let in."""

import asyncio
import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runlane.cli.failures import Failure
from runlane.cli.output import emit, printable, say

if TYPE_CHECKING:
    from runlane.cli.key_file import KeyFile
    from runlane.cli.link import Link
    from runlane.hosting.api_keys import KeyRecord

_SPAN = re.compile(r"^(\d{1,6})([smhd])$")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_RIGHTS = ("view", "operate", "produce")


@click.group()
def keys() -> None:
    """Show, make and revoke API keys. A change counts within two seconds, everywhere. Each verb takes --json."""


def _options(verb: Any) -> Any:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="One JSON object a line on stdout."),
        click.option("--file", "path", type=click.Path(path_type=Path), envvar="RUNLANE_API_KEYS_FILE",
                     help="Another file of keys than the state directory's."),
        click.option("--state-dir", type=click.Path(path_type=Path), default=".runlane", show_default=True,
                     help="Of a `runlane up`."),
    ):  # fmt: skip
        verb = option(verb)
    return verb


_nats_url = click.option(
    "--nats-url", envvar="RUNLANE_NATS_URL",
    help="With --file: the broker whose audit is told, with the operator's credentials.",
)  # fmt: skip


@keys.command("list")
@_options
def list_keys(state_dir: Path, path: Path | None, as_json: bool) -> None:  # noqa: FBT001 - click's way
    """Show the keys, by their id: a key itself is kept nowhere."""
    for record in _file(state_dir, path).records():
        if as_json:
            emit(_shown(record))
        else:
            ends = f"until {record.expires_at:%Y-%m-%d %H:%M}Z" if record.expires_at else ""
            rights = ",".join(record.rights) or "nothing"
            who = f"{record.tenant_id}/{printable(record.subject)}"
            click.echo(f"{record.key_id}  {who:<30} {rights:<22} {ends}".rstrip())


@keys.command("add")
@click.option("--tenant", default="demo", show_default=True, help="Whose runs it opens.")
@click.option("--subject", help="Who uses it: the actor of what is done with it. Default: the tenant.")
@click.option("--right", "rights", multiple=True, type=click.Choice(_RIGHTS), help="What it may do. Default: all.")
@click.option("--expires-in", metavar="SPAN", help="When it ends by itself: 30m, 8h, 90d.")
@_nats_url
@_options
def add(
    state_dir: Path, path: Path | None, as_json: bool, *,  # noqa: FBT001 - click's way
    tenant: str, subject: str | None, rights: tuple[str, ...], expires_in: str | None, nats_url: str | None,
) -> None:  # fmt: skip
    """Make a key, and print it: this is the only time that it is seen."""
    import msgspec  # noqa: PLC0415 - `--help` does without

    from runlane.hosting.api_keys import KeyRecord  # noqa: PLC0415
    from runlane.hosting.authorizer import Right  # noqa: PLC0415

    ends = None if expires_in is None else _now() + _span(expires_in)
    given = {"tenant_id": tenant, "subject": subject or tenant, "rights": rights or tuple(Right), "expires_at": ends}
    made: list[KeyRecord] = []

    def make(hashed: str) -> KeyRecord:
        made.append(msgspec.convert(given | {"sha256": hashed}, KeyRecord))
        return made[0]

    file = _file(state_dir, path)
    try:
        token = file.add(make, tenant_id=tenant)
    except msgspec.ValidationError as exc:
        raise click.BadParameter(str(exc)) from exc
    if as_json:
        emit({"token": token} | _shown(made[0]))
    else:
        click.echo(token)
        say(f"{made[0].key_id} of {tenant}; revoke it with `runlane keys revoke {made[0].key_id}`")
    _tell_the_audit(file, state_dir, path, nats_url)


@keys.command("revoke")
@click.argument("key")
@_nats_url
@_options
def revoke(
    state_dir: Path, path: Path | None, as_json: bool, *, key: str, nats_url: str | None  # noqa: FBT001 - click's way
) -> None:  # fmt: skip
    """Revoke a key: KEY is its id (or how it begins), or the key itself. Open watches end within two seconds."""
    file = _file(state_dir, path)
    for record in file.revoke(key):
        if as_json:
            emit(_shown(record) | {"revoked": True})
        else:
            say(f"{record.key_id} of {record.tenant_id} is let in no more")
    _tell_the_audit(file, state_dir, path, nats_url)


def _tell_the_audit(file: "KeyFile", state_dir: Path, path: Path | None, nats_url: str | None) -> None:
    """Hand over what was changed. It counts already; what cannot be handed over now is kept for later."""
    from runlane.cli.link import Link  # noqa: PLC0415
    from runlane.kernel.errors import KernelError  # noqa: PLC0415

    link = Link(url=None, token=None, state_dir=state_dir, tenant="", json=False)
    try:
        asyncio.run(_hand_over(file, link, _broker_of(link, path, nats_url)))
    except (Failure, KernelError) as exc:
        text = exc.message if isinstance(exc, Failure) else str(exc)
        say(f"the audit has not got this yet ({text}); it is kept in {file.journal.path}, for the next change of a key "
            "or start of `runlane up`")  # fmt: skip


def _broker_of(link: "Link", path: Path | None, nats_url: str | None) -> str:
    """That of the state directory; of a file of its own, the one that was named."""
    if path is None:
        return link.info().operator_nats_url
    if nats_url is None:
        raise Failure("no_broker", "no --nats-url says where it is")
    return nats_url


async def _hand_over(file: "KeyFile", link: "Link", nats_url: str) -> None:
    from runlane.cli.layout import configured_layout  # noqa: PLC0415

    async with link.broker(nats_url) as broker:
        with file.locked():
            await file.journal.hand_over(broker, configured_layout())


def _file(state_dir: Path, path: Path | None) -> "KeyFile":
    from runlane.cli.key_file import KeyFile  # noqa: PLC0415

    return KeyFile(path or state_dir / "api_keys.json")


def _shown(record: "KeyRecord") -> dict[str, Any]:
    ends = {} if record.expires_at is None else {"expires_at": record.expires_at}
    return {
        "key_id": record.key_id, "tenant_id": record.tenant_id, "subject": record.subject, "rights": record.rights
    } | ends  # fmt: skip


def _span(text: str) -> timedelta:
    found = _SPAN.match(text)
    if found is None:
        raise click.BadParameter(f"{text!r} is not like 30m, 8h or 90d", param_hint="--expires-in")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def _now() -> datetime:
    from runlane.kernel.clock import utc_now  # noqa: PLC0415

    return utc_now()
