"""Content on spans: of which tenants, of which facts, how much; and that nothing else changes."""

import json
from dataclasses import dataclass, field

import msgspec
import pytest

from runlane.kernel.errors import Retryable
from runlane.metrics_aggregator import content
from runlane.metrics_aggregator.book import Book
from runlane.metrics_aggregator.content import Contents
from runlane.metrics_aggregator.settings import MetricsAggregatorSettings
from runlane.metrics_aggregator.spans import span_of
from runlane_contracts.codec import encode
from runlane_contracts.envelope import Commit
from runlane_contracts.streams import Layout
from support.signals import Story, whole_run

LAYOUT = Layout()
CONTENT = {
    "gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.tool.call.arguments", "gen_ai.tool.call.result",
}  # fmt: skip


@dataclass
class Message:
    subject: str
    data: bytes


@dataclass
class Page:
    messages: list[Message]


@dataclass
class View:
    """Holds the facts of some stories, one a message, from a place on."""

    by_seq: dict[int, Message] = field(default_factory=dict)
    is_gone: bool = False

    def hold(self, story: Story, *, first_seq: int = 1) -> "View":
        subject = LAYOUT.subjects.view(story.tenant_id, story.run_id)
        for seq, fact in enumerate(story.facts, first_seq):
            commit = Commit(
                commit_id=f"c{seq}", tenant_id=story.tenant_id, run_id=story.run_id, first_sequence=fact.sequence,
                facts=(fact,),
            )  # fmt: skip
            self.by_seq[seq] = Message(subject, encode(commit))
        return self

    async def get(self, _stream: str, seq: int) -> Message | None:
        if self.is_gone:
            raise Retryable("no answer in time")
        return self.by_seq.get(seq)

    async def page(self, _stream: str, subject: str, start_seq: int, *, max_messages: int, max_bytes: int) -> Page:
        assert max_messages > 0 < max_bytes
        return Page([one for seq, one in sorted(self.by_seq.items()) if seq >= start_seq and one.subject == subject])


def finished(story: Story, *, first_seq: int = 1) -> list:
    """The spans of a story whose commits stand in the log from a place on; 0: nobody looked where."""
    book, found = Book(10), []
    for n, signal in enumerate(story.signals):
        placed = msgspec.structs.replace(signal, log_seq=first_seq + n if first_seq else 0)
        found += [span for one in book.apply(placed) if (span := span_of(one)) is not None]
    return found


def contents(view: View, *tenants: str, max_chars: int = 8192) -> Contents:
    return Contents(view, LAYOUT, frozenset(tenants), max_chars=max_chars)


def content_on(span) -> dict:
    return {name: span.attributes[name] for name in CONTENT & span.attributes.keys()}


@pytest.mark.parametrize("first_seq", [1, 501])
async def test_spans_of_a_tenant_that_wants_it_show_what_the_view_holds(first_seq: int) -> None:
    """Also where the view holds the run elsewhere than the log: `page` in `_fact` finds it."""
    story = whole_run()
    adding = contents(View().hold(story), "acme")
    shown = {span.name: content_on(span) for span in await adding.added(finished(story, first_seq=first_seq))}
    said = [{"role": "assistant", "parts": [{"type": "text", "content": "SECRET"}], "finish_reason": "stop"}]
    assert {name for name, found in shown.items() if found} == {"chat", "execute_tool buy", "invoke_agent greengrocer"}
    assert json.loads(shown["chat"]["gen_ai.output.messages"]) == said
    assert shown["execute_tool buy"] == {
        "gen_ai.tool.call.arguments": '{"x":"SECRET"}', "gen_ai.tool.call.result": '"SECRET"',
    }  # fmt: skip
    run = shown["invoke_agent greengrocer"]
    assert json.loads(run["gen_ai.input.messages"]) == [{"role": "user", "parts": said[0]["parts"]}]
    assert json.loads(run["gen_ai.output.messages"]) == said
    assert adding.counts == {"shown": 3, "missing": 0}


async def test_nobody_else_shows_any_and_nothing_is_read_for_them() -> None:
    """Taken out: the tenant in `wants`."""
    story, view = whole_run(), View(is_gone=True)
    spans = finished(story)
    for tenants in ((), ("acm",), ("other",)):
        assert await contents(view, *tenants).added(spans) == spans
    assert await contents(view, "acme").added(finished(story, first_seq=0)) == finished(story, first_seq=0)


async def test_what_is_long_is_cut_and_says_so_and_stays_json() -> None:
    story = Story().tell("run.created", agent="a", input={"text": "x" * 500})
    story.tell("tool.requested", tool_call_id="c", name="n", arguments={"y": "y" * 500})
    story.tell("tool.completed", tool_call_id="c", result=7).tell("run.completed", output="short")
    call, run = await contents(View().hold(story), "acme", max_chars=100).added(finished(story))
    (asked,) = json.loads(run.attributes["gen_ai.input.messages"])
    text = asked["parts"][0]["content"]
    assert (len(text), text[-1], text[:9]) == (100, "…", '{"text":"')
    assert len(call.attributes["gen_ai.tool.call.arguments"]) == 100
    assert call.attributes["gen_ai.tool.call.result"] == "7"
    assert run.attributes["runlane.content_cut"] is True is call.attributes["runlane.content_cut"]


async def test_a_span_whose_content_cannot_be_had_goes_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "_BETWEEN_S", 0.0)
    spans = finished(whole_run())
    for view in (View(is_gone=True), View()):
        adding = contents(view, "acme")
        assert await adding.added(spans) == spans
        assert adding.counts == {"shown": 0, "missing": 3}


async def test_what_is_another_runs_or_no_commit_is_not_shown() -> None:
    view, story = View().hold(whole_run("r2", "other")), whole_run()
    for seq in (5, 6):
        view.by_seq[seq] = Message(LAYOUT.subjects.view("acme", "r1"), b"{")
    assert not [one for one in await contents(view, "acme").added(finished(story)) if content_on(one)]


def test_tenants_are_named_one_by_one_and_none_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MetricsAggregatorSettings().content_of == frozenset()
    assert MetricsAggregatorSettings(content_tenants="acme, other").content_of == {"acme", "other"}
    for wrong in ("*", "acme,Not A Tenant", "all tenants"):
        with pytest.raises(ValueError, match="is no tenant"):
            MetricsAggregatorSettings(content_tenants=wrong)
