"""A run drawn in place on a terminal, and the keys that answer what it asks."""

import asyncio
import sys
from types import TracebackType
from typing import Any, Protocol, Self, assert_never

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from runlane.cli.keyboard import Choice, Chosen, keys_of_terminal
from runlane.cli.timeline import body, footer, header, laid_out
from runlane.client.commands import ActionOutcome, Applied, Declined, Held, Unknown
from runlane.client.reader import Connection
from runlane.client.selectors import open_approvals, running_tools
from runlane.client.state import RunState
from runlane.client.transports.ports import Item
from runlane.kernel.clock import Now, utc_now

REFRESH_S = 0.1
TICK_S = 1.0
"""How often elapsed times go on where nothing else changes."""


class Decides(Protocol):
    """Where decisions go. `RunActions`, in production."""

    async def resolve_approval(
        self, approval_id: str, decision: str, *, expected_version: int | None, action_digest: str | None
    ) -> ActionOutcome:
        """Decide, for exactly the action that was shown."""
        ...


class Screen:
    """The run: timeline, running tools with their time, previews in place, open approvals with their keys.

    What is drawn at the end stays on the terminal.
    """

    def __init__(self, run_id: str, actions: Decides, *, now: Now = utc_now) -> None:
        self.state: RunState | None = RunState(run_id)
        self._state = self.state
        self._actions = actions
        self._now = now
        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._connection, self._reason = Connection.CONNECTING, ""
        self._choice: Choice | None = Choice() if sys.stdin.isatty() else None
        self._dirty = asyncio.Event()
        self._left = asyncio.Event()
        self._keys = keys_of_terminal(self._pressed)
        self._running: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._live.start()
        self._keys.__enter__()
        self._start(self._draw())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keys.__exit__(None, None, None)
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._live.stop()
        for line in self._lines(None):
            self._console.print(line)

    async def left(self) -> None:
        """Returns when somebody wants to leave."""
        await self._left.wait()

    def show(self, item: Item, cursor: str | None, key: str | None) -> None:  # noqa: ARG002 - people do not need them
        """Take notice that the state took one item; the next refresh shows it."""
        self._dirty.set()

    def on_connection(self, connection: Connection, reason: str) -> None:
        """Show it in the header."""
        self._connection, self._reason = connection, reason
        self._dirty.set()

    # -- keys ---------------------------------------------------------------------------------------------

    def _pressed(self, key: str) -> None:
        choice = self._choice
        if choice is None:
            return
        if key in "qQ" and choice.asked is None:
            self._left.set()
            return
        choice.see(open_approvals(self._state.data))
        chosen = choice.press(key)
        if chosen is not None:
            choice.sending = True
            self._start(self._send(choice, chosen))
        self._dirty.set()

    def _start(self, work: Any) -> None:
        self._running = [task for task in self._running if not task.done()]
        self._running.append(asyncio.ensure_future(work))

    async def _send(self, choice: Choice, chosen: Chosen) -> None:
        asked = chosen.approval
        choice.said = "sending …"
        try:
            outcome = await self._actions.resolve_approval(
                asked["id"], chosen.decision,
                expected_version=asked.get("version"), action_digest=asked.get("action_digest") or None,
            )  # fmt: skip
            choice.said = f"{asked['id']}: {_words(outcome, chosen)}"
        finally:
            choice.sending = False
            self._dirty.set()

    # -- drawing ------------------------------------------------------------------------------------------

    async def _draw(self) -> None:
        while True:
            self._dirty.clear()
            self._live.update(Group(*self._lines(self._console.height - 2)), refresh=True)
            await asyncio.sleep(REFRESH_S)
            try:
                async with asyncio.timeout(TICK_S if self._has_clocks() else None):
                    await self._dirty.wait()
            except TimeoutError:
                continue

    def _has_clocks(self) -> bool:
        return bool(running_tools(self._state.data) or open_approvals(self._state.data))

    def _lines(self, height: int | None) -> list[Text]:
        """All of it; or as much of its end as `height` lines hold, with header and footer always there."""
        now = self._now()
        top = header(self._state, self._connection, self._reason)
        below = footer(self._state, None if height is None else self._choice)
        blocks = body(self._state, now=now)
        wrapped = [line for block in blocks for line in laid_out(block, self._console, self._console.width)]
        if height is None:
            return [top, *wrapped, *below]
        room = max(1, height - 1 - len(below))
        return [top, *wrapped[-room:], *below]


def _words(outcome: ActionOutcome, chosen: Chosen) -> str:
    match outcome:
        case Applied():
            return chosen.decision
        case Held():
            return "accepted; it applies once somebody drives the run"
        case Declined(code, _detail, recorded):
            return code if recorded is None else f"{code} (recorded: {recorded.get('decision', '')})"
        case Unknown(detail):
            return f"no answer, it may have taken effect: {detail}"
        case _:
            assert_never(outcome)
