"""Ids and what may be one subject token.

A client may bring its own run, session and item ids; ours are ``<prefix>_<ULID>``. Nothing that matches
these patterns can break out of a NATS subject token, an SSE line or a URL path segment.
"""

import re
from datetime import datetime
from typing import Annotated

from msgspec import Meta

# In Python `$` also matches before a final line break, which would end a line of the NATS protocol.
ID_PATTERN = r"^[A-Za-z0-9_-]{1,64}$(?![\s\S])"
TENANT_PATTERN = r"^[a-z0-9-]{1,32}$(?![\s\S])"

TenantId = Annotated[str, Meta(pattern=TENANT_PATTERN, description="Isolation unit.")]
RunId = Annotated[str, Meta(pattern=ID_PATTERN, description="One durable execution of an agent.")]
SessionId = Annotated[str, Meta(pattern=ID_PATTERN, description="Runs that belong together.")]
ItemId = Annotated[str, Meta(pattern=ID_PATTERN, description="A thing inside a run.")]
EventId = Annotated[str, Meta(pattern=ID_PATTERN, description="One fact; repeating it writes once.")]
CommandId = Annotated[str, Meta(pattern=ID_PATTERN, description="One request that something happen.")]
WorkerId = Annotated[str, Meta(pattern=ID_PATTERN, description="Who holds a lease.")]
AgentName = Annotated[str, Meta(min_length=1, max_length=128, description="Which agent runs.")]
PoolName = Annotated[str, Meta(pattern=ID_PATTERN, description="Which workers may take a run.")]
Timestamp = Annotated[
    str,
    Meta(
        pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?Z$(?![\s\S])",
        description="RFC 3339, UTC, microseconds.",
    ),
]


def is_moment(text: str) -> bool:
    """Whether a text that looks like a `Timestamp` names a moment that exists."""
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


_ID = re.compile(ID_PATTERN)
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[A-Za-z0-9_-]{0,64})?")
_TENANT = re.compile(TENANT_PATTERN)


def is_id(text: str) -> bool:
    """Whether `text` may be a run, session, item, event, command or worker id."""
    return _ID.match(text) is not None


def is_tenant(text: str) -> bool:
    """Whether `text` may be a tenant id."""
    return _TENANT.match(text) is not None


def is_traceparent(text: str) -> bool:
    """Whether `text` is a trace parent as the W3C writes it, of this or a later version; it travels as a header."""
    return _TRACEPARENT.fullmatch(text) is not None
