"""The tree of a run: parents, names, links, and that nothing tears it."""

import msgspec

from runlane.metrics_aggregator.book import Book
from runlane.metrics_aggregator.runs import OpenRun
from runlane.metrics_aggregator.signals import decode_signal
from runlane.metrics_aggregator.spans import span_of
from runlane_contracts.tracing import (
    is_sampled,
    own_context,
    parse_traceparent,
    run_trace_id,
    span_id,
    trace_id_of,
)
from support.signals import Story, whole_run


def spans(story, book=None):
    book = Book(10) if book is None else book
    happened = [one for signal in story.signals for one in book.apply(signal)]
    return [span for one in happened if (span := span_of(one)) is not None]


def named(found):
    return {span.name: span for span in found}


def test_one_tree_over_a_pause_and_a_change_of_owner():
    """Taken out: parents by what an item is in (`_parent_of`); then the approval hangs under the run."""
    found = spans(whole_run())
    by_id = {span.context.span_id: span for span in found}
    tree = sorted((span.name, by_id[span.parent_span_id].name if span.parent_span_id else "") for span in found)
    assert tree == [
        ("chat", "runlane.turn"),
        ("execute_tool buy", "runlane.turn"),
        ("invoke_agent greengrocer", ""),
        ("runlane.approval", "execute_tool buy"),
        ("runlane.attempt", "invoke_agent greengrocer"),
        ("runlane.attempt", "invoke_agent greengrocer"),
        ("runlane.turn", "invoke_agent greengrocer"),
    ]
    assert {span.context.trace_id for span in found} == {run_trace_id("acme", "r1")}


def test_another_owner_is_a_link():
    found = spans(whole_run())
    first, second = [span for span in found if span.name == "runlane.attempt"]
    assert first.links == ()
    assert [(link.context.span_id, link.reason) for link in second.links] == [(first.context.span_id, "previous_owner")]
    tool = named(found)["execute_tool buy"]
    owners = [link.context.span_id for link in tool.links if link.reason == "owner"]
    assert owners == [first.context.span_id, second.context.span_id]
    assert first.error == "expired"


def test_the_request_that_decided_is_a_link_of_the_approval():
    approval = named(spans(whole_run()))["runlane.approval"]
    assert [(link.context.trace_id, link.reason) for link in approval.links if link.reason != "owner"] == [
        ("ab" * 16, "decided_by")
    ]
    assert approval.attributes["runlane.decision"] == "approved"
    assert approval.ended_ns - approval.started_ns == 46_000_000_000


def test_who_asked_with_a_trace_has_the_run_in_it():
    story = whole_run(traceparent=f"00-{'12' * 16}-{'34' * 8}-01")
    root = named(spans(story))["invoke_agent greengrocer"]
    assert (root.context.trace_id, root.parent_span_id) == ("12" * 16, "34" * 8)


def test_who_asked_unsampled_gets_no_spans_and_is_counted_all_the_same():
    assert spans(whole_run(traceparent=f"00-{'12' * 16}-{'34' * 8}-00")) == []


def test_the_conventions_of_genai_name_everything():
    found = named(spans(whole_run()))
    root, tool, chat = found["invoke_agent greengrocer"], found["execute_tool buy"], found["chat"]
    assert root.attributes["gen_ai.operation.name"] == "invoke_agent"
    assert root.attributes["gen_ai.agent.name"] == "greengrocer"
    assert root.attributes["gen_ai.conversation.id"] == "r1"
    assert (root.attributes["gen_ai.usage.input_tokens"], root.attributes["gen_ai.usage.output_tokens"]) == (150, 20)
    assert tool.attributes["gen_ai.operation.name"] == "execute_tool"
    assert (tool.attributes["gen_ai.tool.name"], tool.attributes["gen_ai.tool.call.id"]) == ("buy", "c1")
    assert chat.attributes["gen_ai.operation.name"] == "chat"
    assert [name for _, name in root.events][:2] == ["run.started", "run.waiting"]


