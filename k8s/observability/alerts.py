"""Alert rules as data. Names of metrics come from the contract, so one that is renamed cannot be forgotten here."""

from dataclasses import dataclass
from typing import Any, Literal

from runlane_contracts.telemetry import Metric

RUNBOOKS = "k8s/observability/runbooks"
Severity = Literal["page", "ticket"]


@dataclass(frozen=True, kw_only=True)
class Alert:
    """One rule. `page`: somebody is woken up, since users notice or will soon; `ticket`: it can wait for the day."""

    name: str
    group: str
    expr: str
    for_: str
    severity: Severity
    summary: str

    def rule(self) -> dict[str, Any]:
        """As Prometheus wants it."""
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.for_,
            "labels": {"severity": self.severity},
            "annotations": {"summary": self.summary, "runbook_url": f"{RUNBOOKS}/{self.name}.md"},
        }


def _quantile(metric: Metric, q: float, selector: str = "", by: str = "") -> str:
    inside = f"{{{selector}}}" if selector else ""
    return f"histogram_quantile({q}, sum by (le{by}) (rate({metric}_bucket{inside}[5m])))"


def _share(metric: Metric, by: str, bad: str, least_per_s: float) -> str:
    bad_rate, rate = f"sum by ({by}) (rate({metric}{{{bad}}}[15m]))", f"sum by ({by}) (rate({metric}[15m]))"
    return f"{bad_rate} / {rate} > 0.5 and {rate} > {least_per_s}"


_REFUSING = 'stream!~".*_(SIGNAL|DEAD)"'
"""The others refuse what does not fit; these two forget their oldest instead."""
_FULL = f"max by (stream) ({Metric.STREAM_BYTES}{{{_REFUSING}}} / ({Metric.STREAM_LIMIT} > 0))"

