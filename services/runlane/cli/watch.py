"""`runlane watch`: follow a run as it happens."""

import asyncio
import sys
from types import TracebackType
from typing import Any, Protocol, Self

import click

from runlane.cli.failures import Failure
from runlane.cli.link import Link, linked, resolve_run
from runlane.cli.output import emit, say
from runlane.client.errors import ContractViolation
from runlane.client.reader import Connection, RunReader
from runlane.client.state import RunState
from runlane.client.transports.http import HttpTransport
from runlane.client.transports.ports import Item
from runlane_contracts.envelope import Fact
from runlane_contracts.previews import Preview, PreviewGap
from runlane_contracts.reducer import SequenceGap
from runlane_contracts.resume import End, Hello, Outcome, SnapshotFrame, Synced

REFRESH_S = 0.1


@click.command()
@click.argument("run")
@click.option("--cursor", help="Go on after what this cursor stands for.")
@click.option(
    "--from", "from_", type=click.Choice(["start", "snapshot", "now"]), help="Where to begin without a cursor."
)
@click.option("--previews/--no-previews", default=True, show_default=True, help="Show text while it is written.")
@linked
async def watch(link: Link, run: str, cursor: str | None, from_: Any, previews: bool) -> int:  # noqa: FBT001
    """Follow RUN until it is over; `latest` is the newest. Leaving with Ctrl-C changes nothing for the run."""
    async with link.http() as transport:
        run_id = await resolve_run(transport, run)
        view = _view_for(link, run_id)
        reader = RunReader(
            transport, run_id, cursor=cursor, from_=from_, previews=previews, on_connection=view.on_connection
        )
        try:
            async with view, reader:
                await _follow(transport, reader, view)
        except asyncio.CancelledError:
            say(f"left; the run goes on. Come back with: runlane watch {run_id}")
            raise
    return 0


async def _follow(transport: HttpTransport, reader: RunReader, view: "View") -> None:
    async for item in reader:
        if isinstance(item, Hello) and view.state is not None:
            await _catch_up(transport, view.state, item)
        view.show(item, _cursor_of(item, reader))


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

    def show(self, item: Item, cursor: str | None) -> None:
        """Take one item."""
        ...

    def on_connection(self, connection: Connection, reason: str) -> None:
        """The connection changed."""
        ...


def _view_for(link: Link, run_id: str) -> View:
    if link.json:
        return JsonView()
    return ScreenView(run_id) if sys.stdout.isatty() else LineView(run_id)


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

    def on_connection(self, connection: Connection, reason: str) -> None:
        """Say when the connection is lost, and why. A failure for good is said at the end."""
        if connection is Connection.RECONNECTING:
            say(f"runlane: {connection}: {reason}")


class JsonView(_Quiet):
    """Each frame as ``{"event", "id", "data"}``, as on the wire."""

    def show(self, item: Item, cursor: str | None) -> None:
        """Print one frame."""
        frame: dict[str, Any] = {"event": _NAMES[type(item)]}
        if isinstance(item, Fact | SnapshotFrame):
            frame["id"] = cursor
        emit(frame | {"data": item})


class LineView(_Quiet):
    """A line per fact, where there is no screen to draw on."""

    def __init__(self, run_id: str) -> None:
        self.state = RunState(run_id)

    def show(self, item: Item, cursor: str | None) -> None:  # noqa: ARG002 - people do not need it
        """Print what a person should see of it."""
        from runlane.cli.timeline import body, fact_line, footer, header  # noqa: PLC0415

        assert self.state is not None  # noqa: S101 - set above
        key = _apply(self.state, item)
        if isinstance(item, SnapshotFrame):
            click.echo(header(self.state, Connection.CONNECTED, "").plain)
            for text in body(self.state):
                click.echo(text.plain)
        elif isinstance(item, Fact):
            click.echo(fact_line(item, self.state.data["items"].get(key or "")))
        elif isinstance(item, End):
            for line in footer(self.state):
                click.echo(line.plain)


class ScreenView:
    """The run drawn in place: timeline, previews, open approvals, connection."""

    def __init__(self, run_id: str) -> None:
        from rich.console import Console  # noqa: PLC0415
        from rich.live import Live  # noqa: PLC0415

        self.state: RunState | None = RunState(run_id)
        self._state = self.state
        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._connection, self._reason = Connection.CONNECTING, ""
        self._dirty = True
        self._drawing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._live.start()
        self._drawing = asyncio.ensure_future(self._draw())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawing is not None:
            self._drawing.cancel()
        self._live.stop()
        for line in self._lines(None):
            self._console.print(line)

    def show(self, item: Item, cursor: str | None) -> None:  # noqa: ARG002 - people do not need it
        """Take one item; the next refresh shows it."""
        _apply(self._state, item)
        self._dirty = True

    def on_connection(self, connection: Connection, reason: str) -> None:
        """Show it in the header."""
        self._connection, self._reason, self._dirty = connection, reason, True

    async def _draw(self) -> None:
        from rich.console import Group  # noqa: PLC0415

        while True:
            if self._dirty:
                self._dirty = False
                self._live.update(Group(*self._lines(self._console.height - 2)), refresh=True)
            await asyncio.sleep(REFRESH_S)

    def _lines(self, height: int | None) -> list[Any]:
        from runlane.cli.timeline import body, footer, header  # noqa: PLC0415

        top, below = header(self._state, self._connection, self._reason), footer(self._state)
        blocks = body(self._state)
        if height is None:
            return [top, *blocks, *below]
        wrapped = [line for block in blocks for line in block.wrap(self._console, self._console.width)]
        room = max(1, height - 1 - len(below))
        return [top, *wrapped[-room:], *below]


def _apply(state: RunState, item: Item) -> str | None:
    try:
        return state.apply(item)
    except SequenceGap as gap:
        raise ContractViolation(str(gap)) from gap
    except ContractViolation as exc:
        raise Failure(f"{exc}; update runlane") from exc
