"""The record of a run as rows on a terminal: the rows that `GET /timeline` gives."""

from typing import Any

from rich.text import Text

from runlane.cli.output import clock, printable, short
from runlane.cli.timeline import MARKS, OPEN_MARK
from runlane_contracts.timeline import TimelineRow

_FAILED = ("✗", "red")


def row_line(row: TimelineRow) -> Text:
    """One row on one line: when, how it stands, what, how many, and which facts."""
    mark, style = _mark(row)
    text = Text()
    _put(text, f"{clock(row.started_at):>8} ", style="dim")
    _put(text, f"{mark} ", style=style)
    _put(text, f"{row.kind} {row.phase}", style="bold red" if row.failed else "bold")
    if row.name:
        _put(text, f"  {row.name}")
    if row.count > 1:
        _put(text, f" ×{row.count}", style="bold cyan")
    if row.error is not None:
        _put(text, f"  {row.error.code}: {short(row.error.message, 120)}", style="red")
    elif row.text:
        _put(text, f"  {short(row.text, 120)}", style="dim")
    _put(text, f"  {_sequences(row)}", style="dim")
    return text


def _mark(row: TimelineRow) -> tuple[str, str]:
    if row.failed:
        return _FAILED
    if row.open:
        return OPEN_MARK
    return MARKS.get(row.phase, ("·", "dim"))


def _sequences(row: TimelineRow) -> str:
    if row.first_sequence == row.last_sequence:
        return f"#{row.first_sequence}"
    dots = "–" if len(row.sequences) == row.last_sequence - row.first_sequence + 1 else "…"
    return f"#{row.first_sequence}{dots}{row.last_sequence}"


def _put(text: Text, words: Any, style: str = "") -> None:
    """Append, without what an agent's words could do to the terminal."""
    text.append(printable(str(words)), style=style)
