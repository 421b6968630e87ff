"""The verbs against a fake edge: what they print, and with which code they end."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from runlane.cli.main import runlane
from runlane.cli.output import printable
from runlane.cli.state_dir import DEFAULT, ConnectionInfo, option_for
from runlane_contracts import events
from support.fake_edge import TOKEN
from support.runs import Story, a_short_run, a_waiting_run
from support.site import Site


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as site:
        yield site


def test_runs_lists_the_newest_first(site: Site):
    site.add(a_short_run())
    site.add(a_waiting_run())
    assert [run["run_id"] for run in site.json("runs")] == ["run_2", "run_1"]
    assert [run["run_id"] for run in site.json("runs", "--status", "waiting")] == ["run_2"]
    table = site.call("runs").stdout
    assert "run_2" in table
    assert "waiting" in table


def test_start_prints_the_id_alone_on_stdout(site: Site):
    result = site.call("start", "--agent", "a", "--input", '{"n": 1}', "--run-id", "mine")
    assert (result.exit_code, result.stdout) == (0, "mine\n")
    assert "runlane watch mine" in result.stderr
    assert site.lane.runs["mine"].life.created.input == {"n": 1}
    assert site.json("start", "--agent", "a", "--input", "plain text")[0]["status"] == "created"


def test_start_reads_its_input_from_a_file(site: Site, tmp_path: Path):
    (tmp_path / "in.json").write_text('["from", "file"]')
    site.call("start", "--agent", "a", "--input", f"@{tmp_path}/in.json", "--run-id", "mine", "--external")
    assert site.lane.runs["mine"].life.created.input == ["from", "file"]
    assert site.call("start", "--agent", "a", "--input", "@/nowhere").exit_code == 2


def test_replay_in_brief_shows_each_row_once_with_its_count_and_its_facts(site: Site):
    story = Story(run_id="busy").then(events.RunCreated(agent="a"), events.RunLeased(lease_epoch=1, worker_id="w1"))
    for number in range(3):
        story.then(
            events.ToolRequested(tool_call_id=f"c{number}", name="read_file", arguments={}),
            events.ToolCompleted(tool_call_id=f"c{number}", result="\x1b[31mred"),
        )
    story.then(
        events.ToolRequested(tool_call_id="c9", name="write_file", arguments={}),
        events.ToolFailed(tool_call_id="c9", error=events.Problem(code="disk", message="\x1b[2Jfull")),
        events.MessageCompleted(message_id="m1", role="assistant", content="that is all"),
    )
    run_id = site.add(story)
    lines = site.call("replay", run_id, "--rows").stdout.splitlines()
    assert len(lines) == 5
    assert "read_file ×3" in lines[2]
    assert "#3–8" in lines[2]
    assert "tool failed  write_file  disk: " in lines[3]
    assert "\x1b[2J" not in lines[3]
    assert [row["count"] for row in site.json("replay", run_id, "--rows")] == [1, 1, 3, 1, 1]
    assert len(site.json("replay", run_id, "--rows", "--at", "4")) == 3
    assert site.call("replay", run_id, "--rows", "--speed", "2").exit_code == 2


def test_re_execute_begins_a_new_run_from_an_old_one_and_prints_its_id_alone(site: Site):
    old = site.add(a_short_run())
    result = site.call("re-execute", old, "--run-id", "again", "--pool", "slow")
    assert (result.exit_code, result.stdout) == (0, "again\n")
    assert "runlane watch again" in result.stderr
    created = site.lane.runs["again"].life.created
    assert (created.input, created.parent_run_id, created.pool) == ({"text": "hello", "weight": 1.0}, old, "slow")
    assert site.json("re-execute", old)[0]["run_id"].startswith("run_")


def test_re_execute_refuses_by_name_what_is_not_safe_twice(site: Site):
    story = Story(run_id="paid").then(
        events.RunCreated(agent="a"), events.RunLeased(lease_epoch=1, worker_id="w1"), events.RunStarted(),
        events.ToolRequested(tool_call_id="c1", name="pay", arguments={}, side_effect="unsafe"),
        events.ToolCompleted(tool_call_id="c1", result=1), events.RunCompleted(),
    )  # fmt: skip
    old = site.add(story)
    result = site.call("re-execute", old)
    assert result.exit_code == 1
    assert "unsafe_tools" in result.stderr
    assert site.call("re-execute", old, "--allow-unsafe").exit_code == 0
    assert "no checkpoint" in site.call("re-execute", old, "--allow-unsafe", "--from-checkpoint").stderr


def test_watch_as_json_prints_the_frames_of_the_wire(site: Site):
    run_id = site.add(a_short_run())
    frames = site.json("watch", run_id, "--from", "start")
    assert [frame["event"] for frame in frames] == ["hello", *["fact"] * 12, "synced", "end"]
    assert [frame["id"] for frame in frames if frame["event"] == "fact"] == [f"c{n}" for n in range(1, 13)]
    assert all("id" not in frame for frame in frames if frame["event"] in {"hello", "synced", "end"})


def test_watch_continues_after_a_cursor(site: Site):
    run_id = site.add(a_short_run())
    frames = site.json("watch", run_id, "--cursor", "c10")
    assert [frame["data"]["sequence"] for frame in frames if frame["event"] == "fact"] == [11, 12]
    assert site.json("watch", run_id, "--cursor", "c12") == []
    result = site.call("watch", run_id, "--cursor", "c10")
    assert "run.completed" in result.stdout


def test_watch_latest_follows_a_run_to_its_end_and_shows_what_it_did(site: Site):
    site.add(a_short_run())
    result = site.call("watch", "latest")
    assert result.exit_code == 0
    assert "An apple and a pear." in result.stdout
    assert "list_items" in result.stdout


def test_watch_says_when_the_connection_is_lost_and_goes_on(site: Site):
    run_id = site.add(a_short_run())
    site.lane.cut_after.append(4)
    result = site.call("watch", run_id, "--from", "start")
    assert result.exit_code == 0
    assert "reconnecting: the connection was lost" in result.stderr
    assert result.stdout.count("run.created") == 1
    assert "run.completed" in result.stdout


def test_an_unknown_run_is_refused_by_name(site: Site):
    result = site.call("watch", "run_nowhere")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("runlane: run_not_found")
    assert site.call("watch", "latest").exit_code == 1


def test_approve_binds_the_decision_to_what_is_shown(site: Site):
    run_id = site.add(a_waiting_run())
    result = site.call("approve", run_id)
    assert result.exit_code == 0, result.output
    assert "Pay 12.50" in result.stderr
    assert site.lane.payloads(run_id, "approval.resolved")[0]["decision"] == "approved"
    again = site.call("reject", run_id, "a1")
    assert again.exit_code == 1
    assert "already_resolved" in again.stderr
    assert "approved" in again.stderr
    assert site.call("approve", run_id).exit_code == 1


def test_approve_with_data_is_an_edited_approval(site: Site):
    run_id = site.add(a_waiting_run())
    (outcome,) = site.json("approve", run_id, "a1", "--data", '{"amount": 1}')
    assert outcome["outcome"] == "applied"
    assert (
        site.lane.payloads(run_id, "approval.resolved")[0] | {"decision": "modified"}
        == (site.lane.payloads(run_id, "approval.resolved")[0])
    )
    assert site.call("approve", run_id, "a1", "--data", "{nonsense").exit_code == 2


def test_approve_asks_which_when_there_are_two(site: Site):
    story = a_waiting_run()
    story.then(
        events.ApprovalRequested(approval_id="a2", description="again", risk="low", version=1, action_digest="d")
    )
    result = site.call("approve", site.add(story))
    assert result.exit_code == 2
    assert "a1" in result.stderr
    assert "a2" in result.stderr


@pytest.mark.parametrize(
    ("verb", "more", "fact"),
    [
        ("cancel", ["--reason", "enough"], "run.cancel_requested"),
        ("pause", [], "run.pause_requested"),
        ("resume", [], "run.resumed"),
        ("send", ["hello"], "message.completed"),
        ("retry", ["c1"], "tool.requested"),
    ],
)
def test_steering_a_run_leaves_a_fact(site: Site, verb: str, more: list[str], fact: str):
    run_id = site.add(a_waiting_run())
    result = site.call(verb, run_id, *more)
    assert result.exit_code == 0, result.output
    assert site.lane.types(run_id)[-1] == fact


def test_reconcile_says_what_became_of_a_call_and_needs_to_know_how(site: Site):
    story = a_waiting_run()
    story.then(
        events.ToolRequested(tool_call_id="pay", name="pay", arguments={}, side_effect="unsafe"),
        events.ToolOutcomeUnknown(tool_call_id="pay", operation_id="op"),
    )
    run_id = site.add(story)
    assert site.call("reconcile", run_id, "pay", "--note", "n").exit_code == 2
    assert site.call("reconcile", run_id, "pay", "--executed").exit_code == 2
    result = site.call("reconcile", run_id, "pay", "--not-executed", "--note", "not on the statement")
    assert result.exit_code == 0, result.output
    (said,) = site.lane.payloads(run_id, "tool.reconciled")
    assert (said["outcome"], said["note"]) == ("not_executed", "not on the statement")
    assert site.call("reconcile", run_id, "pay", "--executed", "--note", "n").exit_code == 1


def test_deciding_as_somebody_else_takes_their_key(site: Site):
    run_id = site.add(a_waiting_run())
    assert site.call("approve", run_id, "--as", "nobodys-key").exit_code == 1
    assert site.lane.payloads(run_id, "approval.resolved") == []


def test_a_finished_run_declines_by_name(site: Site):
    run_id = site.add(a_short_run())
    result = site.call("cancel", run_id, "--json")
    assert result.exit_code == 1
    assert msgspec.json.decode(result.stdout)["code"] == "run_terminal"


def test_replay_shows_the_whole_record(site: Site):
    run_id = site.add(a_short_run())
    facts = site.json("replay", run_id)
    assert [fact["sequence"] for fact in facts] == list(range(1, 13))
    lines = site.call("replay", run_id).stdout.splitlines()
    assert len(lines) == 14
    assert lines[-1].startswith("state sha256:")


def test_replay_shows_how_a_run_stood_at_a_sequence(site: Site):
    run_id = site.add(a_short_run())
    (snapshot,) = site.json("replay", run_id, "--at", "8")
    assert snapshot["through_sequence"] == 8
    assert snapshot["state"]["items"]["tool:c1"]["status"] == "running"
    shown = site.call("replay", run_id, "--at", "8").stdout
    assert "list_items" in shown
    assert "An apple" not in shown


def test_replay_at_speed_keeps_the_order(site: Site):
    run_id = site.add(a_short_run())
    assert len(site.json("replay", run_id, "--speed", "1000")) == 12
    assert site.call("replay", run_id, "--speed", "2", "--at", "3").exit_code == 2


def test_bench_prints_numbers(site: Site):
    (numbers,) = site.json("bench", "--seconds", "0.5", "--writers", "2")
    assert numbers["commits_per_s"] > 0
    assert numbers["append_to_seen_ms"]["p50"] > 0
    assert {run.life.status for run in site.lane.runs.values()} == {"completed"}


def test_where_nothing_runs_the_verbs_say_how_to_start_it(tmp_path: Path):
    runner = CliRunner(env={"RUNLANE_URL": "", "RUNLANE_TOKEN": ""})
    for verb in (["runs"], ["watch", "latest"], ["start", "--agent", "a"], ["rebuild"], ["provision"]):
        result = runner.invoke(runlane, [*verb, "--state-dir", str(tmp_path)])
        assert result.exit_code == 3, (verb, result.output)
        assert "start it with `runlane up`" in result.stderr
        assert result.stdout == ""
    result = runner.invoke(runlane, ["runs"], env={"RUNLANE_URL": "http://127.0.0.1:9"})
    assert result.exit_code == 3
    assert "http://127.0.0.1:9" in result.stderr


def test_the_state_directory_says_where_and_as_whom(site: Site, tmp_path: Path):
    info = ConnectionInfo(
        url=site.url, nats_url="nats://x", operator_nats_url="nats://x", worker_nats_url="nats://x",
        tokens={"demo": TOKEN, "other": "wrong"}, pid=1,
    )  # fmt: skip
    (tmp_path / "connection.json").write_bytes(msgspec.json.encode(info))
    runner = CliRunner(env={"RUNLANE_URL": "", "RUNLANE_TOKEN": ""})
    assert runner.invoke(runlane, ["runs", "--state-dir", str(tmp_path)]).exit_code == 0
    other = runner.invoke(runlane, ["runs", "--state-dir", str(tmp_path), "--tenant", "other"])
    assert other.exit_code == 1
    assert "unauthenticated" in other.stderr
    assert runner.invoke(runlane, ["runs", "--state-dir", str(tmp_path), "--tenant", "x"]).exit_code == 1


def test_usage_errors_end_with_2(site: Site):
    assert site.call("nonsense").exit_code == 2
    assert site.call("watch").exit_code == 2
    assert site.call("runs", "--limit", "0").exit_code == 2


def test_text_of_an_agent_cannot_move_the_cursor_or_color_the_screen():
    assert printable("a\x1b[2J\x9bb\x07c\r\u202ed\n\te") == "a[2Jbcd\n    e"


def test_a_hostile_run_prints_no_control_characters(site: Site):
    story = a_waiting_run().then(
        events.MessageCompleted(message_id="m", role="assis\x1b[31mtant", content="clear \x1b[2J screen"),
        events.RunFailed(error=events.Problem(code="b\x1b[0moom", message="x\x1b]0;title\x07y")),
    )
    run_id = site.add(story)
    for args in (
        ["watch", run_id],
        ["replay", run_id],
        ["replay", run_id, "--at", "8"],
        ["watch", run_id, "--from", "start"],
    ):
        out = site.call(*args)
        assert "\x1b" not in out.stdout + out.stderr, args


def test_what_up_tells_to_type_finds_its_folder():
    assert option_for(DEFAULT) == ""
    assert option_for(Path("/tmp/of mine")) == " --state-dir '/tmp/of mine'"


@pytest.mark.parametrize(
    ("url", "token"), [("banana", "t"), ("http://127.0.0.1:1", "a\nb"), ("http://127.0.0.1:1", "ü")]
)
def test_an_address_or_a_token_that_is_none_is_a_usage_error_and_is_not_sent(url: str, token: str):
    result = CliRunner().invoke(runlane, ["runs"], env={"RUNLANE_URL": url, "RUNLANE_TOKEN": token})
    assert result.exit_code == 2
    assert "RUNLANE_" in result.output
    assert token == "t" or token not in result.output
