"""What the broker refused, out of its log: read once, over rotations, and never taken from what a client chose."""

import asyncio
from pathlib import Path

import pytest

from runlane.audit_sink import broker_log
from runlane.audit_sink.broker_log import BrokerLog, Refused, refusals_of, refused_in
from runlane.kernel.errors import Retryable
from runlane.kernel.publisher import PubAck
from runlane_contracts.codec import decode_refusal
from runlane_contracts.headers import COMMIT_ID
from runlane_contracts.problems import Code
from runlane_contracts.subjects import Subjects
from support.eventually import eventually

BEGIN = "[3582] 2026/11/30 19:51:31.249342 [ERR] 127.0.0.1:59918 - cid:5"
TIME = "2026-11-30T19:51:31.249342Z"
FORGED = r'"v2.16.0:python3:x\" - \"$G/user:operator\" - Publish Violation - Subject \"forged"'


def violation(subject: str = "rl.log.00.demo.r", user: str = "observer", client: str = '"v2.16.0:python3"') -> str:
    return f'{BEGIN} - {client} - "$G/user:{user}" - Publish Violation - Subject "{subject}"'


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (violation(), ("observer", "publish", "rl.log.00.demo.r", Code.FORBIDDEN)),
        (violation(client=FORGED), ("observer", "publish", "rl.log.00.demo.r", Code.FORBIDDEN)),
        (f'{BEGIN} - "v2" - "$G/user:observer" - Subscription Violation - Subject "rl.view.>", SID 1',
         ("observer", "subscribe", "rl.view.>", Code.FORBIDDEN)),
        (f'{BEGIN} - "v2" - "$G/user:observer" - Subscription Violation - Subject "rl.q", Queue: "w", SID 2',
         ("observer", "subscribe", "rl.q", Code.FORBIDDEN)),
        (f'{BEGIN} - "$G/user:worker" - Publish Violation - Subject "x"', ("worker", "publish", "x", Code.FORBIDDEN)),
        (f'{BEGIN} - authentication error - User "observer"', ("observer", "connect", "", Code.UNAUTHENTICATED)),
        (rf'{BEGIN} - authentication error - User "a\" b"', (r"a\" b", "connect", "", Code.UNAUTHENTICATED)),
        (f"{BEGIN} - authentication error", ("", "connect", "", Code.UNAUTHENTICATED)),
    ],
)  # fmt: skip
def test_each_refusal_is_read(line, found):
    assert refused_in(line) == Refused(TIME, *found)


@pytest.mark.parametrize(
    "line",
    ["", "x", f"{BEGIN} - {FORGED} - Slow Consumer Detected", "[1] 2026/11/30 19:51:31.249342 [INF] Server is ready",
     f"{BEGIN} - maximum connections exceeded", f'{BEGIN} - "v" - JSON parse error: "authentication error"'],
)  # fmt: skip
def test_nothing_else_is(line):
    assert refused_in(line) is None


def test_the_same_refusal_many_times_is_one_with_a_count(monkeypatch):
    monkeypatch.setattr(broker_log, "MAX_DIFFERENT", 2)
    lines = [violation("a")] * 3 + [violation("b")] + [violation("c"), violation("d")] + [violation("a")]
    found = [(one.target.id, one.outcome, one.count) for one in refusals_of(lines)]
    assert found == [("a", "forbidden", 4), ("b", "forbidden", 1), ("-", "dropped", 2)]


