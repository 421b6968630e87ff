"""Run states kept between batches, the least recently used given up first."""

from collections import OrderedDict

from runlane.projector.fold import RunFold
from runlane_contracts.subjects import RunAddress


class FoldCache:
    """Bounded by the size of the states it holds, about, and by their number."""

    def __init__(self, *, max_bytes: int, max_runs: int) -> None:
        self._max_bytes = max_bytes
        self._max_runs = max_runs
        self._folds: OrderedDict[RunAddress, RunFold] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._folds)

    @property
    def size(self) -> int:
        """About how many bytes of JSON its states would be."""
        return self._bytes

    def take(self, run: RunAddress) -> RunFold | None:
        """Take a run out. Whoever took it puts it back, or what it did to it never was."""
        fold = self._folds.pop(run, None)
        if fold is not None:
            self._bytes -= fold.size
        return fold

    def put(self, fold: RunFold) -> None:
        """Keep a run whose state is stored."""
        self.take(fold.run)
        self._folds[fold.run] = fold
        self._bytes += fold.size
        while self._folds and (self._bytes > self._max_bytes or len(self._folds) > self._max_runs):
            _, given_up = self._folds.popitem(last=False)
            self._bytes -= given_up.size
