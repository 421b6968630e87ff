"""How a verb says what became of its command, or of the run that it recorded."""

from typing import TYPE_CHECKING, assert_never

import click

from runlane.cli.failures import REFUSED, UNREACHABLE, Failure, unreachable
from runlane.cli.link import Link
from runlane.cli.output import emit, say
from runlane.client.commands import ActionOutcome, Applied, Declined, Held, Unknown

if TYPE_CHECKING:
    from runlane.adapters.live import Recorded


def report(link: Link, outcome: ActionOutcome, done: str) -> None:
    """Print the outcome. Raises Failure where it has no effect, or nobody knows."""
    if link.json:
        emit({"outcome": type(outcome).__name__.lower(), **_fields(outcome)})
    match outcome:
        case Applied():
            if not link.json:
                click.echo(done)
        case Held(command_id):
            say(f"accepted as {command_id}; it applies once somebody drives the run")
        case Declined(code, detail, recorded):
            extra = "" if recorded is None else f" (recorded: {recorded.get('decision', recorded)})"
            raise Failure(code, f"{detail}{extra}", exit_code=UNREACHABLE if code == "unreachable" else REFUSED)
        case Unknown(detail):
            raise unreachable(f"no answer; it may have taken effect: {detail}")
        case _:
            assert_never(outcome)


def require_completed(link: Link, recorded: "Recorded") -> None:
    """Raises Failure for a run that failed, or was cancelled."""
    if not recorded.completed:
        how = (recorded.ended_as or "unfinished").removeprefix("run.")
        raise Failure(
            f"run_{how}", f"{recorded.run_id} is {how}; look at it with: {link.hint(f'watch {recorded.run_id}')}"
        )


def _fields(outcome: ActionOutcome) -> dict[str, object]:
    fields = {name: getattr(outcome, name) for name in type(outcome).__slots__}
    return {name: value for name, value in fields.items() if value is not None}
