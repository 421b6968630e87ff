"""An error says what to do next.

KernelError
├── Retryable           the same call may succeed later; carries when
│   ├── Overloaded      the broker refuses to take more (a full stream): shed load, tell the caller
│   └── AheadOfStream   the position is past the stream's end: its tail was lost, or is derived again
├── Permanent           it never will; fix the call or bury the message
│   ├── Gap             the record has a hole where there must be none
│   ├── Compacted       what follows the position is in the archive now, and the record says so
│   └── StreamReplaced  the stream is not the one the position was made in
├── Conflict            a compare-and-set lost: somebody else wrote; reload and decide again
└── Fenced              ownership was lost; stop at once
"""


class KernelError(Exception):
    """Base of all of them."""


class Retryable(KernelError):
    """The same call may succeed later."""

    def __init__(self, message: str, *, retry_after_s: float = 0.5) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Overloaded(Retryable):
    """The broker is up and refuses to take more: the stream is full, or its limits are reached."""


class AheadOfStream(Retryable):
    """The position is past the end of the stream. A derived stream gets there again; a log never would."""


class Permanent(KernelError):
    """It never will succeed as it is."""


class Gap(Permanent):
    """A record that must be gapless has a hole. It is reported, never skipped."""


class Compacted(Permanent):
    """What follows the position was archived and taken out; `log.compacted` stands for it. Begin from there."""


class StreamReplaced(Permanent):
    """The stream was made anew; positions in the old one mean nothing in this one."""


class Conflict(KernelError):
    """Somebody else wrote first. `current_seq` is where the stream or subject is now, if the server told."""

    def __init__(self, message: str, *, current_seq: int | None = None) -> None:
        super().__init__(message)
        self.current_seq = current_seq


class Fenced(KernelError):
    """Ownership was lost; whatever is still running must have no further effect."""
