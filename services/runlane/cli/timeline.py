"""A run as lines on a terminal: what happened, what is happening, what it waits for."""

from collections.abc import Callable
from typing import Any

from rich.text import Text

from runlane.cli.output import clock, printable, short
from runlane.cli.runs import COLORS
from runlane.client.overlay import PreviewEntry
from runlane.client.reader import Connection
from runlane.client.selectors import open_approvals, open_inputs, run as run_of, timeline
from runlane.client.state import RunState
from runlane_contracts.envelope import Fact

MARKS = {
    "completed": ("✓", "green"), "approved": ("✓", "green"), "provided": ("✓", "green"), "modified": ("✓", "green"),
    "failed": ("✗", "red"), "rejected": ("✗", "red"), "expired": ("✗", "red"), "revoked": ("✗", "red"),
    "cancelled": ("–", "dim"), "outcome_unknown": ("?", "magenta"), "waiting": ("?", "yellow"),
}  # fmt: skip
OPEN_MARK = ("…", "cyan")
_CONNECTION_STYLE = {
    Connection.CONNECTED: "green", Connection.RECONNECTING: "yellow", Connection.UNRECOVERABLE: "red",
    Connection.FAILED: "red",
}  # fmt: skip
_TROUBLE = frozenset({Connection.RECONNECTING, Connection.UNRECOVERABLE, Connection.FAILED})

Item = dict[str, Any]


def header(state: RunState, connection: Connection, reason: str) -> Text:
    """Which run, how it is, and how we are connected."""
    run = run_of(state.data)
    text = Text()
    _put(text, str(run["run_id"]), style="bold")
    _put(text, f"  {run.get('agent', '')}  ")
    _put(text, state.status, style=COLORS.get(state.status, ""))
    _put(text, f"  #{state.sequence}", style="dim")
    shown = reason if connection is Connection.CONNECTED and reason else connection  # "live", or not yet
    _put(text, f"  {shown}", style=_CONNECTION_STYLE.get(connection, "dim"))
    if connection in _TROUBLE and reason:
        _put(text, f"  {reason}", style="yellow")
    return text


def body(state: RunState) -> list[Text]:
    """One block per item, with its preview in place; then previews of items that no fact has named yet."""
    shown: set[str] = set()
    blocks: list[Text] = []
    for item in timeline(state.data):
        if item["kind"] in _HIDDEN:
            continue
        entry = state.overlay.of_item(item["kind"], item["id"])
        if entry is not None:
            shown.add(entry.preview_id)
        blocks.append(block(item, entry))
    unnamed = [entry for entry in state.overlay.entries() if entry.preview_id not in shown]
    return blocks + [block({"kind": one.kind, "id": one.id, "status": "started"}, one) for one in unnamed]


def footer(state: RunState) -> list[Text]:
    """What the run waits for, with the command that answers it; how it ended."""
    run = run_of(state.data)
    run_id = str(run["run_id"])
    lines = [
        _line(f"? {one.get('description', '')}  →  runlane approve {run_id} {one['id']}", "bold yellow")
        for one in open_approvals(state.data)
    ]
    lines += [_line(f"? {one.get('prompt', '')}  ({one['id']})", "bold yellow") for one in open_inputs(state.data)]
    if state.status == "lost":
        lines.append(_line("no worker holds this run just now", "red"))
    if state.status == "failed":
        error = run.get("error") or {}
        lines.append(_line(f"failed: {error.get('code', '')} {short(error.get('message', ''), 200)}", "red"))
    if state.status == "completed" and run.get("output") is not None:
        lines.append(_line(f"output: {short(run['output'], 300)}", "blue"))
    return lines


def _line(words: str, style: str) -> Text:
    text = Text()
    _put(text, words, style)
    return text


def _put(text: Text, words: str, style: str = "") -> None:
    """Append, without what an agent's words could do to the terminal."""
    text.append(printable(words), style=style)


