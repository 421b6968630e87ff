"""A run as lines on a terminal: what happened, what is happening, what it waits for."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.text import Text

from runlane.cli.output import clock, printable, short
from runlane.cli.runs import COLORS
from runlane.client.overlay import PreviewEntry
from runlane.client.reader import Connection
from runlane.client.selectors import open_approvals, open_inputs, run as run_of, timeline
from runlane.client.state import RunState
from runlane_contracts.codec import decode_json, parse_timestamp
from runlane_contracts.envelope import Fact, is_erased
from runlane_contracts.events import ERASED_ALL, LogCompacted
from runlane_contracts.reducer import OPEN_ITEM_STATUS

if TYPE_CHECKING:
    from rich.console import Console

    from runlane.cli.keyboard import Choice

MARKS = {
    "completed": ("✓", "green"), "approved": ("✓", "green"), "provided": ("✓", "green"), "modified": ("✓", "green"),
    "failed": ("✗", "red"), "rejected": ("✗", "red"), "expired": ("✗", "red"), "revoked": ("✗", "red"),
    "cancelled": ("–", "dim"), "outcome_unknown": ("?", "magenta"), "waiting": ("?", "yellow"),
}  # fmt: skip
OPEN_MARK = ("…", "cyan")
MARGIN = 11
"""Where text begins, behind its time and its mark."""
_NARROWEST = 20
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


def body(state: RunState, *, now: datetime | None = None) -> list[Text]:
    """One block per item, with its preview in place; then previews of items that no fact has named yet.

    Completed calls of one tool in a row are one block with a count: failures and what still runs never are. With
    `now`, what runs says for how long.
    """
    shown: set[str] = set()
    blocks: list[Text] = []
    for items in _folded([one for one in timeline(state.data) if one["kind"] not in _HIDDEN]):
        if len(items) > 1:
            blocks.append(_folded_block(items))
            continue
        item = items[0]
        entry = state.overlay.of_item(item["kind"], item["id"])
        if entry is not None:
            shown.add(entry.preview_id)
        blocks.append(block(item, entry, now=now))
    unnamed = [entry for entry in state.overlay.entries() if entry.preview_id not in shown]
    return blocks + [block({"kind": one.kind, "id": one.id, "status": "started"}, one) for one in unnamed]


def _folded(items: Sequence[Item]) -> list[list[Item]]:
    groups: list[list[Item]] = []
    for item in items:
        if groups and len(groups[-1]) < MAX_FOLDED and _is_like(groups[-1][-1], item):
            groups[-1].append(item)
        else:
            groups.append([item])
    return [part for group in groups for part in ([group] if len(group) >= FOLD_FROM else [[one] for one in group])]


def _is_like(one: Item, other: Item) -> bool:
    return all(
        item["kind"] == "tool" and item["status"] == "completed" and item.get("name") == one.get("name")
        for item in (one, other)
    )


def _folded_block(items: list[Item]) -> Text:
    mark, style = MARKS["completed"]
    text = Text()
    _put(text, f"{clock(items[0].get('started_at')):>8} ", style="dim")
    _put(text, f"{mark} ", style=style)
    _put(text, f"{items[0].get('name', '')}", style="bold")
    _put(text, f"  ×{len(items)}", style="dim")
    _put(text, f"  last ({short(items[-1].get('arguments', ''), 100)})", style="dim")
    return text


def _approvals(state: RunState, choice: "Choice | None") -> list[Text]:
    run_id = str(run_of(state.data)["run_id"])
    waiting = open_approvals(state.data)
    if choice is None:
        return [
            _line(f"? {one.get('description', '')}  →  runlane approve {run_id} {one['id']}", "bold yellow")
            for one in waiting
        ]
    choice.see(waiting)
    lines = [_asked(one, is_current=one["id"] == choice.selected, many=len(waiting) > 1) for one in waiting]
    if choice.asked is not None:
        verb = "approve" if choice.asked.decision == "approved" else "reject"
        about = short(choice.asked.approval.get("description", ""), 120)
        lines.append(_line(f"  {verb} “{about}”?  y yes  any other key no", "bold reverse"))
    elif choice.said:
        lines.append(_line(f"  {choice.said}", "yellow"))
    return lines


def _asked(approval: Item, *, is_current: bool, many: bool) -> Text:
    text = Text()
    _put(text, f"{'▸' if is_current else ' '} ? {short(approval.get('description', ''), 160)}", style="bold yellow")
    if approval.get("risk") not in _NO_RISK:
        _put(text, f"  risk {approval['risk']}", style="dim")
    if approval.get("data") is not None:
        _put(text, f"  {short(approval['data'], 120)}", style="dim")
    if is_current:
        _put(text, "   a approve  x reject" + ("  n next" if many else ""), style="bold")
    return text


def footer(state: RunState, choice: "Choice | None" = None) -> list[Text]:
    """What the run waits for, with the keys of `choice` or the command that answers it; how it ended."""
    run = run_of(state.data)
    lines = _approvals(state, choice)
    lines += [_line(f"? {one.get('prompt', '')}  ({one['id']})", "bold yellow") for one in open_inputs(state.data)]
    if state.status == "lost":
        lines.append(_line("no worker holds this run just now", "red"))
    if state.status == "failed":
        error = run.get("error") or {}
        lines.append(_line(f"failed: {error.get('code', '')} {short(error.get('message', ''), 200)}", "red"))
    if state.status == "completed" and run.get("output") is not None:
        lines.append(_line(f"output: {short(run['output'], 300)}", "blue"))
    lines += [
        _line(_taken_out(mark), "magenta") for mark in state.data["marks"] if mark.get("type") == LogCompacted.TYPE
    ]
    if state.is_terminal:  # the same in every client, and in `GET …/snapshot`
        lines.append(_line(f"state {state.checksum()} through #{state.sequence}", "dim"))
    return lines


def _line(words: str, style: str) -> Text:
    text = Text()
    _put(text, words, style)
    return text


def _put(text: Text, words: str, style: str = "") -> None:
    """Append, without what an agent's words could do to the terminal."""
    text.append(printable(words), style=style)


