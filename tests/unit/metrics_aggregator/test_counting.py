"""What the numbers are, given signals."""

import pytest

from runlane.metrics_aggregator.book import Book
from runlane.metrics_aggregator.labels import Labels, Limits, shown
from runlane.metrics_aggregator.rollup import Rollup
from runlane.metrics_aggregator.signals import decode_signal
from runlane.metrics_aggregator.usage import usage_of
from runlane_contracts.telemetry import OVERFLOW, Metric
from support.signals import Story, whole_run


class Durations:
    def __init__(self):
        self.seen = []

    def record(self, metric, seconds, labels):
        self.seen.append((metric, seconds, dict(labels)))


class Counter:
    """A book and a rollup, fed with stories."""

    def __init__(self, max_runs=100, limits=None):
        self.book = Book(max_runs)
        self.durations = Durations()
        self.rollup = Rollup(Labels(limits or Limits()), self.durations)

    def read(self, *stories):
        for story in stories:
            for signal in story.signals:
                for happened in self.book.apply(signal):
                    self.rollup.count(happened)
        return self

    def of(self, metric):
        return {tuple(labels.values()): value for value, labels in self.rollup.of(metric)}

    def lasted(self, metric):
        return [(seconds, labels) for one, seconds, labels in self.durations.seen if one is metric]


def test_a_whole_run_is_counted_once_in_every_way():
    counter = Counter().read(whole_run())
    assert counter.of(Metric.RUNS_STARTED) == {("greengrocer", "acme"): 1}
    assert counter.of(Metric.RUNS_ENDED) == {("greengrocer", "completed", "acme"): 1}
    assert counter.of(Metric.RUN_RETRIES) == {("greengrocer", "acme"): 1}
    assert counter.of(Metric.LEASES_LOST) == {("greengrocer", "expired", "acme"): 1}
    assert counter.of(Metric.TOOL_CALLS) == {("completed", "buy"): 1}
    assert counter.of(Metric.APPROVALS) == {("approved",): 1}
    assert counter.lasted(Metric.QUEUE_WAIT) == [(2.0, {"pool": "default"}), (5.0, {"pool": "default"})]
    assert counter.lasted(Metric.APPROVAL_WAIT) == [(46.0, {"outcome": "approved"})]
    assert counter.lasted(Metric.TOOL_DURATION) == [(4.0, {"tool": "buy", "outcome": "completed"})]
    assert counter.lasted(Metric.RUN_DURATION) == [(61.0, {"status": "completed"})]
    assert len(counter.book) == 0


def test_what_the_turns_said_is_not_counted_again_with_the_run():
    """Taken out: `more_than` in `_ended` of the book; then input is 250."""
    counter = Counter().read(whole_run())
    assert counter.of(Metric.TOKENS) == {
        ("greengrocer", "input", "acme"): 150, ("greengrocer", "output", "acme"): 20,
    }  # fmt: skip
    assert counter.of(Metric.COST) == {("greengrocer", "acme"): 0.25}


def test_a_signal_that_comes_again_is_not_counted_again():
    story = whole_run()
    counter = Counter()
    story.facts.insert(7, story.facts[5])
    counter.read(story)
    assert counter.of(Metric.TOOL_CALLS) == {("completed", "buy"): 1}


@pytest.mark.parametrize(
    ("upto", "status"),
    [(1, "created"), (2, "created"), (3, "running"), (8, "waiting"), (9, "lost"), (10, "waiting"), (12, "running")],
)
def test_the_status_is_the_one_that_readers_see(upto, status):
    story = whole_run()
    del story.facts[upto:]
    assert Counter().read(story).book.by_status() == {status: 1}


def test_the_queue_holds_who_waits_for_an_owner():
    story = whole_run()
    del story.facts[1:]
    external = Story("r2").tell("run.created", agent="x", dispatch="external")
    waiting = [run.run_id for run in Counter().read(story, external).book.runs if run.waits_since_ns]
    assert waiting == ["r1"]


def test_a_failed_tool_and_one_that_is_tried_again_are_told_apart_by_tool():
    story = Story().tell("run.created", agent="a").tell("tool.requested", tool_call_id="c1", name="get", arguments={})
    story.tell("tool.failed", tool_call_id="c1", error={"code": "timeout", "message": "SECRET"})
    story.tell("tool.requested", tool_call_id="c2", name="get", arguments={}, retry_of="c1", attempt=2)
    story.tell("tool.completed", tool_call_id="c2", result=None)
    counter = Counter().read(story)
    assert counter.of(Metric.TOOL_CALLS) == {("failed", "get"): 1, ("completed", "get"): 1}
    assert counter.of(Metric.TOOL_RETRIES) == {("get",): 1}


