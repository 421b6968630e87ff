"""Best-effort fragments: what a run is doing, shown until the fact that replaces it.

`preview_seq` starts at 1 per preview. A receiver that sees it skip marks its overlay incomplete and never
joins across the gap. A fact that carries the `preview_id` replaces the preview; it is never appended to.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from runlane_contracts.defaults import always
from runlane_contracts.ids import ItemId, RunId, TenantId

Operation = Literal["append", "replace", "patch", "latest_value"]
Fate = Literal["abandoned"]
GapReason = Literal["dropped", "lost", "slow_reader", "reconnected"]


class PreviewSubject(Struct, frozen=True, kw_only=True):
    """The item a preview is about."""

    kind: str
    id: ItemId


class Coalesced(Struct, frozen=True, kw_only=True):
    """Which fragments were merged into this one."""

    first_seq: int
    last_seq: int
    source_count: int
    truncated: bool = False


class Preview(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One fragment. `preview_seq` is that of its last source when fragments were merged."""

    preview_id: ItemId
    subject: PreviewSubject
    preview_seq: Annotated[int, Meta(ge=1)]
    operation: Operation = always("append")
    data: Any = always(None)
    tenant_id: TenantId | UnsetType = UNSET
    run_id: RunId | UnsetType = UNSET
    lease_epoch: int = always(0)
    base_revision: int | None = None
    offset: int | None = None
    encoding: str | None = None
    fate: Fate | None = None
    coalesced: Coalesced | None = None

    @property
    def first_seq(self) -> int:
        """`preview_seq` of the first fragment in here."""
        return self.coalesced.first_seq if self.coalesced else self.preview_seq


class PreviewBatch(Struct, frozen=True, kw_only=True):
    """What one core NATS message on a preview subject holds."""

    tenant_id: TenantId
    run_id: RunId
    previews: tuple[Preview, ...]


class PreviewGap(Struct, frozen=True, kw_only=True, rename={"from_": "from"}):
    """Fragments `from_`…`to` of a preview did not reach this reader."""

    preview_id: ItemId
    from_: int
    to: int
    dropped: int
    reason: GapReason
