"""A run as a client holds it: the state that facts make, and beside it what previews show."""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from runlane.client.errors import ContractViolation
from runlane.client.overlay import PreviewOverlay
from runlane.client.selection import Selection
from runlane.client.transports.ports import Item
from runlane_contracts import events, reducer
from runlane_contracts.codec import decode_json
from runlane_contracts.envelope import Fact
from runlane_contracts.previews import Preview, PreviewGap
from runlane_contracts.resume import SnapshotFrame

T = TypeVar("T")


class RunState:
    """Feed it what a reader yields; ask `selectors`, or look at `data`.

    Promise: previews never touch `data`. The same facts give the same `checksum()`, here, in the projector and
    in the browser, whether they came one by one or as a snapshot and its tail.
    """

    def __init__(self, run_id: str, tenant_id: str = "") -> None:
        self.data: reducer.State = reducer.initial_state(tenant_id, run_id)
        self.overlay = PreviewOverlay()
        self._selection = Selection()

    @property
    def sequence(self) -> int:
        """`sequence` of the last fact in here."""
        return int(self.data["through_sequence"])

    @property
    def status(self) -> str:
        """The run's status."""
        return str(self.data["run"]["status"])

    @property
    def is_terminal(self) -> bool:
        """Whether the run is over."""
        return reducer.is_terminal(self.data)

    def checksum(self) -> str:
        """Hash of `data`, equal wherever the same facts were applied."""
        return reducer.checksum(self.data)

    def select(self, selector: Callable[..., T], *arguments: Hashable) -> T:
        """What a selector answers of `data`; the same object as last time until the answer changes.

            running = state.select(selectors.running_tools)

        Answers are copies: they stay as they are when the next fact comes.
        """
        return self._selection.ask(self.data, selector, arguments)

    def restore(self, data: reducer.State) -> None:
        """Begin from a state that was kept or fetched; what was previewed before is abandoned."""
        self.data = data
        self.overlay.abandon_all()
        self._selection.replace()

    def apply(self, item: Item) -> str | None:
        """Take one item; the key of the run item it changed (``tool:call_1``), if any.

        Raises:
            SequenceGap: a fact came whose predecessor did not; nothing changed. Start from a snapshot.
            ContractViolation: a fact that this client must understand, and does not.
        """
        match item:
            case Fact():
                return self._apply_fact(item)
            case SnapshotFrame():
                self.restore(item.state)
            case Preview():
                entry = self.overlay.apply(item)
                return f"{entry.kind}:{entry.id}" if entry else None
            case PreviewGap():
                gapped = self.overlay.apply_gap(item)
                return f"{gapped.kind}:{gapped.id}" if gapped else None
            case _:
                pass
        return None

    def _apply_fact(self, fact: Fact) -> str | None:
        if not events.is_known(fact.type) and events.must_understand(fact.type):
            raise ContractViolation(f"a newer client is needed to understand {fact.type[:80]}")
        if not self.data["run"]["tenant_id"]:
            self.data["run"]["tenant_id"] = fact.tenant_id
        before = self.sequence
        changed = reducer.reduce(self.data, fact)
        if self.sequence != before:
            self._selection.touch(changed)
            payload: Any = decode_json(fact.payload)
            self.overlay.settle(fact, payload if isinstance(payload, dict) else {})
        return changed
