"""Exit codes: 0 done, 1 refused or failed with a named code, 2 usage, 3 unreachable."""

from typing import IO, Any

import click

REFUSED = 1
UNREACHABLE = 3


class Failure(click.ClickException):
    """Ends the verb with one line on stderr."""

    exit_code = REFUSED

    def show(self, file: IO[Any] | None = None) -> None:
        """Say what happened."""
        click.echo(f"runlane: {self.format_message()}", file=file, err=file is None)


class OutOfReach(Failure):
    """There is nothing to talk to."""

    exit_code = UNREACHABLE


def nothing_runs(where: str) -> Failure:
    """Nobody answers where the verb was pointed."""
    return OutOfReach(f"nothing runs here ({where}): start it with `runlane up`")


def failure_of(exc: Exception) -> Failure | None:
    """What an error of ours means on the command line; None for a fault that should show its traceback."""
    # Imported when something failed: a verb that works does not pay for it.
    from runlane.client.errors import RunlaneError, Unreachable  # noqa: PLC0415
    from runlane.kernel.errors import KernelError, Retryable  # noqa: PLC0415

    match exc:
        case Unreachable():
            return OutOfReach(f"unreachable: {exc}")
        case RunlaneError():
            return Failure(_named(exc.code, str(exc)))
        case Retryable():
            return OutOfReach(f"unreachable: {exc}")
        case KernelError():
            return Failure(_named("failed", str(exc)))
        case _:
            return None


def _named(code: str, text: str) -> str:
    return text if text.startswith(code) else f"{code}: {text}"
