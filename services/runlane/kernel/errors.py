"""An error says what to do next.

    KernelError
    ├── Retryable      the same call may succeed later; carries when
    ├── Permanent      it never will; fix the call or bury the message
    ├── Conflict       a compare-and-set lost: somebody else wrote; reload and decide again
    └── Fenced         ownership was lost; stop at once
"""


class KernelError(Exception):
    """Base of all four."""


class Retryable(KernelError):
    """The same call may succeed later."""

    def __init__(self, message: str, *, retry_after_s: float = 0.5) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Permanent(KernelError):
    """It never will succeed as it is."""


class Conflict(KernelError):
    """Somebody else wrote first."""


class Fenced(KernelError):
    """Ownership was lost; whatever is still running must have no further effect."""
