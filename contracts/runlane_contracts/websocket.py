"""Watching over WebSocket: JSON-RPC 2.0 methods, notifications, close codes and numbers of errors, as data.

A notification of the server is `run/<event>`, named as the frames of SSE are. What the client sends is decoded into
the params below; fields nobody knows are ignored.
"""

from enum import IntEnum
from typing import Annotated, Any

from msgspec import Meta, Raw, Struct

from runlane_contracts.commands import IdempotencyKey
from runlane_contracts.previews import PreviewGap
from runlane_contracts.resume import EndReason, From, Hello, SnapshotFrame

PROTOCOL_VERSION = 1
SUBPROTOCOL = "runlane.v1"
TOKEN_SUBPROTOCOL = "runlane.bearer."  # noqa: S105  a prefix
"""Before a token in base64url without padding: what a page can send, which cannot set headers."""
MAX_DEPTH = 160
"""How deep a message may nest: a payload's 128 levels, and room for what is around it."""


LEAST_MESSAGE_BYTES = 4096
"""A client that takes less is none."""


class CloseCode(IntEnum):
    """Why the server closed."""

    NORMAL = 1000
    GOING_AWAY = 1001  # the connection reached its lifetime; come back
    UNSUPPORTED = 1003  # a binary frame
    POLICY = 1008  # does not take what it asked for, or sends what cannot be answered
    TOO_LARGE = 1009
    INTERNAL = 1011
    RESTART = 1012  # the gateway stops; come back after `retry_after_ms`
    UNAUTHORIZED = 4401  # the token expired, or was revoked
    TIMED_OUT = 4408  # no `initialize` in time


class RpcCode(IntEnum):
    """The number of an error. What exactly is wrong is in `data.code`."""

    PARSE_ERROR = -32700
    INVALID_REQUEST = -32600
    METHOD_NOT_FOUND = -32601
    INVALID_PARAMS = -32602
    INTERNAL_ERROR = -32603
    REFUSED = -32000
    OVERLOADED = -32001
    NOT_INITIALIZED = -32002


class Initialize(Struct, frozen=True, kw_only=True):
    """`initialize`, always first. The server answers with the version it speaks."""

    protocol_version: Any = None
    capabilities: Any = None


class ConnectionLimits(Struct, frozen=True, kw_only=True):
    """What one connection may do."""

    max_message_bytes: int
    max_depth: int
    max_subscriptions: int
    max_requests: int
    """Answers that may be outstanding; also the length of a batch."""
    credit: int
    """The most facts of a subscription that are in flight, and what a watch without `credit` gets."""


class Capabilities(Struct, frozen=True, kw_only=True):
    """What was understood of what a client said it can do."""

    max_message_bytes: int
    """What is larger comes in parts."""


class Initialized(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer. `heartbeat_s`: how often the server sends a ping frame; who hears nothing for longer is alone."""

    protocol_version: Any
    limits: ConnectionLimits
    heartbeat_s: float
    capabilities: Capabilities | None = None


class Watch(Struct, frozen=True, kw_only=True, rename={"from_": "from"}):
    """`run/watch`. A cursor means: exactly what follows it; without one, `from`, and without that a snapshot."""

    run_id: str
    cursor: str | None = None
    from_: From | None = None
    previews: bool = False
    types: list[str] | str | None = None
    credit: Annotated[int, Meta(ge=1)] | None = None
    min_sequence: Annotated[int, Meta(ge=0, le=2**53)] = 0
    last: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    """Without a cursor and `from`: from so many facts before the end on, where an item begins."""


class Watching(Hello, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to `run/watch`: `hello`, and the name of the subscription in everything that follows."""

    subscription: str
    credit: int


class Ack(Struct, frozen=True, kw_only=True):
    """`run/ack`: everything up to the cursor was *applied*."""

    subscription: str
    cursor: str


class Acked(Struct, frozen=True, kw_only=True):
    """How many facts may come before the next acknowledgement."""

    credit: int


class Unwatch(Struct, frozen=True, kw_only=True):
    """`run/unwatch`."""

    subscription: str


class Unwatched(Struct, frozen=True, kw_only=True):
    """Nothing of it follows. The cursor continues after the last fact that was sent."""

    cursor: str


class Submit(Struct, frozen=True, kw_only=True):
    """`command/submit`. `wait_s`: answer with the outcome if there is one so soon."""

    run_id: str
    type: str
    payload: Raw = Raw(b"{}")
    idempotency_key: IdempotencyKey | None = None
    meta: dict[str, Any] | None = None
    wait_s: Annotated[float, Meta(ge=0, le=60)] = 0.0
    traceparent: str | None = None


class Renew(Struct, frozen=True, kw_only=True):
    """`auth/renew`: another token of the same tenant."""

    token: Annotated[str, Meta(min_length=1, max_length=16_384)]


class Renewed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The connection now lives as long as this token does."""

    expires_at: str | None = None


class Expiring(Struct, frozen=True, kw_only=True):
    """`auth/expiring`: the token ends then, and the connection with it, unless it is renewed."""

    expires_at: str
    expires_in_s: float


class FactNotice(Struct, frozen=True, kw_only=True):
    """`run/fact`. `fact`: byte for byte as in the `data` of SSE."""

    subscription: str
    cursor: str
    fact: Raw


class PreviewNotice(Struct, frozen=True, kw_only=True):
    """`run/preview`."""

    subscription: str
    preview: Raw


class PreviewGapNotice(PreviewGap, frozen=True, kw_only=True, rename={"from_": "from"}):
    """`run/preview_gap`."""

    subscription: str


class SnapshotNotice(SnapshotFrame, frozen=True, kw_only=True):
    """`run/snapshot`."""

    subscription: str


class SyncedNotice(Struct, frozen=True, kw_only=True):
    """`run/synced`."""

    subscription: str
    sequence: int


class Part(Struct, frozen=True, kw_only=True):
    """`message/part`: the texts of parts 1 to `parts`, joined, are one message, too large to take at once."""

    part: int
    parts: int
    text: str


class EndNotice(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`run/end`: always the last of a subscription."""

    subscription: str
    reason: EndReason
    cursor: str
    retry_after_ms: int | None = None