def block(item: Item, entry: PreviewEntry | None) -> Text:
    """One item."""
    mark, style = MARKS.get(item["status"], OPEN_MARK)
    text = Text()
    _put(text, f"{clock(item.get('started_at')):>8} ", style="dim")
    _put(text, f"{mark} ", style=style)
    _DRAW.get(item["kind"], _draw_other)(text, item)
    if entry is not None:
        _draw_preview(text, entry)
    return text


def _draw_preview(text: Text, entry: PreviewEntry) -> None:
    if isinstance(entry.data, str):
        _put(text, "\n           ")
        _put(text, entry.data[-2000:].replace("\n", "\n           "), style="italic")
        _put(text, "▌", style="cyan")
    elif entry.data is not None:
        _put(text, f"  {short(entry.data)}", style="italic cyan")
    if entry.incomplete:
        _put(text, "  (parts are missing)", style="dim yellow")


def _draw_message(text: Text, item: Item) -> None:
    _put(text, f"{item.get('role', '')}  ", style="bold")
    content = item.get("content")
    if content is not None:
        written = content if isinstance(content, str) else short(content, 2000)
        _put(text, written.replace("\n", "\n           "))


def _draw_reasoning(text: Text, item: Item) -> None:
    _put(text, "thinks  ", style="bold dim")
    _put(text, short(item.get("summary") or item.get("content") or "", 400), style="dim")


def _draw_tool(text: Text, item: Item) -> None:
    _put(text, f"{item.get('name', item['id'])}", style="bold")
    _put(text, f"({short(item.get('arguments', ''), 120)})", style="dim")
    attempt = item.get("attempt", 1)
    if attempt > 1:
        _put(text, f"  attempt {attempt}", style="yellow")
    match item["status"]:
        case "completed":
            _put(text, f"  → {short(item.get('result') or item.get('content_ref') or '', 160)}")
        case "failed":
            error = item.get("error") or {}
            _put(text, f"  {error.get('code', '')}: {short(error.get('message', ''), 160)}", style="red")
        case "outcome_unknown":
            _put(text, "  nobody knows whether it took effect", style="magenta")
        case _:
            pass


def _draw_approval(text: Text, item: Item) -> None:
    _put(text, str(item.get("description", item["id"])), style="bold")
    _put(text, f"  risk {item.get('risk', '')}", style="dim")
    if item["status"] != "waiting":
        _put(text, f"  {item['status']} by {item.get('decided_by', '')}")


def _draw_input(text: Text, item: Item) -> None:
    _put(text, str(item.get("prompt", item["id"])), style="bold")
    if item.get("value") is not None:
        _put(text, f"  {short(item['value'])}")


def _draw_plan(text: Text, item: Item) -> None:
    _put(text, "plan  ", style="bold")
    _put(text, short(item.get("steps", ""), 300))


def _draw_other(text: Text, item: Item) -> None:
    title = item.get("title") or item.get("name") or item["id"]
    _put(text, f"{item['kind']}  ", style="bold")
    _put(text, f"{title}  {item['status']}")


_DRAW: dict[str, Callable[[Text, Item], None]] = {
    "message": _draw_message, "reasoning": _draw_reasoning, "tool": _draw_tool, "approval": _draw_approval,
    "input": _draw_input, "plan": _draw_plan,
}  # fmt: skip
_HIDDEN = frozenset({"turn", "session"})


def fact_line(fact: Fact, item: Item | None) -> str:
    """One fact on one line, for where there is no screen to draw on."""
    at = clock(fact.recorded_at or fact.occurred_at)
    about = "" if item is None else Text.assemble("  ", _brief(item)).plain
    return printable(f"{at} #{fact.sequence:<4} {fact.type}{about}")


def _brief(item: Item) -> Text:
    text = Text()
    _DRAW.get(item["kind"], _draw_other)(text, item)
    return Text(short(text.plain, 160))
