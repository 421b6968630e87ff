"""What each tenant may have, as the operator set it; see `runlane_contracts.tenants`."""

import asyncio
from collections import OrderedDict
from typing import Final, Protocol

import msgspec

from runlane.kernel.errors import Retryable
from runlane_contracts.tenants import DEFAULT_KEY, TenantLimits

FRESH_S: Final = 1.0
MAX_KNOWN: Final = 10_000

_decode = msgspec.json.Decoder(TenantLimits).decode
_NOT_SET: Final = TenantLimits()


class LimitsEntry(Protocol):
    """An entry of the bucket."""

    @property
    def value(self) -> bytes: ...


class LimitsBucket(Protocol):
    """Reads one key. Raises Retryable."""

    async def get(self, key: str) -> LimitsEntry | None: ...


class TenantBook:
    """The limits of tenants, read again when they are older than `fresh_s`."""

    def __init__(self, bucket: LimitsBucket, *, fresh_s: float = FRESH_S) -> None:
        self._bucket, self._fresh_s = bucket, fresh_s
        self._known: OrderedDict[str, tuple[TenantLimits | None, float]] = OrderedDict()

    async def of(self, tenant_id: str) -> TenantLimits:
        """Its own, or those for everybody, or none.

        What cannot be asked stays as it was known. Raises Retryable: nothing is known.
        """
        own = await self._entry(tenant_id)
        return own or await self._entry(DEFAULT_KEY) or _NOT_SET

    async def _entry(self, key: str) -> TenantLimits | None:
        now = asyncio.get_running_loop().time()
        known = self._known.get(key)
        if known is not None and now - known[1] < self._fresh_s:
            return known[0]
        try:
            entry = await self._bucket.get(key)
            limits = None if entry is None else decode_limits(entry.value)
        except Retryable:
            if known is None:
                raise
            limits = known[0]
        self._known[key] = (limits, now)
        self._known.move_to_end(key)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return limits


def decode_limits(value: bytes) -> TenantLimits | None:
    """The limits in an entry's value; None where that is not understood."""
    try:
        return _decode(value)
    except msgspec.MsgspecError:
        return None