ALERTS = (
    Alert(
        name="RunlaneServiceDown",
        group="services",
        expr='up{job="runlane"} == 0',
        for_="2m",
        severity="page",
        summary="{{ $labels.instance }} does not answer its scrape",
    ),
    Alert(
        name="RunlaneServiceNotReady",
        group="services",
        expr=f"min by (service) ({Metric.READY}) == 0",
        for_="3m",
        severity="page",
        summary="an instance of {{ $labels.service }} is not ready",
    ),
    Alert(
        name="RunlaneAppendsFail",
        group="services",
        expr=f'sum by (service) (rate({Metric.COMMITS}{{outcome="failed"}}[5m])) > 0.1',
        for_="2m",
        severity="page",
        summary="{{ $labels.service }} cannot write to the log",
    ),
    Alert(
        name="RunlaneAppendSlow",
        group="services",
        expr=f"{_quantile(Metric.COMMIT_DURATION, 0.99)} > 0.5",
        for_="10m",
        severity="ticket",
        summary="appends take {{ $value | humanizeDuration }} at the 99th percentile",
    ),
    Alert(
        name="RunlaneHttpErrors",
        group="services",
        expr=_share(Metric.HTTP_REQUESTS, "service", 'status=~"5.."', 0.05),
        for_="5m",
        severity="page",
        summary="most answers of {{ $labels.service }} are 5xx",
    ),
    Alert(
        name="RunlaneStatesLate",
        group="services",
        expr=_quantile(Metric.DELIVERY_DURATION, 0.99, 'service="projector"') + " > 10",
        for_="10m",
        severity="ticket",
        summary="the read store is {{ $value | humanizeDuration }} behind",
    ),
    Alert(
        name="RunlaneViewLate",
        group="services",
        expr=_quantile(Metric.DELIVERY_DURATION, 0.99, 'service="redaction_filter"') + " > 5",
        for_="5m",
        severity="page",
        summary="what people see is {{ $value | humanizeDuration }} behind the log",
    ),
    Alert(
        name="RunlaneStartsRefused",
        group="services",
        expr=f"sum by (outcome) (rate({Metric.STARTS_REFUSED}[5m])) > 0.05",
        for_="10m",
        severity="ticket",
        summary="new runs are refused: {{ $labels.outcome }}",
    ),
    Alert(
        name="RunlaneQuarantine",
        group="services",
        expr=f"increase({Metric.QUARANTINED}[15m]) > 0",
        for_="0m",
        severity="ticket",
        summary="facts were quarantined: a producer writes what the contract does not allow",
    ),
    Alert(
        name="RunlaneDeadLetters",
        group="services",
        expr=f"max by (service) (delta({Metric.DEAD_LETTERS_KEPT}[15m])) > 0",
        for_="0m",
        severity="ticket",
        summary="{{ $labels.service }} put messages aside that it could not process",
    ),
    Alert(
        name="RunlaneAuditLosesRefusals",
        group="services",
        expr=f"increase({Metric.AUDIT_REFUSALS_DROPPED}[15m]) > 0",
        for_="0m",
        severity="page",
        summary="refusals of access at {{ $labels.service }} did not reach the audit",
    ),
    Alert(
        name="RunlaneViewHole",
        group="services",
        expr=f'increase({Metric.VIEW_REPAIRS}{{outcome="hole"}}[15m]) > 0',
        for_="0m",
        severity="page",
        summary="a reader met a hole in a run's record",
    ),
    Alert(
        name="RunlaneForcedResyncs",
        group="services",
        expr=f"sum(rate({Metric.FORCED_RESYNCS}[10m])) > 1",
        for_="10m",
        severity="ticket",
        summary="readers cannot continue where they were and begin anew",
    ),
    Alert(
        name="RunlaneBrokerUnreachable",
        group="broker",
        expr=f"max({Metric.BROKER_UP}) == 0 or absent({Metric.BROKER_UP})",
        for_="2m",
        severity="page",
        summary="the broker does not answer, or nobody asks it",
    ),
    Alert(
        name="RunlaneStreamFilling",
        group="broker",
        expr=f"{_FULL} > 0.8",
        for_="15m",
        severity="ticket",
        summary="{{ $labels.stream }} is {{ $value | humanizePercentage }} full; at 100 % it refuses",
    ),
    Alert(
        name="RunlaneStreamFull",
        group="broker",
        expr=f"{_FULL} > 0.95",
        for_="2m",
        severity="page",
        summary="{{ $labels.stream }} is {{ $value | humanizePercentage }} full; at 100 % it refuses",
    ),
    Alert(
        name="RunlaneConsumerStuck",
        group="broker",
        expr=f'max by (durable, stream) ({Metric.DURABLE_IDLE}{{durable!~"subscriber-.*"}}) > 120',
        for_="1m",
        severity="page",
        summary="{{ $labels.durable }} has work and has finished none for {{ $value | humanizeDuration }}",
    ),
    Alert(
        name="RunlaneConsumerBehind",
        group="broker",
        expr=f"max by (durable, stream) ({Metric.DURABLE_PENDING}) > 20000",
        for_="15m",
        severity="ticket",
        summary="{{ $labels.durable }} has {{ $value | humanize }} messages before it",
    ),
    Alert(
        name="RunlaneReplicasBehind",
        group="broker",
        expr=f"max by (stream) ({Metric.STREAM_REPLICAS_BEHIND}) > 0",
        for_="5m",
        severity="page",
        summary="{{ $labels.stream }} has {{ $value }} replicas that are behind or away",
    ),
    Alert(
        name="RunlaneSlowConsumers",
        group="broker",
        expr=f"max by (server) (increase({Metric.BROKER_SLOW_CONSUMERS}[15m])) > 0",
        for_="0m",
        severity="ticket",
        summary="{{ $labels.server }} cut off a connection that did not read fast enough",
    ),
    Alert(
        name="RunlaneRunsLost",
        group="fleet",
        expr=f'sum({Metric.RUNS}{{status="lost"}}) > 0',
        for_="10m",
        severity="ticket",
        summary="{{ $value }} runs have lost their worker and found no other",
    ),
    Alert(
        name="RunlaneQueueOld",
        group="fleet",
        expr=f"max by (pool) ({Metric.QUEUE_AGE}) > 300",
        for_="2m",
        severity="page",
        summary="a run waits for a worker of {{ $labels.pool }} since {{ $value | humanizeDuration }}",
    ),
    Alert(
        name="RunlaneRunsFail",
        group="fleet",
        expr=_share(Metric.RUNS_ENDED, "tenant, agent", 'status="failed"', 0.005),
        for_="10m",
        severity="ticket",
        summary="most runs of {{ $labels.agent }} ({{ $labels.tenant }}) fail",
    ),
    Alert(
        name="RunlaneToolFails",
        group="fleet",
        expr=_share(Metric.TOOL_CALLS, "tool", 'outcome="failed"', 0.01),
        for_="10m",
        severity="ticket",
        summary="most calls of {{ $labels.tool }} fail",
    ),
    Alert(
        name="RunlaneApprovalsWait",
        group="fleet",
        expr=f"max({Metric.APPROVAL_AGE}) > 14400",
        for_="5m",
        severity="ticket",
        summary="an approval waits since {{ $value | humanizeDuration }}",
    ),
    Alert(
        name="RunlaneMetricsBehind",
        group="fleet",
        expr=f"{_quantile(Metric.SIGNAL_DELAY, 0.9)} > 60 or max({Metric.CHECKPOINT_AGE}) > 120",
        for_="5m",
        severity="ticket",
        summary="fleet metrics are old, or are not written down",
    ),
    Alert(
        name="RunlaneSpansDropped",
        group="fleet",
        expr=f'increase({Metric.SPANS}{{outcome="dropped"}}[15m]) > 0',
        for_="0m",
        severity="ticket",
        summary="spans did not reach the collector",
    ),
)


def rules() -> dict[str, Any]:
    """The rules file."""
    groups = dict.fromkeys(alert.group for alert in ALERTS)
    return {
        "groups": [
            {"name": f"runlane-{group}", "rules": [one.rule() for one in ALERTS if one.group == group]}
            for group in groups
        ]
    }
