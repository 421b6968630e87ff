"""Content of facts that is too large for them: written once under an address that follows from what it is.

content/<tenant>/<ref>/meta.json      whose it is, its size, its SHA-256, what people may see of it
                       raw            as it came
                       view           as people may see it, where that differs
content-of/<tenant>/<run>/<ref>       which run it belongs to, so that it goes when the run is erased
"""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from runlane.object_store.store import Objects
from runlane_contracts.codec import encode
from runlane_contracts.commands import derived_id
from runlane_contracts.ids import is_id, is_tenant
from runlane_contracts.subjects import RunAddress

CONTENT_PATH = "/v1/content/"
_REF = re.compile(r"cnt_[0-9A-HJKMNP-TV-Z]{26}")

Shown = Literal["as_it_is", "masked", "vaulted"]
"""What people may see of it: all; a copy with the secrets masked; nothing without the right to see more."""


class ContentMeta(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One piece of content. `view_size` and `view_sha256` are those of what people see, where that differs."""

    ref: str
    tenant_id: str
    sha256: str
    size: int
    media_type: str
    shown: Shown
    rules: str
    created_at: str
    run_id: str | None = None
    view_size: int | None = None
    view_sha256: str | None = None


_META = msgspec.json.Decoder(ContentMeta)


def ref_of(uri: str) -> str | None:
    """The ref in an address, or the ref itself; None: neither."""
    ref = uri.removeprefix(CONTENT_PATH).removeprefix("content:")
    return ref if _REF.fullmatch(ref) else None


def content_ref_id(tenant_id: str, run_id: str | None, media_type: str, sha256: str) -> str:
    """The same content of the same run has the same address: who repeats a request makes nothing new."""
    return derived_id("cnt", tenant_id, run_id or "", media_type, sha256)


class Contents:
    """All content. Every call raises `Retryable` when the object store does not answer."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def find(self, tenant_id: str, ref: str) -> ContentMeta | None:
        """What there is under an address of a tenant; what is another's is not there."""
        if not is_tenant(tenant_id) or not _REF.fullmatch(ref):
            return None
        found = await self._objects.get(f"{_folder(tenant_id, ref)}/meta.json")
        return None if found is None else _META.decode(found)

    async def put(self, meta: ContentMeta, raw: Path, view: Path | None) -> None:
        """Keep it; there, whole, when this returns. The meta data comes last: without it there is nothing."""
        folder = _folder(meta.tenant_id, meta.ref)
        if meta.run_id is not None and is_id(meta.run_id):
            await self._objects.put(f"content-of/{meta.tenant_id}/{meta.run_id}/{meta.ref}", b"")
        await self._objects.put(f"{folder}/raw", raw)
        if view is not None:
            await self._objects.put(f"{folder}/view", view)
        await self._objects.put(f"{folder}/meta.json", encode(meta))

    async def read(self, meta: ContentMeta, *, raw: bool, start: int, end: int) -> AsyncIterator[bytes]:
        """The bytes from `start` to before `end`: as they came, or as people may see them."""
        name = "raw" if raw or meta.shown != "masked" else "view"
        async for chunk in self._objects.read(f"{_folder(meta.tenant_id, meta.ref)}/{name}", start, end):
            yield chunk

    async def delete(self, tenant_id: str, uri: str) -> None:
        """Delete one, if the address is one of this tenant's. Again: nothing."""
        ref = ref_of(uri)
        if ref is None:
            return
        folder = _folder(tenant_id, ref)
        await self._objects.delete(f"{folder}/meta.json")
        for name in ("raw", "view"):
            await self._objects.delete(f"{folder}/{name}")

    async def delete_of_run(self, run: RunAddress) -> None:
        """Delete all that belongs to a run. Again: nothing."""
        for path in await self._objects.list(f"content-of/{run.tenant_id}/{run.run_id}"):
            await self.delete(run.tenant_id, path.rpartition("/")[2])
            await self._objects.delete(path)


def _folder(tenant_id: str, ref: str) -> str:
    return f"content/{tenant_id}/{ref}"
