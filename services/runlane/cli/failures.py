"""How a verb ends that cannot do what it was asked. Exit codes: 1 refused or failed, 2 usage, 3 unreachable.

What a failure says goes to stderr, as a line for people, or, with --json, as one JSON object; stdout has results only,
so that a program that reads it from a pipe never takes a failure for one.
"""

import contextlib
import os
import sys
from typing import IO, Any

import click

REFUSED = 1
UNREACHABLE = 3
INTERRUPTED = 130
"""What a shell expects of a program that Ctrl-C ended."""
NOBODY_READS = 141
"""What a shell expects of a program whose output goes nowhere any more, as in `runlane runs | head -1`."""


class Failure(click.ClickException):
    """Ends the verb. `code` is stable, `message` is for people."""

    def __init__(self, code: str, message: str, *, exit_code: int = REFUSED, retryable: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.exit_code = exit_code  # type: ignore[misc]
        self.retryable = retryable

    def show(self, file: IO[Any] | None = None) -> None:
        """Say what happened, as the last line."""
        click.echo(f"runlane: {_named(self.code, self.format_message())}", file=file, err=file is None)


class ForPrograms(click.ClickException):
    """Any failure, said as JSON: `{"code", "detail", "retryable", "exit_code"}`."""

    def __init__(self, failure: click.ClickException) -> None:
        super().__init__(failure.message)
        self.exit_code = failure.exit_code  # type: ignore[misc]
        self._body: dict[str, Any] = {
            "code": failure.code if isinstance(failure, Failure) else "usage",
            "detail": failure.format_message(),
            "retryable": isinstance(failure, Failure) and failure.retryable,
            "exit_code": failure.exit_code,
        }

    def show(self, file: IO[Any] | None = None) -> None:
        """Say what happened, as the last line."""
        from runlane_contracts.codec import encode  # noqa: PLC0415 - only when something failed

        click.echo(encode(self._body).decode(), file=file, err=file is None)


def unreachable(message: str) -> Failure:
    """There is nothing to talk to, or no answer; asking again may help."""
    return Failure("unreachable", message, exit_code=UNREACHABLE, retryable=True)


def nothing_runs(where: str) -> Failure:
    """Nobody answers where the verb was pointed."""
    return unreachable(f"nothing runs here ({where}): start it with `runlane up`")


def failure_of(exc: BaseException) -> Failure | None:
    """What an error means on the command line; None for a fault of ours that should show its traceback."""
    # Imported when something failed: a verb that works does not pay for it.
    from runlane.client.errors import RequestRefused, RunlaneError, Unreachable  # noqa: PLC0415
    from runlane.kernel.errors import KernelError, Retryable  # noqa: PLC0415

    match exc:
        case Failure():
            return exc
        case Unreachable() | Retryable():
            return unreachable(str(exc))
        case RunlaneError():
            return Failure(exc.code, str(exc), retryable=isinstance(exc, RequestRefused) and exc.retryable)
        case KernelError():
            return Failure("failed", str(exc))
        case OSError():
            return Failure("os_error", str(exc))
        case UnicodeError():
            return Failure("usage", f"not text: {exc}", exit_code=click.UsageError.exit_code)
        case BaseExceptionGroup():
            return _failure_of_all(exc)
        case _:
            return None


def _failure_of_all(group: BaseExceptionGroup[BaseException]) -> Failure | None:
    """What tasks that fail together fail of; a fault among them is not hidden behind the others."""
    failures = [failure_of(one) for one in group.exceptions]
    return None if None in failures else failures[0]


def nobody_reads(exc: BaseException) -> bool:
    """Whether what ended the verb is that its output is not read any more."""
    if isinstance(exc, BaseExceptionGroup):
        return any(nobody_reads(one) for one in exc.exceptions)
    return isinstance(exc, BrokenPipeError)


def let_go_of_stdout() -> None:
    """What could not be written is not tried again at the exit, which would complain, and end with 120."""
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _named(code: str, text: str) -> str:
    return text if text.startswith(code) else f"{code}: {text}"
