"""What a verb says that cannot do what it was asked, and with which code it ends: for people, and for programs."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from runlane.cli.failures import Failure, failure_of
from runlane.cli.main import runlane
from runlane.client.errors import ProblemBody, RequestRefused, Unreachable
from support.fake_edge import TOKEN
from support.runs import a_short_run, a_waiting_run
from support.site import Site


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as site:
        yield site


def problem(result: Result) -> tuple[dict[str, Any], int]:
    """The last line of stderr, which a program reads, and the exit code."""
    return msgspec.json.decode(result.stderr.splitlines()[-1]), result.exit_code


@pytest.mark.parametrize(
    ("words", "code", "exit_code"),
    [
        (["runs", "--limit", "0"], "usage", 2),
        (["nonsense"], "usage", 2),
        (["keys", "nonsense"], "usage", 2),
        (["watch", "nowhere"], "run_not_found", 1),
        (["watch", "../metrics"], "run_not_found", 1),
        (["runs", "--token", "wrong"], "unauthenticated", 1),
        (["bench", "--token", "wrong"], "unauthenticated", 1),
        (["runs", "--url", "http://127.0.0.1:9"], "unreachable", 3),
        (["keys", "list", "--state-dir", "/nowhere"], "no_key_file", 1),
    ],
)
def test_with_json_a_failure_is_one_object_on_stderr_and_stdout_stays_empty(site, words, code, exit_code):
    said, ended = problem(result := site.call(*words, "--json"))
    assert (said["code"], said["exit_code"], ended, result.stdout) == (code, exit_code, exit_code, "")
    assert said["detail"]
    assert said["retryable"] == (code == "unreachable")
    for_people = site.call(*words)
    assert for_people.exit_code == exit_code
    assert "Traceback" not in for_people.stderr


def test_what_follows_two_dashes_is_not_ours(site: Site):
    result = site.call("bridge", "claude", "--prompt", "x", "--program", "/nowhere", "--", "--json")
    assert result.stderr == "runlane: not_started: cannot start '/nowhere': No such file or directory\n"


def test_a_command_that_is_declined_is_an_outcome_and_a_failure(site: Site):
    run_id = site.add(a_waiting_run())
    assert site.call("approve", run_id).exit_code == 0
    said, ended = problem(result := site.call("approve", run_id, "a1", "--json"))
    assert (said["code"], ended) == ("already_resolved", 1)
    assert msgspec.json.decode(result.stdout)["outcome"] == "declined"


@pytest.mark.parametrize(
    "url", ["http://", "http://127.0.0.1:99999", "http://[::1", "http://:80", "ftp://x", "127.0.0.1:8420", "http://x:0"]
)
def test_an_address_that_is_none_is_a_usage_error(url):
    result = CliRunner().invoke(runlane, ["runs", "--url", url], env={"RUNLANE_TOKEN": ""})
    assert (result.exit_code, "not an http address" in result.stderr) == (2, True)


@pytest.mark.parametrize("url", ["nats://127.0.0.1:99999", "nats://", "nats://a:1,nats://b:x"])
def test_a_brokers_address_that_is_none_is_a_usage_error(url):
    result = CliRunner().invoke(runlane, ["doctor", "--nats-url", url, "--url", "http://127.0.0.1:9"])
    assert (result.exit_code, "not the address of a broker" in result.stderr) == (2, True)


def test_what_is_no_pool_is_not_asked_of_the_broker():
    result = CliRunner().invoke(runlane, ["provision", "--pool", "a b", "--nats-url", "nats://127.0.0.1:9"])
    assert (result.exit_code, "'a b' is no pool" in result.stderr) == (2, True)


def test_an_input_that_is_not_text_is_a_usage_error(site: Site, tmp_path: Path):
    (tmp_path / "in").write_bytes(b"\xff\xfe")
    result = site.call("start", "--agent", "a", "--input", f"@{tmp_path}/in")
    assert (result.exit_code, "not UTF-8" in result.stderr) == (2, True)


def test_a_program_that_ends_without_having_done_its_work_is_a_failed_run(site: Site):
    result = site.call("bridge", "claude", "--prompt", "x", "--program", "/bin/true")
    assert result.exit_code == 1
    assert f"runlane: run_failed: {result.stdout.strip()} is failed" in result.stderr
    assert site.lane.runs[result.stdout.strip()].life.status == "failed"


def verb(site: Site, *words: str, stdout: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "RUNLANE_URL": site.url, "RUNLANE_TOKEN": TOKEN}
    return subprocess.run(
        [sys.executable, "-m", "runlane.cli", *words],
        env=environment, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize("words", [["runs", "--json"], ["watch", "run_1", "--json"], ["replay", "run_1"]])
def test_a_reader_that_leaves_ends_the_verb_without_a_word(site: Site, words):
    site.add(a_short_run())
    read, write = os.pipe()
    os.close(read)
    try:
        done = verb(site, *words, stdout=write)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_disk_that_is_full_is_said(site: Site):
    site.add(a_short_run())
    with Path("/dev/full").open("w") as full:
        done = verb(site, "runs", "--json", stdout=full)
    assert (done.returncode, msgspec.json.decode(done.stderr)["code"]) == (1, "os_error")


def test_of_tasks_that_fail_together_the_failure_is_said_but_a_fault_is_not_hidden():
    refused = RequestRefused(ProblemBody(code="forbidden", detail="no"))
    failure = failure_of(ExceptionGroup("", [ExceptionGroup("", [refused]), Unreachable("gone")]))
    assert isinstance(failure, Failure)
    assert (failure.code, failure.exit_code) == ("forbidden", 1)
    assert failure_of(ExceptionGroup("", [refused, KeyError("ours")])) is None
