"""`runlane watch` on a real terminal."""

import asyncio
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from runlane_contracts import events
from runlane_contracts.previews import Preview, PreviewSubject
from support.fake_edge import TOKEN
from support.runs import a_waiting_run
from support.site import Site

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A `runlane` process whose stdout is a terminal of 100 by 30."""

    def __init__(self, site: Site, *args: str) -> None:
        self.master, slave = pty.openpty()
        environment = os.environ | {
            "RUNLANE_URL": site.url, "RUNLANE_TOKEN": TOKEN, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30",
        }  # fmt: skip
        command = [sys.executable, "-m", "runlane.cli", *args]
        self.process = subprocess.Popen(command, stdout=slave, stderr=slave, stdin=slave, env=environment)
        os.close(slave)
        os.set_blocking(self.master, False)
        self.raw = ""

    def until(self, text: str, within_s: float = 15.0) -> str:
        deadline = time.monotonic() + within_s
        while text not in self.text:
            assert time.monotonic() < deadline, f"{text!r} was not drawn; the end: {self.text[-800:]!r}"
            self._read()
            time.sleep(0.02)
        return self.text

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def end(self, within_s: float = 15.0) -> int:
        deadline = time.monotonic() + within_s
        while self.process.poll() is None and time.monotonic() < deadline:
            self._read()
            time.sleep(0.02)
        self._read()
        os.close(self.master)
        return self.process.wait(1)

    @property
    def text(self) -> str:
        return ANSI.sub("", self.raw)

    def _read(self) -> None:
        try:
            self.raw += os.read(self.master, 65536).decode(errors="replace")
        except (BlockingIOError, OSError):
            return


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as site:
        yield site


def test_a_run_is_drawn_in_place_with_its_previews_and_what_it_asks(site: Site):
    run_id = site.add(a_waiting_run())
    terminal = Terminal(site, "watch", run_id)
    terminal.until("a approve  x reject")
    site.wait(_show(site, run_id))
    terminal.until("An apple is being peeled▌")
    resolved = events.ApprovalResolved(approval_id="a1", decision="approved", decided_by="u1", version=1)
    site.wait(site.lane.state(run_id, resolved, events.RunCompleted(output="done")))
    assert terminal.end() == 0
    assert "output: done" in terminal.text
    assert "approved by u1" in terminal.text


async def _show(site: Site, run_id: str) -> None:
    preview = Preview(
        preview_id="p1", subject=PreviewSubject(kind="message", id="m1"), preview_seq=1, data="An apple is being peeled"
    )
    run = site.lane.runs[run_id]
    async with run.changed:
        run.previews.append(preview)
        run.changed.notify_all()


def test_leaving_with_ctrl_c_changes_nothing_and_says_how_to_come_back(site: Site):
    run_id = site.add(a_waiting_run())
    terminal = Terminal(site, "watch", run_id)
    terminal.until("live")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 130
    assert f"runlane watch {run_id}" in terminal.text
    assert "Traceback" not in terminal.text
    assert site.lane.runs[run_id].life.status == "waiting"


def test_a_lost_connection_shows_and_heals(site: Site):
    run_id = site.add(a_waiting_run())
    site.lane.cut_after.append(3)
    terminal = Terminal(site, "watch", run_id)
    terminal.until("reconnecting  the connection was lost")
    site.wait(asyncio.sleep(0))
    site.wait(site.lane.state(run_id, events.RunCancelled()))
    assert terminal.end() == 0


def test_keys_decide_once_they_are_confirmed(site: Site):
    run_id = site.add(a_waiting_run())
    terminal = Terminal(site, "watch", run_id)
    terminal.until("a approve  x reject")
    terminal.press("a")
    terminal.until("approve “Pay 12.50”?")
    terminal.press("n")
    terminal.press("x")
    terminal.until("reject “Pay 12.50”?")
    assert "approval.resolved" not in site.lane.types(run_id)
    terminal.press("y")
    terminal.until("rejected by")
    (resolved,) = site.lane.payloads(run_id, "approval.resolved")
    assert resolved["decision"] == "rejected"
    site.wait(site.lane.state(run_id, events.RunCancelled()))
    assert terminal.end() == 0


def test_q_leaves_and_changes_nothing(site: Site):
    run_id = site.add(a_waiting_run())
    terminal = Terminal(site, "watch", run_id)
    terminal.until("a approve")
    terminal.press("q")
    assert terminal.end() == 0
    assert f"runlane watch {run_id}" in terminal.text
    assert site.lane.runs[run_id].life.status == "waiting"


def test_the_table_of_runs_follows_what_happens(site: Site):
    terminal = Terminal(site, "runs", "--follow")
    terminal.until("no runs yet")
    run_id = site.add(a_waiting_run())
    terminal.until("waiting")
    site.wait(site.lane.state(run_id, events.RunCancelled()))
    terminal.until("cancelled")
    site.lane.unreachable = True
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 130
    assert "Traceback" not in terminal.text
