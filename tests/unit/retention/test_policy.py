"""Which finished run stays how long."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydantic import ValidationError

from runlane.kernel.errors import Retryable
from runlane.read_store import FinishedRow
from runlane.retention.policy import age_of, policy_of
from runlane.retention.service import Retention, every
from runlane.retention.settings import RetentionSettings
from runlane_contracts.codec import timestamp
from runlane_contracts.lifecycle import Refused
from support.eventually import eventually
from support.retained import LIFE, RUN, Fuse, Killed, Shelf

LAST = sum(len(commit) for commit in LIFE)
NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("0s", 0), ("15m", 900), ("12h", 43_200), ("30d", 2_592_000), ("4w", 2_419_200)]
)
def test_an_age_is_a_number_and_a_unit(text: str, seconds: int) -> None:
    assert age_of(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "d", "-1d", "1y", "1.5d", "1 d", "１d", "9999999999d"])
def test_what_is_no_age_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no age"):
        age_of(text)


def test_a_run_falls_in_the_class_it_asked_for_else_its_tenants_else_the_usual_one() -> None:
    policy = policy_of("default=30d,short=1d,legal=never", "acme=legal, other=short")
    assert policy.of("acme", "short").text == "short=86400s"
    assert policy.of("acme", None).age is None
    assert policy.of("other", "nonsense").name == "short"
    assert policy.of("somebody", None).age == timedelta(days=30)
    assert policy_of("short=1d", "").of("somebody", None).age is None, "no usual class: kept"
    assert policy.overridden(timedelta(0)).of("acme", None).age is None, "what is kept for ever stays"
    assert policy.overridden(timedelta(0)).of("other", None).age == timedelta(0)


@pytest.mark.parametrize("classes", ["default", "default=", "=1d", "Default=1d", "default=soon", "a b=1d"])
def test_settings_that_make_no_sense_are_refused_at_the_start(classes: str) -> None:
    with pytest.raises(ValidationError):
        RetentionSettings(classes=classes)


def test_a_tenant_in_no_class_is_refused_at_the_start() -> None:
    with pytest.raises(ValidationError, match="legal"):
        RetentionSettings(tenants="acme=legal")


class Ended:
    """The read store's answer."""

    trouble: Exception | None = None

    def __init__(self, rows: Sequence[FinishedRow]) -> None:
        self.rows = list(rows)

    async def finished_runs(
        self, *, ended_before: str, limit: int = 100, after: FinishedRow | None = None
    ) -> list[FinishedRow]:
        if self.trouble is not None:
            raise self.trouble
        found = [row for row in self.rows if row.ended_at < ended_before]
        if after is not None:
            found = found[found.index(after) + 1 :]
        return found[:limit]


def ended(run_id: str, days: int, *, tenant: str = "acme", asked: str | None = None) -> FinishedRow:
    at = timestamp(NOW - timedelta(days=days, seconds=1))
    return FinishedRow(tenant_id=tenant, run_id=run_id, ended_at=at, retention=asked)


async def settled() -> None:
    return None


def retention(
    shelf: Shelf, rows: Sequence[FinishedRow], classes: str = "default=30d,short=1d,legal=never"
) -> Retention:
    return Retention(
        shelf.compactor, Ended(rows), shelf.objects, policy=policy_of(classes, ""), now=lambda: NOW, max_runs=1000,
        settle=settled,
    )  # fmt: skip


async def test_due_is_what_is_past_the_age_of_its_class(tmp_path: Path) -> None:
    rows = [ended("r1", 31), ended("r2", 29), ended("r3", 2, asked="short"), ended("r4", 900, asked="legal")]
    found = await retention(Shelf(tmp_path), rows).compact(dry_run=True)
    assert [(one.run_id, one.outcome) for one in found.runs] == [("r1", "due"), ("r3", "due")]
    every = await retention(Shelf(tmp_path), rows).compact(dry_run=True, older_than=timedelta(0))
    assert [one.run_id for one in every.runs] == ["r1", "r2", "r3"]
    assert not list(tmp_path.iterdir())


async def test_all_pages_are_looked_at(tmp_path: Path) -> None:
    rows = sorted((ended(f"r{n}", 40) for n in range(250)), key=lambda row: row.run_id)
    assert (await retention(Shelf(tmp_path), rows).compact(dry_run=True)).due == 250


async def test_one_run_that_cannot_be_archived_keeps_no_other_from_it(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    await shelf.write(*LIFE)
    broken = RUN._replace(run_id="run_2")
    await shelf.write(*LIFE, run=broken)
    shelf.view_log.cut(broken, 3)
    found = await retention(shelf, [ended("run_2", 40), ended("nobody", 40), ended("run_1", 40)]).compact()
    assert [(one.run_id, one.outcome, one.code) for one in found.runs] == [
        ("run_2", "failed", "hole"), ("nobody", "failed", "run_not_found"), ("run_1", "compacted", None),
    ]  # fmt: skip
    assert (found.compacted, found.failed) == (1, 2)


async def test_a_pass_finishes_what_somebody_began(tmp_path: Path) -> None:
    """Leave out the mark and a run whose fact is written and whose messages are still there is never found again."""
    finished = 0
    for step in range(1, 100):
        shelf = Shelf(tmp_path / str(step))
        await shelf.write(*LIFE)
        shelf.restart(Fuse(at=step))
        try:
            await retention(shelf, [ended("run_1", 40)]).compact()
            break
        except Killed:
            shelf.restart()
        listed = await retention(shelf, []).compact()  # with its fact it is no longer listed
        assert listed.failed == 0
        lengths = [len(facts) for facts in shelf.streams()]
        assert lengths in ([1, 1], [LAST, LAST])
        finished += lengths == [1, 1]
        assert not [path for path in shelf.files() if path.startswith("pending/")]
        assert (await retention(shelf, []).compact()).runs == ()
    assert finished >= 2


async def test_a_second_pass_at_the_same_time_is_refused_by_name(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    one = retention(shelf, [])
    async with one._alone():
        with pytest.raises(Refused, match="under way"):
            await one.compact()


async def test_it_compacts_by_itself_again_and_again_whatever_happens(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    await shelf.write(*LIFE)
    one = retention(shelf, [ended("run_1", 40)])
    one._finished.trouble = Retryable("the read store does not answer")  # type: ignore[attr-defined]
    going = asyncio.ensure_future(every(one, 0.01))
    try:
        await eventually(lambda: "does not answer" in one.stats.trouble)
        one._finished.trouble = None  # type: ignore[attr-defined]
        async with one._alone():
            await asyncio.sleep(0.05)
        await eventually(lambda: one.stats.compacted == 1 and one.stats.trouble == "")
    finally:
        going.cancel()
    assert [len(facts) for facts in shelf.streams()] == [1, 1]
