"""`runlane demo --crash`, as a person sees it."""

import json
from pathlib import Path

import pytest

from support.product import product

pytestmark = pytest.mark.slow


async def test_a_person_sees_a_worker_die_and_nothing_happen_twice(tmp_path: Path):
    """Fails when `Worker(reconcile=…)` is not asked (the run waits), and when unsafe calls run again (exit code 1)."""
    async with product(tmp_path / "state") as running:
        code, out, err = await running.cli("demo", "--crash")
        assert code == 0, err
        for words in (
            "takes the run (attempt 1)", "a person says: approved", "kill -9", "outcome unknown",
            "takes the run (attempt 2)", "charge_card was executed", "Each once.",
        ):  # fmt: skip
            assert words in out, words
        lines = [json.loads(line) for line in (await running.cli("demo", "--crash", "--json"))[1].splitlines()]
        assert lines[-1]["each_once"] is True
        assert [one["executed"]["did"] for one in lines if "executed" in one] == [
            "reserve_stock", "charge_card", "send_receipt",
        ]  # fmt: skip
        facts = [one["fact"] for one in lines if "fact" in one]
        assert facts.count("approval.requested") == 1, "the decision outlived its worker"
