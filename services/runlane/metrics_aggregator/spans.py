"""The spans of a run, from what happened to it, by the GenAI conventions of OpenTelemetry. Pure.

    invoke_agent <agent>                    the run; parent: whoever asked for it
    ├── runlane.attempt                     an owner; linked to the one before
    └── runlane.turn
        ├── runlane.reasoning, chat <model> what the model said
        └── execute_tool <tool>             linked to its owner, and to a later one that finished it
            └── runlane.approval            linked to the request that decided it

A span's parent never changes: neither a pause nor another owner tears the tree. No span has content here; there is none
in a signal. `source` says where it stands, for tenants that want it shown (`content.py`).
"""

from collections.abc import Sequence

from msgspec import Struct

from runlane.metrics_aggregator.labels import shown
from runlane.metrics_aggregator.runs import Happening, ItemEnded, OpenRun, RunEnded, TenureEnded
from runlane.metrics_aggregator.usage import COST, INPUT, OUTPUT, Usage
from runlane_contracts.subjects import RunAddress
from runlane_contracts.telemetry import Attribute, Span
from runlane_contracts.tracing import RUN_SPAN, TraceContext, parse_traceparent, span_id

AttributeValue = str | int | float | bool
Attributes = dict[str, AttributeValue]

UNKNOWN_PROVIDER = "_OTHER"
"""A message that does not say of whom it is."""
MOST_OF_A_MODEL = 128
_WITH_CONTENT = frozenset({"message", "tool"})
_FAILED = frozenset({"failed", "outcome_unknown", "not_executed"})
_NAMES = {
    "turn": Span.TURN,
    "message": Span.CHAT,
    "reasoning": Span.REASONING,
    "approval": Span.APPROVAL,
    "input": Span.INPUT,
    "task": Span.TASK,
}


class SpanLink(Struct, frozen=True):
    """Another span that belongs to it, and why."""

    context: TraceContext
    reason: str


class Place(Struct, frozen=True):
    """Where a fact stands: its commit in the log, itself in the run."""

    log_seq: int
    sequence: int


class Source(Struct, frozen=True):
    """Where the content of a span stands: in the facts that began and ended what it shows."""

    run: RunAddress
    begin: Place
    end: Place


class FinishedSpan(Struct, frozen=True, kw_only=True):
    """A span that is over. `kind`: as OpenTelemetry names it. Times in nanoseconds since 1970."""

    name: str
    context: TraceContext
    parent_span_id: str
    kind: str
    started_ns: int
    ended_ns: int
    attributes: Attributes
    links: Sequence[SpanLink] = ()
    events: Sequence[tuple[int, str]] = ()
    error: str | None = None
    """Its type; None: it went well."""
    source: Source | None = None
    """None: it has no content, or nobody wants it."""


def span_of(happening: Happening) -> FinishedSpan | None:
    """The span that ended with it, if one did, and the run is sampled."""
    match happening:
        case RunEnded(run) if run.sampled:
            return _run_span(happening)
        case TenureEnded(run) if run.sampled:
            return _tenure_span(happening)
        case ItemEnded(run) if run.sampled:
            return _item_span(happening)
        case _:
            return None


def _run_span(ended: RunEnded) -> FinishedSpan:
    run = ended.run
    attributes: Attributes = {
        **_common(run),
        Attribute.GEN_AI_OPERATION: Span.INVOKE_AGENT.value,
        Attribute.STATUS: ended.status,
        **_usage(run.usage),
        **({Attribute.PARENT_RUN_ID: run.parent_run_id} if run.parent_run_id else {}),
    }
    return FinishedSpan(
        name=f"{Span.INVOKE_AGENT.value} {shown(run.agent)}",
        context=_context(run, RUN_SPAN),
        parent_span_id=run.parent_span_id,
        kind="INTERNAL",
        started_ns=run.created_ns,
        ended_ns=ended.ended_ns,
        attributes=attributes,
        events=tuple(run.events),
        error=shown(ended.error or "failed") if ended.status == "failed" else None,
        source=_source(run, Place(run.log_seq, 1), Place(ended.log_seq, run.sequence)),
    )


def _tenure_span(ended: TenureEnded) -> FinishedSpan:
    run, tenure = ended.run, ended.tenure
    has_previous = tenure.lease_epoch > 1
    links = (_owner_link(run, tenure.lease_epoch - 1, "previous_owner"),) if has_previous else ()
    attributes: Attributes = {
        **_common(run),
        Attribute.LEASE_EPOCH: tenure.lease_epoch,
        Attribute.ATTEMPT: tenure.attempt,
        Attribute.WORKER_ID: tenure.worker_id,
        Attribute.CAUSE: ended.cause,
    }
    return FinishedSpan(
        name=Span.ATTEMPT.value,
        context=_context(run, tenure.key),
        parent_span_id=_id(run, RUN_SPAN),
        kind="INTERNAL",
        started_ns=tenure.started_ns,
        ended_ns=ended.ended_ns,
        attributes=attributes,
        links=links,
        error=ended.cause if ended.cause in {"expired", "fenced"} else None,
    )


