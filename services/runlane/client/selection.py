"""Selectors whose answers stay the same object until what they answer changes.

A view that draws only what is a new object since it last drew needs that: a run's state is one value that is
changed in place, fact by fact.
"""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

from runlane_contracts.codec import decode_json, encode
from runlane_contracts.reducer import State

T = TypeVar("T")

MAX_REMEMBERED = 256
"""Questions whose last answer is kept; asking more different ones begins anew."""


class Selection:
    """Copies of a run's items, each made anew when its item changed, and the last answer to each question.

    Copies are made when somebody asks, not when a fact comes: who never selects pays nothing.
    """

    def __init__(self) -> None:
        self._run: dict[str, Any] = {}
        self._marks: list[Any] = []
        self._items: dict[str, dict[str, Any]] = {}
        self._stale: set[str] = set()
        self._all_stale = True
        self._through = -1
        self._answers: dict[Hashable, Any] = {}

    def touch(self, item_key: str | None) -> None:
        """A fact was applied, and changed that item."""
        if item_key is not None:
            self._stale.add(item_key)

    def replace(self) -> None:
        """The whole state is another one."""
        self._all_stale, self._through = True, -1

    def ask(self, state: State, selector: Callable[..., T], arguments: tuple[Hashable, ...]) -> T:
        """What `selector(state, *arguments)` answers: the object of last time if it is equal."""
        if state["through_sequence"] != self._through:
            self._refresh(state)
        question = (selector, *arguments)
        stable = {
            "run": self._run, "items": self._items, "marks": self._marks, "through_sequence": self._through,
        }  # fmt: skip
        answer = selector(stable, *arguments)
        if question in self._answers and _same(self._answers[question], answer):
            return cast("T", self._answers[question])
        if len(self._answers) >= MAX_REMEMBERED:
            self._answers.clear()
        self._answers[question] = answer
        return answer

    def _refresh(self, state: State) -> None:
        items = state["items"]
        if self._all_stale:
            self._items = {key: _kept(self._items.get(key), item) for key, item in items.items()}
        else:
            for key in self._stale & items.keys():
                self._items[key] = _kept(self._items.get(key), items[key])
        self._run = _kept(self._run, state["run"])
        self._marks = _kept(self._marks, state["marks"])
        self._stale.clear()
        self._all_stale, self._through = False, state["through_sequence"]


def _kept(before: T | None, now: T) -> T:
    if before is not None and before == now:
        return before
    copy: T = decode_json(encode(now))
    return copy


def _same(before: Any, now: Any) -> bool:
    return type(before) is type(now) and (before is now or bool(before == now))
