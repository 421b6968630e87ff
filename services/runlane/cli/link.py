"""Whom a verb talks to: options that all verbs share, and the connections that follow from them."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from runlane.cli.failures import Failure, nothing_runs
from runlane.cli.output import printable
from runlane_contracts.ids import is_id

if TYPE_CHECKING:
    from runlane.cli.state_dir import ConnectionInfo
    from runlane.client.transports.http import HttpTransport
    from runlane.kernel.connection import Connection

T = TypeVar("T")

DEFAULT_STATE_DIR = ".runlane"
REQUEST_TIMEOUT_S = 15.0
_TOKEN = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class Link:
    """What the options said."""

    url: str | None
    token: str | None
    state_dir: Path
    tenant: str
    json: bool

    def info(self) -> "ConnectionInfo":
        """What a running `runlane up` announced in the state directory."""
        from runlane.cli.state_dir import connection_info  # noqa: PLC0415 - only without --url

        found = connection_info(self.state_dir)
        if found is None:
            raise nothing_runs(str(self.state_dir))
        return found

    @asynccontextmanager
    async def http(self) -> AsyncIterator["HttpTransport"]:
        """The HTTP API, as the tenant of the token."""
        from runlane.client.errors import RequestRefused, Unreachable  # noqa: PLC0415
        from runlane.client.transports.http import HttpTransport  # noqa: PLC0415

        url, token = self.address()
        try:
            async with HttpTransport(url, token, timeout_s=REQUEST_TIMEOUT_S) as transport:
                # What comes next is tried again for minutes; somebody at a terminal wants to know that nobody is there.
                with suppress(RequestRefused):  # any answer is one
                    await transport.get_json("/healthz")
                yield transport
        except Unreachable as exc:
            if exc.sent:
                raise
            raise nothing_runs(url) from exc

    def hint(self, words: str) -> str:
        """What to type to call another verb of the same Runlane."""
        from runlane.cli.state_dir import option_for, program  # noqa: PLC0415

        return f"{program()} {words}{option_for(self.state_dir) if self.url is None else ''}"

    def address(self) -> tuple[str, str]:
        """Where it serves, and as whom to ask."""
        if self.token is not None and not _TOKEN.fullmatch(self.token):
            raise click.UsageError("the token holds characters that no token has (--token, RUNLANE_TOKEN)")
        if self.url is not None:
            if not _is_http(self.url):
                raise click.UsageError(f"not an http address: {self.url!r} (--url, RUNLANE_URL)")
            return self.url, self.token or ""
        info = self.info()
        return info.url, self.token or self.token_in(info)

    def token_in(self, info: "ConnectionInfo") -> str:
        """That of the tenant."""
        token = info.tokens.get(self.tenant)
        if token is None:
            raise Failure("tenant_not_found", f"{self.state_dir} has no token of tenant {self.tenant!r}")
        return token

    @asynccontextmanager
    async def broker(self, nats_url: str | None = None) -> AsyncIterator["Connection"]:
        """The broker, as its operator."""
        from runlane.kernel.connection import connect  # noqa: PLC0415

        url = nats_url or self.info().operator_nats_url
        if nats_url is not None and not all(_is_address(one) for one in nats_url.split(",")):
            raise click.UsageError(f"not the address of a broker: {nats_url!r} (--nats-url, RUNLANE_NATS_URL)")
        user, password = _credentials(url)
        connection = await connect(
            url=url,
            user=user,
            password=password,
            name="runlane-cli",
            inbox_prefix=_inbox_prefix(url, user),
            wait_s=5.0,
        )
        try:
            yield connection
        finally:
            await connection.close()


def _is_http(url: str) -> bool:
    return url.startswith(("http://", "https://")) and _is_address(url)


def _is_address(url: str) -> bool:
    """Whether it names a host, and a port that can be one; a broker may stand without its scheme."""
    from urllib.parse import urlsplit  # noqa: PLC0415

    try:
        parts = urlsplit(url if "://" in url else f"//{url}")
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _credentials(url: str) -> tuple[str | None, str | None]:
    """As whom to connect where the address does not say: what the settings say, by default the operator."""
    from runlane.hosting.settings import CommonSettings  # noqa: PLC0415
    from runlane_contracts.access import OPERATOR  # noqa: PLC0415

    if _user_in(url) is not None:
        return None, None
    settings = CommonSettings()
    return settings.broker_user(OPERATOR), settings.broker_password


def _inbox_prefix(url: str, user: str | None) -> str | None:
    from runlane_contracts.access import inbox_prefix  # noqa: PLC0415

    who = user or _user_in(url)
    return inbox_prefix(who) if who else None


def _user_in(url: str) -> str | None:
    from urllib.parse import urlsplit  # noqa: PLC0415

    return urlsplit(url.partition(",")[0]).username


def linked(verb: Callable[..., Awaitable[int | None]]) -> Callable[..., None]:
    """Give a verb the shared options as `link: Link`, and run it. What it returns is the exit code."""

    @click.option("--url", envvar="RUNLANE_URL", help="Where Runlane serves. Default: the state directory says.")
    @click.option("--token", envvar="RUNLANE_TOKEN", help="API key or JWT. Default: the state directory's.")
    @click.option(
        "--state-dir", type=click.Path(path_type=Path), default=DEFAULT_STATE_DIR, show_default=True,
        help="Of the `runlane up` to talk to.",
    )  # fmt: skip
    @click.option("--tenant", default="demo", show_default=True, help="As whom, among the state directory's tenants.")
    @click.option("--json", "as_json", is_flag=True, help="One JSON object a line on stdout.")
    @click.pass_context
    @wraps(verb)
    def run(
        ctx: click.Context, /, *, url: str | None, token: str | None, state_dir: Path, tenant: str, as_json: bool,
        **options: Any,
    ) -> None:  # fmt: skip
        link = Link(url or None, token or None, state_dir, tenant, as_json)
        ctx.exit(_run(verb(link=link, **options)) or 0)

    return run


def _run(work: Awaitable[T]) -> T:
    async def main() -> T:
        return await work

    return asyncio.run(main())


async def resolve_run(transport: "HttpTransport", run: str) -> str:
    """A run id; `latest` is the newest run. Raises Failure."""
    if run != "latest":
        if not is_id(run):
            raise Failure("run_not_found", f"{printable(run)!r} is no run id")
        return run
    listed = await transport.get_json("/v1/runs", {"limit": 1})
    if not listed["runs"]:
        raise Failure("run_not_found", "there is no run yet")
    return str(listed["runs"][0]["run_id"])
