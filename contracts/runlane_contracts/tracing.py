"""Which trace a run belongs to, and which spans it has: the same for everybody who computes it, at any time.

The trace of a run is that of its `run.created`: the trace of whoever asked for the run, or, where nobody brought
one, the run's own. A span id follows from what the span is about, so whoever makes the tree again after a crash
makes the same tree.
"""

import hashlib
import re
from typing import NamedTuple

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-[A-Za-z0-9_-]{0,64})?")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16

RUN_SPAN = "run"


class TraceContext(NamedTuple):
    """Where a span hangs: lower-case hex, as the W3C writes it."""

    trace_id: str
    span_id: str
    sampled: bool

    @property
    def traceparent(self) -> str:
        """As a header."""
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"


def parse_traceparent(text: str | None) -> TraceContext | None:
    """The context in a `traceparent`; None if it is none, or names nothing (all zeros)."""
    found = _TRACEPARENT.fullmatch(text) if text else None
    if found is None:
        return None
    trace_id, span_id, flags = found.groups()
    if trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & 1))


def run_trace_id(tenant_id: str, run_id: str) -> str:
    """The trace that a run has where nobody brought one."""
    return hashlib.blake2b(f"{tenant_id}/{run_id}".encode(), digest_size=16, person=b"runlane.trace").hexdigest()


def span_id(tenant_id: str, run_id: str, key: str) -> str:
    """The span of one thing in a run; `key` names the thing, `RUN_SPAN` the run itself."""
    text = f"{tenant_id}/{run_id}/{key}".encode()
    return hashlib.blake2b(text, digest_size=8, person=b"runlane.span").hexdigest()


def is_sampled(trace_id: str, ratio: float) -> bool:
    """Whether a share of `ratio` of all traces includes this one: the same answer everywhere."""
    return ratio >= 1 or int(trace_id[16:], 16) < int(ratio * (1 << 64))


def own_context(tenant_id: str, run_id: str, *, ratio: float = 1.0) -> TraceContext:
    """What `run.created` carries where nobody brought a trace: its parent is the span of the run itself."""
    trace_id = run_trace_id(tenant_id, run_id)
    return TraceContext(trace_id, span_id(tenant_id, run_id, RUN_SPAN), is_sampled(trace_id, ratio))


def run_context(traceparent: str | None, tenant_id: str, run_id: str) -> TraceContext:
    """The span of the run itself, in the trace of a run whose `run.created` carries `traceparent`.

    Where what a producer states belongs if it names no span of its own.
    """
    found = parse_traceparent(traceparent)
    if found is None:
        return own_context(tenant_id, run_id)
    return found._replace(span_id=span_id(tenant_id, run_id, RUN_SPAN))


def trace_id_of(traceparent: str | None, tenant_id: str, run_id: str) -> str:
    """The trace of a run whose `run.created` carries `traceparent`."""
    found = parse_traceparent(traceparent)
    return run_trace_id(tenant_id, run_id) if found is None else found.trace_id
