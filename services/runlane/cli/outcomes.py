"""How a verb says what became of its command."""

from typing import assert_never

import click

from runlane.cli.failures import REFUSED, UNREACHABLE
from runlane.cli.link import Link
from runlane.cli.output import emit, say
from runlane.client.commands import ActionOutcome, Applied, Declined, Held, Unknown


def report(link: Link, outcome: ActionOutcome, done: str) -> int:
    """Print the outcome; the exit code."""
    if link.json:
        emit({"outcome": type(outcome).__name__.lower(), **_fields(outcome)})
    match outcome:
        case Applied():
            if not link.json:
                click.echo(done)
            return 0
        case Held(command_id):
            say(f"accepted as {command_id}; it applies once somebody drives the run")
            return 0
        case Declined(code, detail, recorded):
            extra = "" if recorded is None else f" (recorded: {recorded.get('decision', recorded)})"
            say(f"runlane: {code}: {detail}{extra}")
            return UNREACHABLE if code == "unreachable" else REFUSED
        case Unknown(detail):
            say(f"runlane: no answer; it may have taken effect: {detail}")
            return UNREACHABLE
        case _:
            assert_never(outcome)


def _fields(outcome: ActionOutcome) -> dict[str, object]:
    fields = {name: getattr(outcome, name) for name in type(outcome).__slots__}
    return {name: value for name, value in fields.items() if value is not None}
