"""The book of unfinished runs: applies signals, answers what happened. No I/O, no clock."""

from collections import Counter, OrderedDict
from collections.abc import Iterable

from runlane.metrics_aggregator.runs import (
    MAX_EVENTS,
    MAX_ITEMS,
    Happening,
    ItemBegan,
    ItemEnded,
    LeaseLost,
    OpenItem,
    OpenRun,
    RunBegan,
    RunEnded,
    RunTaken,
    Tenure,
    TenureEnded,
    Used,
)
from runlane.metrics_aggregator.signals import Details, Signal, details_of
from runlane.metrics_aggregator.usage import more_than, usage_of
from runlane_contracts.events import TERMINAL_RUN
from runlane_contracts.tracing import RUN_SPAN, parse_traceparent, run_trace_id, span_id

_STATUS = {
    "run.started": "running", "run.waiting": "waiting", "run.resumed": "running", "run.paused": "paused",
    "run.cancel_requested": "cancelling",
}  # fmt: skip
_EVENTS = frozenset({*_STATUS, "run.pause_requested", "plan.updated"})
_BEGINS = frozenset({
    "turn.started", "message.started", "reasoning.started", "tool.requested", "approval.requested", "input.requested",
    "task.created",
})  # fmt: skip
_ENDS = {
    "turn.completed": "completed", "message.completed": "completed", "message.failed": "failed",
    "message.cancelled": "cancelled", "reasoning.completed": "completed", "reasoning.failed": "failed",
    "reasoning.cancelled": "cancelled", "tool.completed": "completed", "tool.failed": "failed",
    "tool.cancelled": "cancelled", "tool.reconciled": "reconciled", "approval.resolved": "resolved",
    "input.provided": "provided", "input.cancelled": "cancelled", "task.completed": "completed",
    "task.failed": "failed", "task.cancelled": "cancelled",
}  # fmt: skip
_WITHOUT_A_BEGINNING = frozenset({"message", "reasoning"})
"""What may be stated when it is over: it then began with what came before it."""


class Book:
    """Unfinished runs, at most `max_runs`: the one seen longest ago is given up, counted in `given_up`."""

    def __init__(self, max_runs: int, runs: Iterable[OpenRun] = ()) -> None:
        self.given_up = 0
        self._max_runs = max_runs
        self._runs: OrderedDict[str, OpenRun] = OrderedDict((run.key, run) for run in runs)

    @property
    def runs(self) -> Iterable[OpenRun]:
        """All of them, the one seen longest ago first."""
        return self._runs.values()

    def __len__(self) -> int:
        return len(self._runs)

    def by_status(self) -> Counter[str]:
        """How many there are of each status."""
        return Counter(run.status for run in self._runs.values())

    def apply(self, signal: Signal) -> list[Happening]:
        """What it means. A signal that is known already means nothing."""
        if signal.type.startswith("log."):
            return []  # of the record, not of the run
        key = f"{signal.tenant_id}/{signal.run_id}"
        run = self._runs.get(key)
        happened: list[Happening] = []
        if run is None:
            run = self._begin(key, signal)
            if signal.type == "run.created":
                happened.append(RunBegan(run))
        elif signal.sequence <= run.sequence:
            return []
        self._runs.move_to_end(key)
        run.sequence = signal.sequence
        happened += _apply(run, signal)
        if signal.type in TERMINAL_RUN:
            del self._runs[key]
        return happened

    def _begin(self, key: str, signal: Signal) -> OpenRun:
        """A run that is new here; perhaps its beginning was before the first signal that is kept."""
        if len(self._runs) >= self._max_runs:
            self._runs.popitem(last=False)
            self.given_up += 1
        run = self._runs[key] = OpenRun(
            tenant_id=signal.tenant_id, run_id=signal.run_id, created_ns=signal.recorded_ns, last_ns=signal.at_ns,
            session_id=signal.session_id or "", items={}, usage={}, events=[],
            trace_id=run_trace_id(signal.tenant_id, signal.run_id),
            status="created" if signal.type == "run.created" else "running",
        )  # fmt: skip
        return run