def test_a_run_whose_beginning_is_not_kept_is_counted_from_where_it_is():
    story = whole_run()
    del story.facts[:5]
    counter = Counter().read(story)
    assert counter.of(Metric.RUNS_STARTED) == {}
    assert counter.of(Metric.RUNS_ENDED) == {("_unnamed", "completed", "acme"): 1}
    assert counter.lasted(Metric.RUN_DURATION) == []


def test_facts_about_the_record_of_a_finished_run_do_not_open_it_again():
    story = whole_run().tell("log.quarantined", reason="x")
    assert len(Counter().read(story).book) == 0


def test_runs_beyond_the_bound_are_given_up_the_one_seen_longest_ago_first():
    stories = [Story(f"r{n}").tell("run.created", agent="a") for n in range(12)]
    counter = Counter(max_runs=10).read(*stories)
    assert counter.book.given_up == 2
    assert {run.run_id for run in counter.book.runs} == {f"r{n}" for n in range(2, 12)}


def test_an_unknown_type_and_a_payload_that_does_not_fit_stop_nothing():
    body = Story().tell("run.created", agent="a").bodies[0]
    for type_, payload in (("moon.landed", b"{}"), ("tool.requested", b'{"tool_call_id": 7}'), ("x", b"[]")):
        text = body.replace(b'"run.created"', b'"' + type_.encode() + b'"')
        signal = decode_signal(text[: text.index(b'"payload":')] + b'"payload":' + payload + b"}")
        assert Counter().book.apply(signal) is not None


# --- labels -------------------------------------------------------------------------------------------------


def test_names_beyond_the_bound_share_a_label_and_the_first_keep_theirs():
    """Taken out: the bound in `_bounded`; then there are as many labels as names."""
    limits = Limits(tenants=2, agents=3, agents_per_tenant=2, tools=2)
    labels = Labels(limits)
    seen = {labels.agent(tenant, agent) for tenant in ("t1", "t2", "t3") for agent in ("a", "b", "c", "d")}
    assert len([pair for pair in seen if OVERFLOW not in pair]) == 3
    assert labels.agent("t1", "c") == ("t1", OVERFLOW)
    assert labels.agent("t3", "a") == (OVERFLOW, OVERFLOW)
    assert {labels.tool(f"tool{n}") for n in range(1000)} == {"tool0", "tool1", OVERFLOW}
    again = Labels(limits, labels.taken)
    assert (again.tool("tool1"), again.tool("tool2")) == ("tool1", OVERFLOW)


def test_a_tenant_with_many_agents_leaves_labels_to_the_others():
    labels = Labels(Limits(agents_per_tenant=5))
    for n in range(1000):
        labels.agent("loud", f"a{n}")
    assert labels.agent("quiet", "only") == ("quiet", "only")


def test_a_name_cannot_pretend_to_be_all_others_or_break_a_line():
    assert shown(OVERFLOW) != OVERFLOW
    assert shown("a\nb\x1b[31m") == "a?b?[31m"
    assert len(shown("x" * 10_000)) == 64
    assert shown("") == "_unnamed"


# --- usage --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "meant"),
    [
        ({"input_tokens": 3, "output_tokens": 4}, {"input": 3, "output": 4}),
        ({"prompt_tokens": 3, "completion_tokens": 4}, {"input": 3, "output": 4}),
        ({"inputTokens": 3, "cachedInputTokens": 1, "reasoningOutputTokens": 2},
         {"input": 3, "cache_read": 1, "reasoning": 2}),
        ({"tokens": {"input_tokens": 9, "cache_creation_input_tokens": 2}, "cost_usd": 0.5},
         {"input": 9, "cache_write": 2, "cost_usd": 0.5}),
        ({"input_tokens": True, "output_tokens": -4, "cost": float("1e300"), "else": 3}, {}),
        (None, {}), ([1], {}), ("x", {}),
    ],
)  # fmt: skip
def test_usage_means_the_same_whoever_wrote_it(raw, meant):
    assert usage_of(raw) == meant