def test_a_chat_is_named_by_the_model_that_was_asked_and_says_which_one_answered():
    """Taken out: `_asked` in `_name`; or the fields of `OpenItem`."""
    story = Story().tell("run.created", agent="a")
    story.tell("message.started", message_id="m1", role="assistant", model="gpt-5", provider="openai")
    story.tell("message.completed", message_id="m1", role="assistant", content="x", model="gpt-5-2026-03-01")
    story.tell("message.completed", message_id="m2", role="assistant", content="x", model="m" * 200, provider="own")
    story.tell("message.completed", message_id="m3", role="assistant", content="x")
    asked, answered, unknown = spans(story)
    names = ("gen_ai.request.model", "gen_ai.response.model", "gen_ai.provider.name")
    assert asked.name == "chat gpt-5"
    assert [asked.attributes[one] for one in names] == ["gpt-5", "gpt-5-2026-03-01", "openai"]
    assert answered.name == "chat " + "m" * 128
    assert [answered.attributes[one] for one in names] == ["m" * 128, "m" * 128, "own"]
    assert (unknown.name, [unknown.attributes.get(one) for one in names]) == ("chat", [None, None, "_OTHER"])


def test_no_span_holds_content():
    assert b"SECRET" in b"".join(bytes(fact.payload) for fact in whole_run().facts)
    assert b"SECRET" not in msgspec.json.encode(spans(whole_run()))


def test_a_restart_in_the_middle_makes_the_same_tree():
    """Taken out: ids that follow from what a span is about; then the second half has other parents."""
    whole = spans(whole_run())
    for cut in range(1, len(whole_run().facts)):
        before, after = whole_run(), whole_run()
        del before.facts[cut:]
        del after.facts[:cut]
        book = Book(10)
        first = spans(before, book)
        kept = msgspec.msgpack.decode(msgspec.msgpack.encode(list(book.runs)), type=list[OpenRun])
        assert first + spans(after, Book(10, kept)) == whole, cut


def test_what_is_open_when_the_run_ends_ends_with_it_from_the_inside():
    story = Story().tell("run.created", agent="a").tell("turn.started", turn_id="t")
    story.tell("tool.requested", tool_call_id="c", name="n", arguments={}, turn_id_="t")
    story.tell("run.failed", error={"code": "boom"})
    found = spans(story)
    assert [span.name for span in found] == ["execute_tool n", "runlane.turn", "invoke_agent a"]
    assert found[-1].error == "boom"
    assert found[0].attributes["outcome"] == "left_open"


def test_a_clock_that_is_far_off_is_not_believed():
    story = Story().tell("run.created", agent="a").tell("run.cancelled")
    body = story.bodies[1].replace(b'"occurred_at":"2026', b'"occurred_at":"2031')
    signal = decode_signal(body)
    assert signal.at_ns == signal.recorded_ns


def test_a_share_of_all_runs_is_chosen_by_the_trace():
    chosen = [run for run in map(str, range(2000)) if own_context("acme", run, ratio=0.25).sampled]
    assert 350 < len(chosen) < 650
    assert is_sampled("f" * 32, 1.0)
    assert not is_sampled("0" * 32, 0.0)


def test_a_traceparent_that_names_nothing_is_none():
    for text in (
        None,
        "",
        "x",
        f"00-{'0' * 32}-{'1' * 16}-01",
        f"00-{'1' * 32}-{'0' * 16}-01",
        f"ff-{'1' * 32}-{'1' * 16}-01",
    ):
        assert parse_traceparent(text) is None
        assert trace_id_of(text, "acme", "r1") == run_trace_id("acme", "r1")
    assert parse_traceparent(f"01-{'1' * 32}-{'2' * 16}-03-more").sampled
    assert len(span_id("acme", "r1", "run")) == 16