def _apply(run: OpenRun, signal: Signal) -> list[Happening]:
    type_ = signal.type
    if type_ in _EVENTS and len(run.events) < MAX_EVENTS:
        run.events.append((signal.at_ns, type_))
    if type_.startswith("run."):
        return _apply_to_run(run, signal)
    if type_ in _BEGINS:
        return _begin_item(run, signal, details_of(signal))
    if type_ in _ENDS:
        return _end_item(run, signal, details_of(signal))
    if type_ == "tool.running":
        call = run.items.get(f"tool:{details_of(signal).tool_call_id}")
        if call is not None:
            call.working_ns = signal.at_ns
    return []


# --- the run ------------------------------------------------------------------------------------------------


def _apply_to_run(run: OpenRun, signal: Signal) -> list[Happening]:
    match signal.type:
        case "run.created":
            _created(run, signal, details_of(signal))
            return []
        case "run.leased":
            return _leased(run, signal, details_of(signal))
        case "run.lease_lost":
            return _lease_lost(run, signal, details_of(signal))
        case "run.completed" | "run.failed" | "run.cancelled":
            return _ended(run, signal, details_of(signal))
        case _:
            status = _STATUS.get(signal.type)
            if status is not None:
                _move(run, status)
            if signal.type == "run.started":
                run.last_ns = signal.at_ns
            return []


def _created(run: OpenRun, signal: Signal, details: Details) -> None:
    run.agent, run.pool = details.agent, details.pool
    run.log_seq = signal.log_seq
    run.parent_run_id = details.parent_run_id or ""
    run.is_pooled = details.dispatch == "pool"
    run.waits_since_ns = signal.recorded_ns if run.is_pooled else 0
    context = parse_traceparent(signal.traceparent)
    if context is not None:
        own = span_id(run.tenant_id, run.run_id, RUN_SPAN)
        run.trace_id, run.sampled = context.trace_id, context.sampled
        run.parent_span_id = "" if context.span_id == own else context.span_id


def _leased(run: OpenRun, signal: Signal, details: Details) -> list[Happening]:
    happened: list[Happening] = []
    if run.tenure is not None:
        happened.append(_end_tenure(run, signal, "taken_over"))
    waited = max(0, signal.recorded_ns - run.waits_since_ns) if run.waits_since_ns else None
    run.waits_since_ns = 0
    run.tenure = Tenure(details.lease_epoch, details.attempt, details.worker_id, signal.at_ns)
    if run.status == "lost":
        run.status = run.status_before_lost
    happened.append(RunTaken(run, waited, details.attempt))
    return happened


def _lease_lost(run: OpenRun, signal: Signal, details: Details) -> list[Happening]:
    if run.tenure is None or details.lease_epoch != run.tenure.lease_epoch:
        return []
    cause = details.cause or "expired"
    ended = _end_tenure(run, signal, cause)
    if run.status != "lost":
        run.status_before_lost = run.status
    run.status = "lost"
    run.waits_since_ns = signal.recorded_ns if run.is_pooled else 0
    return [ended, LeaseLost(run, cause)]


def _end_tenure(run: OpenRun, signal: Signal, cause: str) -> TenureEnded:
    tenure = run.tenure
    assert tenure is not None  # noqa: S101 - the callers looked
    run.tenure = None
    return TenureEnded(run, tenure, max(tenure.started_ns, signal.at_ns), cause)


def _ended(run: OpenRun, signal: Signal, details: Details) -> list[Happening]:
    status = signal.type.partition(".")[2]
    at_ns = signal.at_ns
    happened: list[Happening] = []
    used = more_than(usage_of(details.usage), run.usage)
    if used:
        happened.append(_use(run, used))
    happened += [
        ItemEnded(run, item, max(item.started_ns, at_ns), signal.recorded_ns, "left_open", 0)
        for item in reversed(run.items.values())  # what is inside ends before what is around it
    ]
    run.items.clear()
    if run.tenure is not None:
        happened.append(_end_tenure(run, signal, status))
    error = details.error.code if details.error is not None else ""
    happened.append(
        RunEnded(run, status, max(run.created_ns, at_ns), signal.recorded_ns, error, log_seq=signal.log_seq)
    )
    return happened


def _move(run: OpenRun, status: str) -> None:
    if run.status == "lost" and status != "cancelling":
        run.status_before_lost = status
    else:
        run.status = status


def _use(run: OpenRun, used: dict[str, float]) -> Used:
    for kind, value in used.items():
        run.usage[kind] = run.usage.get(kind, 0.0) + value
    return Used(run, used)


