"""Stable error codes: what each means, its HTTP status, and whether the same request may succeed later."""

from enum import StrEnum
from typing import Any

from msgspec import Struct


class Code(StrEnum):
    """Every code a client can meet."""

    INVALID_REQUEST = "invalid_request"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    RUN_NOT_FOUND = "run_not_found"
    COMMAND_NOT_FOUND = "command_not_found"
    APPROVAL_NOT_FOUND = "approval_not_found"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    IDEMPOTENCY_CONFLICT = "idempotency_conflict"
    VERSION_CONFLICT = "version_conflict"
    ALREADY_RESOLVED = "already_resolved"
    ALREADY_EXISTS = "already_exists"
    RUN_TERMINAL = "run_terminal"
    RUN_NOT_TERMINAL = "run_not_terminal"
    INVALID_STATE = "invalid_state"
    NOT_RETRYABLE = "not_retryable"
    ALREADY_RETRIED = "already_retried"
    UNSAFE_TOOLS = "unsafe_tools"
    LEASE_HELD = "lease_held"
    LEASE_FENCED = "lease_fenced"
    SEQUENCE_CONFLICT = "sequence_conflict"
    CURSOR_EXPIRED = "cursor_expired"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    CURSOR_INVALID = "cursor_invalid"
    CURSOR_FOREIGN = "cursor_foreign"
    QUOTA_EXCEEDED = "quota_exceeded"
    INTERNAL = "internal"
    VIEW_QUARANTINED = "view_quarantined"
    UPSTREAM_UNAVAILABLE = "upstream_unavailable"
    OVERLOADED = "overloaded"
    NOT_YET_VISIBLE = "not_yet_visible"


class Meaning(Struct, frozen=True):
    """How a code travels. `retryable`: the very same request may succeed later."""

    status: int
    title: str
    retryable: bool = False


MEANINGS: dict[Code, Meaning] = {
    Code.INVALID_REQUEST: Meaning(400, "The request does not fit the contract."),
    Code.UNAUTHENTICATED: Meaning(401, "No valid credentials."),
    Code.FORBIDDEN: Meaning(403, "These credentials do not allow it."),
    Code.RUN_NOT_FOUND: Meaning(404, "No such run."),
    Code.COMMAND_NOT_FOUND: Meaning(404, "No such command is known; it may or may not have been executed."),
    Code.APPROVAL_NOT_FOUND: Meaning(404, "No such approval."),
    Code.NOT_FOUND: Meaning(404, "No such resource."),
    Code.METHOD_NOT_ALLOWED: Meaning(405, "The resource does not know this method."),
    Code.IDEMPOTENCY_CONFLICT: Meaning(409, "The idempotency key was used for another request."),
    Code.VERSION_CONFLICT: Meaning(409, "The item is not what it was when it was shown."),
    Code.ALREADY_RESOLVED: Meaning(409, "It was decided already."),
    Code.ALREADY_EXISTS: Meaning(409, "The id is taken."),
    Code.RUN_TERMINAL: Meaning(409, "The run is over."),
    Code.RUN_NOT_TERMINAL: Meaning(409, "The run is not over."),
    Code.INVALID_STATE: Meaning(409, "The run or item is not in a state where this applies."),
    Code.NOT_RETRYABLE: Meaning(409, "The tool call cannot be retried."),
    Code.ALREADY_RETRIED: Meaning(409, "The tool call was retried already."),
    Code.UNSAFE_TOOLS: Meaning(409, "The run executed tools that are not safe to execute again."),
    Code.LEASE_HELD: Meaning(409, "Another worker holds the lease.", retryable=True),
    Code.LEASE_FENCED: Meaning(409, "The lease was lost; stop."),
    Code.SEQUENCE_CONFLICT: Meaning(409, "The run has moved on."),
    Code.CURSOR_EXPIRED: Meaning(410, "The cursor can no longer be continued; take the snapshot."),
    Code.PAYLOAD_TOO_LARGE: Meaning(413, "The request is too large."),
    Code.CURSOR_INVALID: Meaning(422, "The cursor was changed or is not one of ours."),
    Code.CURSOR_FOREIGN: Meaning(422, "The cursor belongs to another run, tenant, audience or filter."),
    Code.QUOTA_EXCEEDED: Meaning(429, "The tenant's quota is used up.", retryable=True),
    Code.INTERNAL: Meaning(500, "A fault of ours.", retryable=True),
    Code.VIEW_QUARANTINED: Meaning(500, "A fact of the run cannot be folded; its facts are still readable."),
    Code.UPSTREAM_UNAVAILABLE: Meaning(502, "A service behind this one does not answer.", retryable=True),
    Code.OVERLOADED: Meaning(503, "Busy; nothing was lost.", retryable=True),
    Code.NOT_YET_VISIBLE: Meaning(504, "The view has not reached that sequence yet.", retryable=True),
}


class ProblemDocument(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """RFC 9457, `application/problem+json`."""

    type: str
    title: str
    status: int
    code: Code
    detail: str = ""
    retryable: bool = False
    index: int | None = None
    current_sequence: int | None = None
    recorded: dict[str, Any] | None = None
    snapshot: str | None = None
    retry_after_s: float | None = None


def problem_document(code: Code, detail: str = "", **extra: Any) -> ProblemDocument:
    """The document for one code."""
    meaning = MEANINGS[code]
    return ProblemDocument(
        type=f"urn:runlane:problem:{code.value}",
        title=meaning.title,
        status=meaning.status,
        code=code,
        detail=detail,
        retryable=meaning.retryable,
        **extra,
    )
