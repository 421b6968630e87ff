"""What a tenant may have of what all share: its part of the work that is given out, and bounds. Kept in a bucket.

Who claims work reads this where everybody reads it, so a worker on the broker and the gateway go by the same rule,
and a change counts within a second or two.
"""

from typing import Annotated, Final

from msgspec import Meta, Struct

DEFAULT_KEY: Final = "_default"
"""The entry for tenants that have none of their own; no tenant is named like this."""


class TenantLimits(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=False):
    """The entry of one tenant. What is not said is not bounded here."""

    weight: Annotated[float, Meta(ge=0.01, le=1000)] = 1.0
    """Its part of what is given out while others wait too: with 3 it gets three times as much as one with 1."""
    max_running: Annotated[int, Meta(ge=0)] | None = None
    """Runs of pools that workers drive at the same time. More of them wait in the queue. 0: none is begun."""
    max_waiting: Annotated[int, Meta(ge=0)] | None = None
    """Runs that wait for a worker. The next start for a pool is told `quota_exceeded`."""