# --- items --------------------------------------------------------------------------------------------------


def _begin_item(run: OpenRun, signal: Signal, details: Details) -> list[Happening]:
    kind = signal.type.partition(".")[0]
    if kind == "message" and details.role != "assistant":
        return []
    if f"{kind}:{_id_of(kind, details)}" in run.items:
        return []  # asked again, with another version: the same question
    item = _open(run, signal, details, kind, signal.at_ns)
    if kind not in {"approval", "input"}:
        run.last_ns = signal.at_ns
    return [ItemBegan(run, item)]


def _open(run: OpenRun, signal: Signal, details: Details, kind: str, started_ns: int) -> OpenItem:
    if len(run.items) >= MAX_ITEMS:
        del run.items[next(iter(run.items))]
    item = OpenItem(
        kind=kind, id=_id_of(kind, details), name=details.name if kind == "tool" else "",
        started_ns=max(run.created_ns, started_ns), recorded_ns=signal.recorded_ns, sequence=signal.sequence,
        lease_epoch=signal.lease_epoch, parent=_parent_of(run, signal, details, kind), attempt=details.attempt,
        retry_of=details.retry_of or "", side_effect=details.side_effect, traceparent=signal.traceparent or "",
        model=details.model or "", provider=details.provider or "", log_seq=signal.log_seq,
    )  # fmt: skip
    run.items[f"{kind}:{item.id}"] = item
    return item


def _end_item(run: OpenRun, signal: Signal, details: Details) -> list[Happening]:
    kind = signal.type.partition(".")[0]
    if kind == "message" and details.role not in {"assistant", ""}:
        return []
    happened: list[Happening] = []
    item = run.items.get(f"{kind}:{_id_of(kind, details)}")
    if item is None:
        if kind not in _WITHOUT_A_BEGINNING:
            return []  # it began before the first signal that is kept
        item = _open(run, signal, details, kind, min(run.last_ns, signal.at_ns))
        item.recorded_ns = signal.recorded_ns
        happened.append(ItemBegan(run, item))
    used = usage_of(details.usage)
    if used:
        happened.append(_use(run, used))
    del run.items[f"{kind}:{item.id}"]
    if kind not in {"approval", "input"} or signal.at_ns > run.last_ns:
        run.last_ns = max(run.last_ns, signal.at_ns)
    happened.append(
        ItemEnded(
            run, item, max(item.started_ns, signal.at_ns), signal.recorded_ns, _outcome(signal, details),
            signal.lease_epoch, by=details.decided_by or details.by,
            error=details.error.code if details.error is not None else "", traceparent=signal.traceparent or "",
            usage=used, model=details.model or "", provider=details.provider or "", log_seq=signal.log_seq,
            sequence=signal.sequence,
        )
    )  # fmt: skip
    return happened


def _outcome(signal: Signal, details: Details) -> str:
    if signal.type == "approval.resolved":
        return details.decision or "resolved"
    if signal.type == "tool.reconciled":
        return details.outcome or "reconciled"
    return _ENDS[signal.type]


def _id_of(kind: str, details: Details) -> str:
    match kind:
        case "turn":
            return details.turn_id
        case "message":
            return details.message_id
        case "reasoning":
            return details.reasoning_id
        case "tool":
            return details.tool_call_id or ""
        case "approval":
            return details.approval_id
        case "input":
            return details.input_id
        case _:
            return details.task_id


def _parent_of(run: OpenRun, signal: Signal, details: Details, kind: str) -> str:
    """The innermost open item that it is in; else the run.

    That is the call an approval is about, what the producer names as parent, the task, the turn.
    """
    wanted = [f"tool:{details.tool_call_id}" if kind == "approval" and details.tool_call_id else ""]
    if signal.parent_id:
        wanted += [f"{one}:{signal.parent_id}" for one in ("tool", "task", "turn", "message")]
    if signal.task_id and kind != "task":
        wanted.append(f"task:{signal.task_id}")
    if signal.turn_id and kind != "turn":
        wanted.append(f"turn:{signal.turn_id}")
    for key in wanted:
        if key in run.items:
            return run.items[key].key
    if kind == "turn":
        return RUN_SPAN
    turns = [item for item in run.items.values() if item.kind == "turn"]
    return turns[-1].key if len(turns) == 1 else RUN_SPAN
