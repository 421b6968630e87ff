"""`runlane watch`: follow a run as it happens."""

import asyncio
import sys
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Protocol, Self

import click

from runlane.cli.failures import Failure
from runlane.cli.link import Link, linked, resolve_run
from runlane.cli.output import emit, say
from runlane.client.commands import RunActions
from runlane.client.errors import ContractViolation
from runlane.client.reader import Connection, RunReader
from runlane.client.state import RunState
from runlane.client.transports.http import HttpTransport
from runlane.client.transports.ports import Item
from runlane.client.transports.ws import WebSocketTransport
from runlane_contracts.envelope import Fact
from runlane_contracts.previews import Preview, PreviewGap
from runlane_contracts.reducer import SequenceGap
from runlane_contracts.resume import End, Hello, Outcome, SnapshotFrame, Synced

_LEFT = "left; the run goes on. Come back with: {}"


@click.command()
@click.argument("run")
@click.option("--cursor", help="Go on after what this cursor stands for.")
@click.option(
    "--from", "from_", type=click.Choice(["start", "snapshot", "now"]), help="Where to begin without a cursor."
)
@click.option("--previews/--no-previews", default=True, show_default=True, help="Show text while it is written.")
@click.option(
    "--over", type=click.Choice(["sse", "websocket"]), default="sse", show_default=True,
    help="Behind a proxy that lets only one of them through.",
)  # fmt: skip
@linked
async def watch(link: Link, run: str, cursor: str | None, from_: Any, previews: bool, over: str) -> int:  # noqa: FBT001
    """Follow RUN until it is over; `latest` is the newest. Leaving, with q or Ctrl-C, changes nothing for the run.

    On a terminal, keys answer what the run asks: a approves, x rejects, and y confirms either.
    """
    async with link.http() as transport:
        run_id = await resolve_run(transport, run)
        view = _view_for(link, run_id, transport)
        source = WebSocketTransport(*link.address()) if over == "websocket" else transport
        reader = RunReader(
            source, run_id, cursor=cursor, from_=from_, previews=previews, on_connection=view.on_connection
        )
        try:
            async with view, reader:
                await _until_left(_follow(transport, reader, view), view)
        except asyncio.CancelledError:
            say(_LEFT.format(link.hint(f"watch {run_id}")))
            raise
    if view.state is not None and not view.state.is_terminal:
        say(_LEFT.format(link.hint(f"watch {run_id}")))
    return 0


async def _until_left(following: Coroutine[Any, Any, None], view: "View") -> None:
    follow, leave = asyncio.ensure_future(following), asyncio.ensure_future(view.left())
    try:
        await asyncio.wait([follow, leave], return_when=asyncio.FIRST_COMPLETED)
        if follow.done():
            await follow
    finally:
        follow.cancel()
        leave.cancel()
        await asyncio.gather(follow, leave, return_exceptions=True)


async def _follow(transport: HttpTransport, reader: RunReader, view: "View") -> None:
    async for item in reader:
        if isinstance(item, Hello) and view.state is not None:
            await _catch_up(transport, view.state, item)
        key = None if view.state is None else _apply(view.state, item)
        view.show(item, _cursor_of(item, reader), key)


async def _catch_up(transport: HttpTransport, state: RunState, hello: Hello) -> None:
    """A suffix needs its base: fetch the state at which it begins, unless we hold it."""
    at = hello.baseline.sequence
    if hello.outcome in (Outcome.SNAPSHOT, Outcome.RESET_REQUIRED) or at <= state.sequence:
        return
    snapshot = await transport.get_json(f"/v1/runs/{hello.run_id}/snapshot", {"at_sequence": at})
    state.restore(snapshot["state"])


def _cursor_of(item: Item, reader: RunReader) -> str | None:
    if isinstance(item, Fact | SnapshotFrame):
        return reader.pending_cursor
    return item.cursor if isinstance(item, End) else None


# -- views -----------------------------------------------------------------------------------------------------


class View(Protocol):
    """Shows items. `state` is None where nobody folds."""

    state: RunState | None

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, item: Item, cursor: str | None, key: str | None) -> None:
        """Show one item that the state has taken; `key` is the run item that it changed."""
        ...

    def on_connection(self, connection: Connection, reason: str) -> None:
        """The connection changed."""
        ...

    async def left(self) -> None:
        """Returns when somebody wants to leave."""
        ...


def _view_for(link: Link, run_id: str, transport: HttpTransport) -> View:
    if link.json:
        return JsonView()
    if not sys.stdout.isatty():
        return LineView(run_id)
    from runlane.cli.screen import Screen  # noqa: PLC0415 - only where there is one

    return Screen(run_id, RunActions(transport, run_id))


_NAMES: dict[type, str] = {
    Hello: "hello", SnapshotFrame: "snapshot", Fact: "fact", Preview: "preview", PreviewGap: "preview_gap",
    Synced: "synced", End: "end",
}  # fmt: skip


class _Quiet:
    state: RunState | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        return None

    async def left(self) -> None:
        """Who reads lines leaves with Ctrl-C."""
        await asyncio.Event().wait()

    def on_connection(self, connection: Connection, reason: str) -> None:
        """Say when the connection is lost, and why. A failure for good is said at the end."""
        if connection is Connection.RECONNECTING:
            say(f"runlane: {connection}: {reason}")


class JsonView(_Quiet):
    """Each frame as ``{"event", "id", "data"}``, as on the wire."""

    def show(self, item: Item, cursor: str | None, key: str | None) -> None:  # noqa: ARG002 - nobody folds
        """Print one frame."""
        frame: dict[str, Any] = {"event": _NAMES[type(item)]}
        if isinstance(item, Fact | SnapshotFrame):
            frame["id"] = cursor
        emit(frame | {"data": item})


class LineView(_Quiet):
    """A line per fact, where there is no screen to draw on."""

    def __init__(self, run_id: str) -> None:
        self.state = RunState(run_id)

    def show(self, item: Item, cursor: str | None, key: str | None) -> None:  # noqa: ARG002 - people do not need it
        """Print what a person should see of it."""
        from runlane.cli.timeline import body, fact_line, footer, header  # noqa: PLC0415

        assert self.state is not None  # noqa: S101 - set above
        if isinstance(item, SnapshotFrame):
            click.echo(header(self.state, Connection.CONNECTED, "").plain)
            for text in body(self.state):
                click.echo(text.plain)
        elif isinstance(item, Fact):
            click.echo(fact_line(item, self.state.data["items"].get(key or "")))
        elif isinstance(item, End):
            for line in footer(self.state):
                click.echo(line.plain)


def _apply(state: RunState, item: Item) -> str | None:
    try:
        return state.apply(item)
    except SequenceGap as gap:
        raise ContractViolation(str(gap)) from gap
    except ContractViolation as exc:
        raise Failure(exc.code, f"{exc}; update runlane") from exc
