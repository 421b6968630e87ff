"""How long it takes from a run's beginning until something of it is shown: only here are both seen pass."""

from collections import OrderedDict

from runlane.hosting.histograms import histogram
from runlane.kernel.clock import Now
from runlane_contracts.subjects import RunAddress
from runlane_contracts.telemetry import Metric

MAX_RUNS = 10_000
"""Runs that began and have shown nothing yet; of more, the oldest are not measured."""
MAX_AGE_S = 86_400.0
"""What is read again after a long absence is no measure of anything."""
BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)


class FirstPreviews:
    """Measures each run once. One whose beginning was not seen here is not measured."""

    def __init__(self, now: Now, *, max_runs: int = MAX_RUNS) -> None:
        self._now, self._max_runs = now, max_runs
        self._begun: OrderedDict[RunAddress, int] = OrderedDict()
        self._durations = histogram(Metric.FIRST_PREVIEW, BOUNDS_S)

    def begun(self, run: RunAddress, stored_ns: int) -> None:
        """`run.created` was stored then, in nanoseconds since 1970."""
        self._begun[run] = stored_ns
        if len(self._begun) > self._max_runs:
            self._begun.popitem(last=False)

    def shown(self, run: RunAddress) -> None:
        """A preview of it was sent on."""
        began_ns = self._begun.pop(run, None)
        if began_ns is None:
            return
        seconds = self._now().timestamp() - began_ns / 1e9
        if 0 <= seconds <= MAX_AGE_S:
            self._durations.record(seconds)