def _item_span(ended: ItemEnded) -> FinishedSpan:
    run, item = ended.run, ended.item
    attributes: Attributes = {
        **_common(run),
        Attribute.ITEM_ID: item.id,
        Attribute.SEQUENCE: item.sequence,
        Attribute.OUTCOME: ended.outcome,
        **_about(ended),
    }
    return FinishedSpan(
        name=_name(ended),
        context=_context(run, item.key),
        parent_span_id=_id(run, item.parent),
        kind="CLIENT" if item.kind == "message" else "INTERNAL",
        started_ns=item.started_ns,
        ended_ns=ended.ended_ns,
        attributes=attributes,
        links=_links(ended),
        error=shown(ended.error or ended.outcome) if ended.outcome in _FAILED else None,
        source=_source(run, Place(item.log_seq, item.sequence), Place(ended.log_seq, ended.sequence))
        if item.kind in _WITH_CONTENT
        else None,
    )


def _source(run: OpenRun, begin: Place, end: Place) -> Source | None:
    return Source(RunAddress(run.tenant_id, run.run_id), begin, end) if begin.log_seq and end.log_seq else None


def _name(ended: ItemEnded) -> str:
    if ended.item.kind == "tool":
        return f"{Span.EXECUTE_TOOL.value} {shown(ended.item.name)}"
    if ended.item.kind == "message" and (model := _asked(ended)):
        return f"{Span.CHAT.value} {model}"
    return _NAMES[ended.item.kind].value


def _about(ended: ItemEnded) -> Attributes:
    item = ended.item
    found: Attributes = {Attribute.LEASE_EPOCH: item.lease_epoch} if item.lease_epoch else {}
    match item.kind:
        case "tool":
            found |= {
                Attribute.GEN_AI_OPERATION: Span.EXECUTE_TOOL.value,
                Attribute.GEN_AI_TOOL: shown(item.name),
                Attribute.GEN_AI_TOOL_CALL: item.id,
                Attribute.GEN_AI_TOOL_TYPE: "function",
                Attribute.SIDE_EFFECT: item.side_effect,
                Attribute.ATTEMPT: item.attempt,
            }
            if item.retry_of:
                found[Attribute.RETRY_OF] = item.retry_of
        case "message":
            found |= _chat(ended)
        case "approval":
            found |= {Attribute.DECISION: ended.outcome}
        case "turn":
            found |= _usage(ended.usage)
        case _:
            pass
    return found


def _chat(ended: ItemEnded) -> Attributes:
    provider = shown(ended.provider or ended.item.provider or UNKNOWN_PROVIDER)
    found: Attributes = {Attribute.GEN_AI_OPERATION: Span.CHAT.value, Attribute.GEN_AI_PROVIDER: provider}
    if model := _asked(ended):
        found[Attribute.GEN_AI_REQUEST_MODEL] = model
    if ended.model:
        found[Attribute.GEN_AI_RESPONSE_MODEL] = ended.model[:MOST_OF_A_MODEL]
    return found


def _asked(ended: ItemEnded) -> str:
    """The model that was asked: said at the beginning, else the one that answered."""
    return (ended.item.model or ended.model)[:MOST_OF_A_MODEL]


def _links(ended: ItemEnded) -> tuple[SpanLink, ...]:
    run, item = ended.run, ended.item
    links: list[SpanLink] = []
    if item.lease_epoch:
        links.append(_owner_link(run, item.lease_epoch, "owner"))
    if ended.lease_epoch not in {0, item.lease_epoch}:
        links.append(_owner_link(run, ended.lease_epoch, "owner"))
    asked, answered = parse_traceparent(item.traceparent), parse_traceparent(ended.traceparent)
    if asked is not None and not _is_ours(run, asked):
        links.append(SpanLink(asked, "producer"))
    if answered is not None and answered != asked and not _is_ours(run, answered):
        links.append(SpanLink(answered, "decided_by" if item.kind in {"approval", "input"} else "producer"))
    return tuple(links)


def _is_ours(run: OpenRun, context: TraceContext) -> bool:
    """Whether a context names the run itself: what a producer states that has no span of its own."""
    return context.trace_id == run.trace_id and context.span_id in {_id(run, RUN_SPAN), run.parent_span_id}


def _owner_link(run: OpenRun, lease_epoch: int, reason: str) -> SpanLink:
    return SpanLink(_context(run, f"attempt:{lease_epoch}"), reason)


def _common(run: OpenRun) -> Attributes:
    return {
        Attribute.TENANT_ID: run.tenant_id,
        Attribute.RUN_ID: run.run_id,
        Attribute.GEN_AI_AGENT: shown(run.agent),
        Attribute.GEN_AI_CONVERSATION: run.session_id or run.run_id,
    }


def _usage(usage: Usage) -> Attributes:
    names = {INPUT: Attribute.GEN_AI_INPUT_TOKENS, OUTPUT: Attribute.GEN_AI_OUTPUT_TOKENS}
    found: Attributes = {names[kind]: int(value) for kind, value in usage.items() if kind in names}
    if COST in usage:
        found[Attribute.COST] = usage[COST]
    return found


def _context(run: OpenRun, key: str) -> TraceContext:
    return TraceContext(run.trace_id, _id(run, key), run.sampled)


def _id(run: OpenRun, key: str) -> str:
    return span_id(run.tenant_id, run.run_id, key)
