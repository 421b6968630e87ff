"""What can go wrong, and what to do about it.

    RunlaneError          `code` is stable, the text is for people
    ├── RequestRefused    the server said no, by name; the same request will be refused again unless `retryable`
    ├── LeaseLost         another may drive the run now: stop every side effect
    ├── Unreachable       no answer; if `sent`, nobody knows yet whether it took effect
    ├── RunCancelled      somebody asked that the run end: clean up and let this error pass
    ├── ContractViolation what arrived does not follow the protocol (a hole, no `hello`, garbage)
    ├── ToolCallFailed    a tool call of the agent failed, now or in an earlier attempt; `code` is the call's own
    ├── NonDeterministic  an agent that started anew did something else than before: its code is at fault
    └── AlreadyRan        an unsafe call that cannot be skipped was reached again: use `RunContext.call` for it

Codes are those of the protocol, plus `unreachable`, `cancelled`, `contract_violation`, `nondeterministic` and
`already_ran` of our own.
"""

from typing import Any

from msgspec import Struct


class ProblemBody(Struct, frozen=True, kw_only=True):
    """An `application/problem+json` body, read leniently: a newer server may know more codes than we do."""

    code: str = "internal"
    title: str = ""
    detail: str = ""
    status: int = 500
    retryable: bool = False
    index: int | None = None
    current_sequence: int | None = None
    recorded: dict[str, Any] | None = None
    snapshot: str | None = None
    retry_after_s: float | None = None


class RunlaneError(Exception):
    """Base of all of them."""

    code = "internal"


class RequestRefused(RunlaneError):
    """The server refused, by name. `problem` is what it said."""

    def __init__(self, problem: ProblemBody) -> None:
        super().__init__(f"{problem.code}: {problem.detail or problem.title}")
        self.problem = problem
        self.code = problem.code

    @property
    def retryable(self) -> bool:
        """Whether the very same request may succeed later."""
        return self.problem.retryable

    @property
    def retry_after_s(self) -> float | None:
        """How long the server asks to wait."""
        return self.problem.retry_after_s

    @property
    def recorded(self) -> dict[str, Any] | None:
        """What was decided before, when that is why."""
        return self.problem.recorded


class LeaseLost(RunlaneError):
    """The lease is gone, or could not be confirmed in time. Nothing left this process after that."""

    code = "lease_fenced"


class Unreachable(RunlaneError):
    """No answer came. `sent` is false when the request surely never left."""

    code = "unreachable"

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class RunCancelled(RunlaneError):
    """The run is to end at this boundary. Let it pass: the worker then states `run.cancelled`."""

    code = "cancelled"

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(reason or "cancelled")
        self.reason = reason


class ContractViolation(RunlaneError):
    """What arrived does not follow the protocol."""

    code = "contract_violation"


class ToolCallFailed(RunlaneError):
    """A tool call failed. An effect may raise it to choose the code, and whether people may try it again."""

    def __init__(self, code: str, message: str = "", *, retryable: bool = False) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.message = message
        self.retryable = retryable


class NonDeterministic(RunlaneError):
    """The agent started anew, and did not do what the log says it did before. Its run fails."""

    code = "nondeterministic"


class AlreadyRan(RunlaneError):
    """An unsafe call that began in an earlier attempt was reached again in a form that cannot skip its effect."""

    code = "already_ran"
