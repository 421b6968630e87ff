"""What happened, counted. Counts go on over restarts; durations are measured anew by each process."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Protocol

from runlane.metrics_aggregator.labels import Labels
from runlane.metrics_aggregator.runs import (
    Happening,
    ItemBegan,
    ItemEnded,
    LeaseLost,
    OpenRun,
    RunBegan,
    RunEnded,
    RunTaken,
    Used,
)
from runlane.metrics_aggregator.usage import COST
from runlane_contracts.telemetry import Attribute, Metric

LabelSet = tuple[tuple[str, str], ...]
SECOND_NS = 1_000_000_000

COUNTED = (
    Metric.RUNS_STARTED, Metric.RUNS_ENDED, Metric.RUN_RETRIES, Metric.LEASES_LOST, Metric.APPROVALS,
    Metric.TOOL_CALLS, Metric.TOOL_RETRIES, Metric.TOKENS, Metric.COST, Metric.SIGNALS, Metric.RUNS_UNTRACKED,
)  # fmt: skip


class Durations(Protocol):
    """Histograms."""

    def record(self, metric: Metric, seconds: float, labels: Mapping[str, str]) -> None:
        """One duration more."""


class Rollup:
    """Counts by metric and labels, and the durations handed on to `durations`."""

    def __init__(self, labels: Labels, durations: Durations, counts: Iterable["Count"] = ()) -> None:
        self.labels = labels
        self._durations = durations
        self._counts: defaultdict[str, dict[LabelSet, float]] = defaultdict(dict)
        for metric, names, value in counts:
            self._counts[metric][tuple((name, text) for name, text in names)] = value

    @property
    def counts(self) -> "list[Count]":
        """All of them, to be written down."""
        return [(metric, names, value) for metric, by in self._counts.items() for names, value in by.items()]

    def of(self, metric: Metric) -> list[tuple[float, Mapping[str, str]]]:
        """The counts of one metric."""
        return [(value, dict(names)) for names, value in self._counts[metric.value].items()]

    def add(self, metric: Metric, labels: Mapping[str, str], value: float = 1) -> None:
        """Count."""
        by, key = self._counts[metric.value], tuple(sorted(labels.items()))
        by[key] = by.get(key, 0) + value

    def count(self, happening: Happening) -> None:
        """Count what happened."""
        match happening:
            case RunBegan(run):
                self.add(Metric.RUNS_STARTED, self._agent(run))
            case RunTaken():
                self._taken(happening)
            case LeaseLost(run, cause):
                self.add(Metric.LEASES_LOST, self._agent(run) | {Attribute.CAUSE.value: cause})
            case ItemBegan(run, item) if item.kind == "tool" and (item.retry_of or item.attempt > 1):
                self.add(Metric.TOOL_RETRIES, {Attribute.TOOL.value: self.labels.tool(item.name)})
            case ItemEnded():
                self._ended(happening)
            case Used():
                self._used(happening)
            case RunEnded():
                self._over(happening)
            case _:
                pass

    def _used(self, used: Used) -> None:
        labels = self._agent(used.run)
        for kind, value in used.usage.items():
            if kind == COST:
                self.add(Metric.COST, labels, value)
            else:
                self.add(Metric.TOKENS, labels | {Attribute.KIND.value: kind}, value)

    def _taken(self, taken: RunTaken) -> None:
        if taken.attempt > 1:
            self.add(Metric.RUN_RETRIES, self._agent(taken.run))
        if taken.waited_ns is not None:
            pool = {Attribute.POOL.value: self.labels.pool(taken.run.pool)}
            self._durations.record(Metric.QUEUE_WAIT, taken.waited_ns / SECOND_NS, pool)

    def _ended(self, ended: ItemEnded) -> None:
        item = ended.item
        if ended.outcome == "left_open":
            return
        if item.kind == "tool":
            labels = {Attribute.TOOL.value: self.labels.tool(item.name), Attribute.OUTCOME.value: ended.outcome}
            self.add(Metric.TOOL_CALLS, labels)
            worked_ns = max(0, ended.ended_ns - (item.working_ns or item.started_ns))
            self._durations.record(Metric.TOOL_DURATION, worked_ns / SECOND_NS, labels)
        elif item.kind == "approval":
            # Asked on one machine, answered on another: the broker's clock is the one they share.
            waited_ns = max(0, ended.recorded_ns - item.recorded_ns)
            outcome = {Attribute.OUTCOME.value: ended.outcome}
            self.add(Metric.APPROVALS, outcome)
            self._durations.record(Metric.APPROVAL_WAIT, waited_ns / SECOND_NS, outcome)

    def _over(self, ended: RunEnded) -> None:
        self.add(Metric.RUNS_ENDED, self._agent(ended.run) | {Attribute.STATUS.value: ended.status})
        if ended.run.agent:  # else its beginning is not known
            seconds = max(0, ended.recorded_ns - ended.run.created_ns) / SECOND_NS
            self._durations.record(Metric.RUN_DURATION, seconds, {Attribute.STATUS.value: ended.status})

    def _agent(self, run: OpenRun) -> dict[str, str]:
        tenant, agent = self.labels.agent(run.tenant_id, run.agent)
        return {Attribute.TENANT.value: tenant, Attribute.AGENT.value: agent}


Count = tuple[str, tuple[tuple[str, str], ...], float]
"""A metric, its labels, its value."""