def block(item: Item, entry: PreviewEntry | None, *, now: datetime | None = None) -> Text:
    """One item."""
    mark, style = MARKS.get(item["status"], OPEN_MARK)
    text = Text()
    _put(text, f"{clock(item.get('started_at')):>8} ", style="dim")
    _put(text, f"{mark} ", style=style)
    _DRAW.get(item["kind"], _draw_other)(text, item)
    if now is not None and item["kind"] in _TIMED and item["status"] in OPEN_ITEM_STATUS:
        _put(text, f"  {_elapsed(item, now)}", style="cyan")
    if entry is not None:
        _draw_preview(text, entry)
    return text


def _elapsed(item: Item, now: datetime) -> str:
    """How long an item has been going on."""
    try:
        seconds = int(max(0.0, (now - parse_timestamp(str(item.get("started_at")))).total_seconds()))
    except ValueError:
        return ""
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}" if minutes else f"{seconds} s"


def _draw_preview(text: Text, entry: PreviewEntry) -> None:
    if isinstance(entry.data, str):
        _put(text, "\n" + " " * MARGIN)
        _put(text, entry.data[-2000:].replace("\n", "\n" + " " * MARGIN), style="italic")
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
        _put(text, written.replace("\n", "\n" + " " * MARGIN))


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
    if item.get("risk") not in _NO_RISK:
        _put(text, f"  risk {item['risk']}", style="dim")
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
_TIMED = frozenset({"tool", "approval", "input", "task"})
_NO_RISK = (None, "", "unknown")
FOLD_FROM = 3
MAX_FOLDED = 500


def laid_out(block: Text, console: "Console", width: int) -> list[Text]:
    """A block as lines of the screen; what does not fit goes on below its text, not below its time."""
    lines: list[Text] = []
    for line in block.split("\n", allow_blank=True):
        head, rest = line[:MARGIN], line[MARGIN:]
        pieces = rest.wrap(console, max(_NARROWEST, width - MARGIN)) if rest.plain else [rest]
        lines += [Text.assemble(head if not number else " " * MARGIN, piece) for number, piece in enumerate(pieces)]
    return lines


def _taken_out(mark: Mapping[str, Any]) -> str:
    """What was archived or erased, and by which policy or for which reason."""
    facts = f"#{mark.get('from_sequence', '')}–#{mark.get('to_sequence', '')}"
    if mark.get("reason") != "erasure":
        return f"archived: {facts} ({short(mark.get('policy', ''), 80)})"
    erased = mark.get("erased")
    keys = erased if isinstance(erased, list) else []
    what = "all content" if ERASED_ALL in keys else short(", ".join(map(str, keys)), 80)
    return f"erased: {what} of {facts} ({short(mark.get('policy', ''), 80)})"


def fact_line(fact: Fact, item: Item | None) -> str:
    """One fact on one line, for where there is no screen to draw on."""
    at = clock(fact.recorded_at or fact.occurred_at)
    about = "" if item is None else Text.assemble("  ", _brief(item)).plain
    if is_erased(fact):
        about = "  (erased)"
    elif fact.type == LogCompacted.TYPE:
        about = "  " + _taken_out(decode_json(fact.payload))
    return printable(f"{at} #{fact.sequence:<4} {fact.type}{about}")


def _brief(item: Item) -> Text:
    text = Text()
    _DRAW.get(item["kind"], _draw_other)(text, item)
    return Text(short(text.plain, 160))
