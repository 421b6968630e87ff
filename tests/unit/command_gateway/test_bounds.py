"""Quotas, admission, waiting."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from starlette.requests import Request

from runlane.command_gateway.admission import Admission
from runlane.command_gateway.door import idempotency_key
from runlane.command_gateway.outcomes import Outcomes
from runlane.command_gateway.quota import MAX_TENANTS, Quota
from runlane.hosting.http import ProblemError
from runlane.kernel.errors import Retryable
from runlane_contracts.codec import encode
from runlane_contracts.commands import LedgerEntry, LedgerStatus
from runlane_contracts.problems import Code

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def in_s(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_a_quota_is_spent_saved_and_told_apart_by_tenant() -> None:
    quota = Quota(rate_per_s=10, burst=20)
    assert [quota.take("a", 10, now=NOW) for _ in range(3)] == [0, 0, 1.0]
    assert quota.take("b", 20, now=NOW) == 0
    assert quota.take("a", 10, now=in_s(1)) == 0
    assert quota.take("a", 20, now=in_s(100)) == 0, "no more is saved than the burst"
    assert quota.take("a", 1, now=in_s(100)) > 0


def test_what_is_larger_than_the_burst_is_let_through_and_paid_off() -> None:
    quota = Quota(rate_per_s=10, burst=20)
    assert quota.take("a", 50, now=NOW) == 0
    assert quota.take("a", 1, now=in_s(3)) == pytest.approx(0.1)
    assert quota.take("a", 1, now=in_s(3.2)) == 0


def test_a_clock_that_is_set_back_gives_nothing_and_takes_nothing() -> None:
    quota = Quota(rate_per_s=10, burst=20)
    quota.take("a", 20, now=NOW)
    assert quota.take("a", 1, now=in_s(-100)) == pytest.approx(0.1)


def test_tenants_that_are_remembered_are_bounded() -> None:
    quota = Quota(rate_per_s=1, burst=1)
    for n in range(MAX_TENANTS + 5):
        quota.take(f"t{n}", 1, now=NOW)
    assert len(quota._buckets) == MAX_TENANTS


def admission(**options: int) -> Admission:
    return Admission(quota=Quota(rate_per_s=1, burst=2), max_starting=options.get("max_starting", 10), now=lambda: NOW)


def refused(by: Admission) -> ProblemError:
    with pytest.raises(ProblemError) as caught, by.starting("a"):
        pass
    return caught.value


def test_starts_are_let_in_up_to_each_bound() -> None:
    one = admission(max_starting=1)
    with one.starting("a"):
        assert one.starting_count == 1
        assert refused(one).code == Code.OVERLOADED
    with one.starting("a"):
        pass
    assert refused(one).code == Code.QUOTA_EXCEEDED
    assert one.starting_count == 0
    one.streams_full = True
    full = refused(one)
    assert (full.code, full.extra["retry_after_s"]) == (Code.OVERLOADED, 10)


def test_a_tenant_is_bounded_in_what_it_starts_at_once_and_in_what_waits() -> None:
    one = Admission(quota=Quota(rate_per_s=1, burst=99), max_starting=10, now=lambda: NOW, max_starting_of_tenant=1,
                    max_waiting_of_tenant=2)  # fmt: skip
    with one.starting("a", for_a_pool=True):
        assert refused(one).code == Code.QUOTA_EXCEEDED
        with one.starting("b"):
            one.learn_waiting("a", 1)
    with pytest.raises(ProblemError) as caught, one.starting("a", for_a_pool=True):
        pass
    assert caught.value.code == Code.QUOTA_EXCEEDED
    with one.starting("a"):
        pass
    one.learn_waiting("a", 0)
    assert one.tenants == ()
    with one.starting("a", for_a_pool=True):
        pass


def entry(status: LedgerStatus, command_id: str = "cmd_1") -> LedgerEntry:
    return LedgerEntry(
        command_id=command_id, idempotency_key="k", type="run.cancel", tenant_id="t", run_id="r", fingerprint="f",
        status=status, accepted_at="2026-01-01T00:00:00Z",
    )  # fmt: skip


async def unknown(_tenant_id: str, _command_id: str) -> None:
    return None


async def test_who_waits_is_woken_with_the_outcome() -> None:
    outcomes = Outcomes(unknown, look_every_s=60)
    with outcomes.expecting("t", "cmd_1") as first, outcomes.expecting("t", "cmd_1") as second:
        assert outcomes.count == 2
        outcomes.wake(b"nonsense")
        outcomes.wake(encode(entry(LedgerStatus.APPLIED, "cmd_other")))
        assert await first.within(0.01) is None
        outcomes.wake(encode(entry(LedgerStatus.APPLIED)))
        found = await asyncio.gather(first.within(1), second.within(1))
    assert [one.status for one in found if one] == [LedgerStatus.APPLIED] * 2
    assert outcomes.count == 0


async def test_a_wake_up_that_never_came_is_made_good_by_looking() -> None:
    answers: list[LedgerEntry | Exception] = [Retryable("away"), entry(LedgerStatus.ACCEPTED)]

    async def look(_tenant_id: str, _command_id: str) -> LedgerEntry:
        answer = answers.pop(0) if answers else entry(LedgerStatus.REJECTED)
        if isinstance(answer, Exception):
            raise answer
        return answer

    outcomes = Outcomes(look, look_every_s=0.01)
    with outcomes.expecting("t", "cmd_1") as outcome:
        found = await outcome.within(2)
    assert found is not None
    assert found.status is LedgerStatus.REJECTED


async def test_an_outcome_that_comes_before_the_waiting_is_not_missed() -> None:
    outcomes = Outcomes(unknown, look_every_s=60)
    with outcomes.expecting("t", "cmd_1") as outcome:
        outcomes.wake(encode(entry(LedgerStatus.APPLIED)))
        assert await outcome.within(0.1) is not None


@pytest.mark.parametrize(
    ("sent", "key"),
    [(b"plain", "plain"), ("schlüssel-鍵".encode(), "schlüssel-鍵"), (b"caf\xe9", "café")],
)  # fmt: skip
def test_a_key_in_the_header_is_the_same_as_in_the_body_in_any_script(sent: bytes, key: str) -> None:
    request = Request({"type": "http", "headers": [(b"idempotency-key", sent)]})
    assert idempotency_key(request, None) == key
    assert idempotency_key(request, key) == key
    with pytest.raises(ProblemError):
        idempotency_key(request, f"{key} ")