class Intake:
    """Stores each message id once. `down`: nobody answers."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}
        self.down = False
        self.tries = 0

    async def send(self, subject, data, headers=None, *, timeout_s=5.0):
        assert subject == "rl.intake._platform.broker"
        self.tries += 1
        if self.down:
            raise Retryable("not connected")
        self.stored.setdefault(headers[COMMIT_ID], data)
        future = asyncio.get_running_loop().create_future()
        future.set_result(PubAck("RL_INTAKE", 1))
        return future

    @property
    def subjects(self) -> list[str]:
        return [decode_refusal(data).target.id for data in self.stored.values()]


class Following:
    """A log that is followed, until it is not."""

    def __init__(self, path: Path, intake: Intake, shown: list[str] | None = None) -> None:
        show = None if shown is None else shown.extend
        self._log = BrokerLog(path, intake, Subjects(), show=show)  # type: ignore[arg-type]

    async def __aenter__(self) -> None:
        self._task = asyncio.ensure_future(self._log.follow())

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(broker_log, "_EVERY_S", 0.01)
    monkeypatch.setattr(broker_log, "_RETRY_S", 0.01)


def write(path: Path, *subjects: str, end: str = "\n") -> None:
    with path.open("a") as file:
        file.write("".join(f"{violation(subject)}{end}" for subject in subjects))


async def test_a_log_is_read_once_over_restarts_and_rotations(tmp_path: Path):
    path, intake = tmp_path / "server.log", Intake()
    async with Following(path, intake):
        await asyncio.sleep(0.03)  # there is no log yet
        write(path, "a", "b")
        await eventually(lambda: intake.subjects == ["a", "b"])
    write(path, "c")
    async with Following(path, intake):
        await eventually(lambda: intake.subjects == ["a", "b", "c"])
        path.rename(tmp_path / "server.log.2026.11.30.19.51.31.1")
        write(tmp_path / "server.log.2026.11.30.19.51.31.1", "d")
        write(path, "e")
        await eventually(lambda: intake.subjects == ["a", "b", "c", "d", "e"])
    for number in (2, 3):
        path.rename(tmp_path / f"server.log.2026.11.30.19.51.31.{number}")
        write(path, f"f{number}")
    async with Following(path, intake):
        await eventually(lambda: intake.subjects == ["a", "b", "c", "d", "e", "f2", "f3"])


async def test_every_line_is_shown_once_also_while_nothing_can_be_stored(tmp_path: Path):
    """Taken out: `_shown`; then what is tried again is shown again."""
    path, intake, shown = tmp_path / "server.log", Intake(), []
    intake.down = True
    path.write_text("[1] 2026/11/30 19:51:31.000000 [INF] Starting nats-server\n")
    write(path, "a")
    async with Following(path, intake, shown):
        await eventually(lambda: len(shown) == 2)
        tries = intake.tries
        await eventually(lambda: intake.tries > tries + 3)
        intake.down = False
        await eventually(lambda: intake.subjects == ["a"])
        write(path, "b")
        await eventually(lambda: intake.subjects == ["a", "b"])
    assert len(shown) == 3
    assert shown[0].endswith("Starting nats-server")


async def test_what_cannot_be_stored_yet_waits_and_half_a_line_too(tmp_path: Path, caplog):
    path, intake = tmp_path / "server.log", Intake()
    intake.down = True
    write(path, "a", "b")
    write(path, "c", end="")
    async with Following(path, intake):
        await asyncio.sleep(0.05)
        assert not intake.stored
        intake.down = False
        await eventually(lambda: intake.subjects == ["a", "b"])
        assert len([line for line in caplog.records if "of the broker wait" in line.message]) == 1
        path.write_text(path.read_text() + "\n")
        await eventually(lambda: intake.subjects == ["a", "b", "c"])


async def test_what_was_stored_and_not_noted_is_stored_again_under_the_same_ids(tmp_path: Path, monkeypatch):
    """Fails without `until`: then more lines are read the second time, and the counts are others."""
    path, intake = tmp_path / "server.log", Intake()
    write(path, "a", "b", "a")
    with monkeypatch.context() as patch:
        kept = BrokerLog._keep_place
        patch.setattr(BrokerLog, "_keep_place", lambda log, place: kept(log, place) if place.until else None)
        async with Following(path, intake):
            await eventually(lambda: len(intake.stored) == 2)
    write(path, "a", "c")
    async with Following(path, intake):
        await eventually(lambda: intake.subjects == ["a", "b", "a", "c"])
    assert [decode_refusal(data).count for data in intake.stored.values()] == [2, 1, 1, 1]


async def test_a_log_that_was_cut_or_is_another_or_cannot_be_read_stops_nobody(tmp_path: Path):
    path, intake = tmp_path / "server.log", Intake()
    write(path, "a", "b")
    async with Following(path, intake):
        await eventually(lambda: intake.subjects == ["a", "b"])
        path.write_text("")
        await asyncio.sleep(0.05)
        write(path, "c")
        await eventually(lambda: intake.subjects[-1] == "c")
        path.unlink()
        path.mkdir()
        await asyncio.sleep(0.05)
        path.rmdir()
        path.write_text("[1] another log\n")
        write(path, "d", "e")
        await eventually(lambda: intake.subjects[-2:] == ["d", "e"])
