"""Dashboards, built with Grafana's own types. Each answers the questions of one person."""

import itertools
from collections.abc import Sequence

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import BigValueGraphMode, LegendPlacement
from grafana_foundation_sdk.models.dashboard import DataSourceRef

from runlane_contracts.telemetry import Metric

HEIGHT = 8
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")

Query = tuple[str, str]
"""What to ask, and how a line is named."""


def rate(metric: Metric, by: str, selector: str = "") -> str:
    """Per second, over the interval that Grafana finds fit."""
    inside = f"{{{selector}}}" if selector else ""
    return f"sum by ({by}) (rate({metric}{inside}[$__rate_interval]))"


def quantile(metric: Metric, q: float, by: str = "", selector: str = "") -> str:
    """Of a histogram."""
    inside = f"{{{selector}}}" if selector else ""
    grouped = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, sum by ({grouped}) (rate({metric}_bucket{inside}[$__rate_interval])))"


def graph(title: str, description: str, *queries: Query, unit: str = "short", span: int = 8) -> timeseries.Panel:
    """A panel with lines."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .datasource(SOURCE)
        .span(span)
        .height(HEIGHT)
        .min(0)
        .fill_opacity(10)
        .legend(common.VizLegendOptions().show_legend(True).placement(LegendPlacement.BOTTOM))
    )
    for letter, (expr, legend) in zip("ABCDEFGH", queries, strict=False):
        panel.with_target(prometheus.Dataquery().expr(expr).legend_format(legend).ref_id(letter))
    return panel


def number(title: str, description: str, expr: str, unit: str = "short", span: int = 4) -> stat.Panel:
    """A panel with one number."""
    return (
        stat.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .datasource(SOURCE)
        .span(span)
        .height(4)
        .graph_mode(BigValueGraphMode.NONE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .with_target(prometheus.Dataquery().expr(expr).ref_id("A").instant())
    )


Panels = Sequence[timeseries.Panel | stat.Panel]


def board(uid: str, title: str, description: str, rows: Sequence[tuple[str, Panels]]) -> str:
    """The JSON of one dashboard."""
    made = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags(["runlane"])
        .refresh("30s")
        .time("now-3h", "now")
        .timezone("browser")
        .readonly()
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )
    ids = itertools.count(1)
    for name, panels in rows:
        made.with_row(dashboard.Row(name).id(next(ids)))
        for panel in panels:
            made.with_panel(panel.id(next(ids)))
    return JSONEncoder(sort_keys=True, indent=2).encode(made.build()) + "\n"


def fleet() -> str:
    """How are the agents doing?"""
    return board(
        "runlane-fleet",
        "Runlane: fleet",
        "Runs, who waits for whom, tools, cost. Counted from the signals.",
        [
            (
                "Runs",
                [
                    number("running", "Runs somebody drives now.", f'sum({Metric.RUNS}{{status="running"}})'),
                    number("waiting for a person", "Open approvals.", f"sum({Metric.APPROVALS_OPEN})"),
                    number("lost", "Runs whose worker is gone.", f'sum({Metric.RUNS}{{status="lost"}})'),
                    number("queued", "Runs that wait for a worker.", f"sum({Metric.QUEUE_DEPTH})"),
                    number("oldest in the queue", "How long it has waited.", f"max({Metric.QUEUE_AGE})", "s"),
                    number("oldest approval", "How long it has waited.", f"max({Metric.APPROVAL_AGE})", "s"),
                    graph("runs by status", "Unfinished runs.", (f"sum by (status) ({Metric.RUNS})", "{{status}}")),
                    graph(
                        "started",
                        "Runs a second, by agent.",
                        (rate(Metric.RUNS_STARTED, "tenant, agent"), "{{tenant}} {{agent}}"),
                    ),
                    graph(
                        "ended", "Runs a second, by how they ended.", (rate(Metric.RUNS_ENDED, "status"), "{{status}}")
                    ),
                    graph(
                        "how long runs take",
                        "From asked to over.",
                        (quantile(Metric.RUN_DURATION, 0.5), "p50"),
                        (quantile(Metric.RUN_DURATION, 0.95), "p95"),
                        unit="s",
                    ),
                    graph(
                        "owners lost",
                        "Leases that ended before the run did, and runs taken again.",
                        (rate(Metric.LEASES_LOST, "cause"), "{{cause}}"),
                        (rate(Metric.RUN_RETRIES, "agent"), "again: {{agent}}"),
                    ),
                    graph(
                        "given up",
                        "Runs beyond the bound of the aggregator.",
                        (rate(Metric.RUNS_UNTRACKED, "job"), "untracked"),
                    ),
                ],
            ),
            (
                "Waiting",
                [
                    graph(
                        "queue age",
                        "Of the run that waits longest.",
                        (f"max by (pool) ({Metric.QUEUE_AGE})", "{{pool}}"),
                        unit="s",
                    ),
                    graph(
                        "queue depth", "Runs without an owner.", (f"sum by (pool) ({Metric.QUEUE_DEPTH})", "{{pool}}")
                    ),
                    graph(
                        "wait for an owner",
                        "Of runs that got one.",
                        (quantile(Metric.QUEUE_WAIT, 0.5, "pool"), "p50 {{pool}}"),
                        (quantile(Metric.QUEUE_WAIT, 0.95, "pool"), "p95 {{pool}}"),
                        unit="s",
                    ),
                    graph(
                        "wait for a decision",
                        "Of approvals that got one.",
                        (quantile(Metric.APPROVAL_WAIT, 0.5, "outcome"), "p50 {{outcome}}"),
                        (quantile(Metric.APPROVAL_WAIT, 0.95, "outcome"), "p95 {{outcome}}"),
                        unit="s",
                    ),
                    graph(
                        "decisions",
                        "A second, by what was decided.",
                        (rate(Metric.APPROVALS, "outcome"), "{{outcome}}"),
                    ),
                    graph(
                        "first preview",
                        "From asked to the first thing shown.",
                        (quantile(Metric.FIRST_PREVIEW, 0.5), "p50"),
                        (quantile(Metric.FIRST_PREVIEW, 0.95), "p95"),
                        unit="s",
                    ),
                ],
            ),
            (
                "Tools",
                [
                    graph("calls", "A second.", (rate(Metric.TOOL_CALLS, "tool"), "{{tool}}")),
                    graph(
                        "failures",
                        "A second, by tool.",
                        (rate(Metric.TOOL_CALLS, "tool", 'outcome="failed"'), "{{tool}}"),
                    ),
                    graph(
                        "latency",
                        "Of execution, without the wait for an approval.",
                        (quantile(Metric.TOOL_DURATION, 0.95, "tool"), "p95 {{tool}}"),
                        unit="s",
                    ),
                    graph(
                        "calls again",
                        "Calls that repeat one that failed.",
                        (rate(Metric.TOOL_RETRIES, "tool"), "{{tool}}"),
                    ),
                ],
            ),
            (
                "Cost",
                [
                    graph(
                        "tokens",
                        "A second, by kind. Cache and reasoning are parts of input and output.",
                        (rate(Metric.TOKENS, "kind"), "{{kind}}"),
                    ),
                    graph(
                        "tokens by agent",
                        "Input and output.",
                        (rate(Metric.TOKENS, "tenant, agent", 'kind=~"input|output"'), "{{tenant}} {{agent}}"),
                    ),
                    graph(
                        "dollars an hour",
                        "By tenant and agent.",
                        (f"3600 * {rate(Metric.COST, 'tenant, agent')}", "{{tenant}} {{agent}}"),
                        unit="currencyUSD",
                    ),
                ],
            ),
        ],
    )


def services() -> str:
    """Does each service keep up?"""
    return board(
        "runlane-services",
        "Runlane: services",
        "Latency, lag, refusals: from command to outcome, from log to reader.",
        [
            (
                "Health",
                [
                    graph("ready", "1: every instance is.", (f"min by (service) ({Metric.READY})", "{{service}}")),
                    graph(
                        "active consumers",
                        "Instances that work on a durable; 0: nobody.",
                        (f"sum by (durable) ({Metric.CONSUMER_ACTIVE})", "{{durable}}"),
                    ),
                    graph("versions", "What runs.", (f"count by (version) ({Metric.UP})", "{{version}}")),
                ],
            ),
            (
                "Writing",
                [
                    graph(
                        "append latency",
                        "One commit, durable.",
                        (quantile(Metric.COMMIT_DURATION, 0.5, "service"), "p50 {{service}}"),
                        (quantile(Metric.COMMIT_DURATION, 0.99, "service"), "p99 {{service}}"),
                        unit="s",
                    ),
                    graph(
                        "commits",
                        "A second, by outcome.",
                        (rate(Metric.COMMITS, "service, outcome"), "{{service}} {{outcome}}"),
                    ),
                    graph("facts", "A second, by who handles them.", (rate(Metric.FACTS, "service"), "{{service}}")),
                    graph(
                        "command to outcome",
                        "From accepted to settled.",
                        (quantile(Metric.COMMAND_OUTCOME, 0.5, "type"), "p50 {{type}}"),
                        (quantile(Metric.COMMAND_OUTCOME, 0.99, "type"), "p99 {{type}}"),
                        unit="s",
                    ),
                    graph(
                        "commands",
                        "A second, by outcome.",
                        (rate(Metric.COMMANDS, "service, outcome"), "{{service}} {{outcome}}"),
                    ),
                    graph(
                        "starts refused",
                        "A second, by reason.",
                        (rate(Metric.STARTS_REFUSED, "outcome"), "{{outcome}}"),
                    ),
                ],
            ),
            (
                "Lag",
                [
                    graph(
                        "lag, messages",
                        "What a consumer has before it.",
                        (f"max by (durable) ({Metric.CONSUMER_LAG})", "{{durable}}"),
                    ),
                    graph(
                        "lag, seconds",
                        "Age of the oldest message in hand.",
                        (f"max by (durable) ({Metric.CONSUMER_LAG_SECONDS})", "{{durable}}"),
                        unit="s",
                    ),
                    graph(
                        "stored to handled",
                        "View: redaction_filter. Projection: projector.",
                        (quantile(Metric.DELIVERY_DURATION, 0.99, "service"), "p99 {{service}}"),
                        unit="s",
                    ),
                    graph(
                        "deliveries",
                        "Tried again, and put aside.",
                        (
                            rate(Metric.DELIVERIES, "durable, outcome", 'outcome!="acknowledged"'),
                            "{{durable}} {{outcome}}",
                        ),
                    ),
                    graph(
                        "dead letters", "Kept now.", (f"max by (service) ({Metric.DEAD_LETTERS_KEPT})", "{{service}}")
                    ),
                    graph("quarantined facts", "A second.", (rate(Metric.QUARANTINED, "service"), "{{service}}")),
                ],
            ),
            (
                "Recovery",
                [
                    graph(
                        "recoveries",
                        "What became of runs without an owner.",
                        (rate(Metric.RECOVERIES, "outcome"), "{{outcome}}"),
                    ),
                    graph(
                        "leases and moments",
                        "Held leases; looks that are due.",
                        (f"sum({Metric.LEASES})", "leases"),
                        (f"sum({Metric.MOMENTS})", "moments"),
                    ),
                    graph("looks", "A second.", (rate(Metric.LOOKS, "outcome"), "{{outcome}}")),
                ],
            ),
            (
                "Readers",
                [
                    graph(
                        "watchers",
                        "Open streams, and runs that are watched.",
                        (f"sum({Metric.WATCHERS})", "watchers"),
                        (f"sum({Metric.WATCHED_RUNS})", "runs"),
                        (f"sum({Metric.SOCKETS})", "WebSockets"),
                    ),
                    graph(
                        "watches",
                        "A second, by how they begin and end.",
                        (rate(Metric.WATCHES, "outcome"), "{{outcome}}"),
                    ),
                    graph(
                        "forced resyncs",
                        "Readers that had to begin anew, a second.",
                        (rate(Metric.FORCED_RESYNCS, "service"), "{{service}}"),
                    ),
                    graph(
                        "previews",
                        "A second.",
                        (rate(Metric.PREVIEWS, "service"), "shown {{service}}"),
                        (rate(Metric.PREVIEWS_DROPPED, "service"), "dropped {{service}}"),
                        (rate(Metric.PREVIEWS_MERGED, "service"), "merged {{service}}"),
                    ),
                    graph(
                        "view repairs",
                        "Gaps that were read again; a hole is one that stays.",
                        (rate(Metric.VIEW_REPAIRS, "outcome"), "{{outcome}}"),
                    ),
                    graph(
                        "slow readers",
                        "What was done about them, a second.",
                        (rate(Metric.WATCH_OVERFLOWS, "action"), "{{action}}"),
                    ),
                    graph("history pages", "A second.", (rate(Metric.HISTORY_PAGES, "service"), "{{service}}")),
                    graph(
                        "requests",
                        "A second, by status.",
                        (rate(Metric.HTTP_REQUESTS, "service, status"), "{{service}} {{status}}"),
                    ),
                    graph(
                        "request latency",
                        "Until the answer begins.",
                        (quantile(Metric.HTTP_DURATION, 0.99, "route", 'method!="GET"'), "p99 {{route}}"),
                        unit="s",
                    ),
                ],
            ),
            (
                "Audit and telemetry",
                [
                    graph(
                        "audit",
                        "A second.",
                        (rate(Metric.AUDIT_RECORDS, "service"), "records"),
                        (rate(Metric.AUDIT_CHECKPOINTS, "service"), "checkpoints"),
                    ),
                    graph(
                        "refusals of access",
                        "Noted, and lost on the way.",
                        (rate(Metric.AUDIT_REFUSALS, "service"), "{{service}}"),
                        (rate(Metric.AUDIT_REFUSALS_DROPPED, "service"), "lost {{service}}"),
                    ),
                    graph("signals", "A second, by family.", (rate(Metric.SIGNALS, "type"), "{{type}}")),
                    graph(
                        "age of the numbers",
                        "Of a signal when it is counted; of what is not written down.",
                        (quantile(Metric.SIGNAL_DELAY, 0.9), "signals p90"),
                        (f"max({Metric.CHECKPOINT_AGE})", "checkpoint"),
                        unit="s",
                    ),
                    graph("spans", "A second, by what became of them.", (rate(Metric.SPANS, "outcome"), "{{outcome}}")),
                ],
            ),
        ],
    )


def broker() -> str:
    """Does NATS keep up, and has it room?"""
    return board(
        "runlane-broker",
        "Runlane: broker",
        "Streams, durables and servers, as the broker tells.",
        [
            (
                "Streams",
                [
                    number("reachable", "1: it answers.", f"max({Metric.BROKER_UP})"),
                    graph(
                        "how full",
                        "Of the bound; the log and the view refuse at 100 %.",
                        (f"max by (stream) ({Metric.STREAM_BYTES} / ({Metric.STREAM_LIMIT} > 0))", "{{stream}}"),
                        unit="percentunit",
                    ),
                    graph(
                        "bytes", "On disk.", (f"max by (stream) ({Metric.STREAM_BYTES})", "{{stream}}"), unit="bytes"
                    ),
                    graph("messages", "Kept.", (f"max by (stream) ({Metric.STREAM_MESSAGES})", "{{stream}}")),
                    graph(
                        "consumers",
                        "Durables, and tails of single runs.",
                        (f"max by (stream) ({Metric.STREAM_CONSUMERS})", "{{stream}}"),
                    ),
                    graph(
                        "replicas behind",
                        "Not current, or offline.",
                        (f"max by (stream) ({Metric.STREAM_REPLICAS_BEHIND})", "{{stream}}"),
                    ),
                ],
            ),
            (
                "Durables",
                [
                    graph(
                        "pending",
                        "Messages not delivered yet.",
                        (f"max by (durable) ({Metric.DURABLE_PENDING})", "{{durable}}"),
                    ),
                    graph(
                        "unacknowledged",
                        "Delivered, not done.",
                        (f"max by (durable) ({Metric.DURABLE_UNACKNOWLEDGED})", "{{durable}}"),
                    ),
                    graph(
                        "redelivered",
                        "Given more than once, not done.",
                        (f"max by (durable) ({Metric.DURABLE_REDELIVERED})", "{{durable}}"),
                    ),
                    graph(
                        "idle with work",
                        "Since when nothing was finished.",
                        (f"max by (durable) ({Metric.DURABLE_IDLE})", "{{durable}}"),
                        unit="s",
                    ),
                ],
            ),
            (
                "Servers",
                [
                    graph("connections", "Clients.", (f"max by (server) ({Metric.BROKER_CONNECTIONS})", "{{server}}")),
                    graph(
                        "subscriptions",
                        "Of all clients.",
                        (f"max by (server) ({Metric.BROKER_SUBSCRIPTIONS})", "{{server}}"),
                    ),
                    graph(
                        "slow consumers",
                        "Connections cut off, a minute.",
                        (f"60 * {rate(Metric.BROKER_SLOW_CONSUMERS, 'server')}", "{{server}}"),
                    ),
                    graph(
                        "memory",
                        "Of the server.",
                        (f"max by (server) ({Metric.BROKER_MEMORY})", "{{server}}"),
                        unit="bytes",
                    ),
                    graph(
                        "storage",
                        "Of JetStream.",
                        (f"max by (server) ({Metric.BROKER_STORAGE})", "{{server}}"),
                        unit="bytes",
                    ),
                    graph(
                        "CPU", "Of one core.", (f"max by (server) ({Metric.BROKER_CPU})", "{{server}}"), unit="percent"
                    ),
                    graph(
                        "messages",
                        "A second.",
                        (rate(Metric.BROKER_MESSAGES_IN, "server"), "in {{server}}"),
                        (rate(Metric.BROKER_MESSAGES_OUT, "server"), "out {{server}}"),
                    ),
                    graph(
                        "API errors",
                        "A second.",
                        (f"max(rate({Metric.BROKER_API_ERRORS}[$__rate_interval]))", "errors"),
                    ),
                ],
            ),
        ],
    )


BOARDS = {"fleet": fleet, "services": services, "broker": broker}
