"""`POST /v1/content`: large content of a producer, kept beside the log; what people may see of it is decided here."""

import asyncio
import hashlib
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from runlane.command_gateway.door import Door
from runlane.command_gateway.quota import Quota
from runlane.command_gateway.wire import ContentTaken
from runlane.hosting.authorizer import Principal, Right
from runlane.hosting.http import ProblemError, json_response
from runlane.kernel.clock import Now
from runlane.masking.content import MAX_SEARCHED_BYTES, VAULTED, Seen, seen
from runlane.masking.rules import RULES_VERSION
from runlane.masking.scanner import Scanner
from runlane.object_store.content import CONTENT_PATH, ContentMeta, Contents, content_ref_id
from runlane_contracts.classification import Classification
from runlane_contracts.codec import timestamp
from runlane_contracts.problems import Code

OCTETS: Final = "application/octet-stream"
_UNDECLARED_COSTS_BYTES: Final = 1024 * 1024
_WORD = r"[A-Za-z0-9!#$&^_.+-]{1,64}"
_MEDIA_TYPE = re.compile(rf'{_WORD}/{_WORD}(?: ?; ?{_WORD}=(?:{_WORD}|"[A-Za-z0-9 _.+-]{{0,64}}"))*')
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class _Received:
    """A body on disk."""

    path: Path
    sha256: str
    size: int


class ContentDesk:
    """Takes content. A body goes to a file piece by piece; two at a time are searched for secrets."""

    def __init__(self, door: Door, *, contents: Contents, quota: Quota, now: Now, max_bytes: int) -> None:
        self._door, self._contents, self._quota, self._now = door, contents, quota, now
        self._max_bytes = max_bytes
        self._scanner: Scanner | None = None
        self._searching = asyncio.Semaphore(1)  # a scanner is for one thread at a time

    async def post(self, request: Request) -> Response:
        """Keep content; there, whole, when this answers. The same content of the same run again: the same address."""
        principal, run_id = await self._asked(request)
        media_type = _media_type(request)
        classification = _classification(request)
        expected = request.query_params.get("sha256")
        if expected is not None and not _SHA256.fullmatch(expected):
            raise ProblemError(Code.INVALID_REQUEST, "sha256: 64 hex digits")
        with tempfile.TemporaryDirectory(prefix="runlane-content-") as folder:
            received = await self._receive(request, Path(folder) / "raw", principal)
            if expected is not None and expected != received.sha256:
                raise ProblemError(Code.INVALID_REQUEST, "what arrived does not have that sha256")
            meta = await self._keep(principal, run_id, media_type, classification, received)
        taken = ContentTaken(
            uri=CONTENT_PATH + meta.ref, ref=meta.ref, sha256=meta.sha256, size=meta.size, media_type=meta.media_type
        )
        return json_response(taken, 201, headers={"Location": taken.uri})

    async def _asked(self, request: Request) -> tuple[Principal, str | None]:
        run_id = request.query_params.get("run_id") or None
        if run_id is None:
            return await self._door.principal(request, Right.PRODUCE), None
        request.path_params["run_id"] = run_id
        caller = await self._door.caller(request, Right.PRODUCE)
        if caller.run_log.lifecycle.is_terminal:
            raise ProblemError(Code.RUN_TERMINAL, f"the run is {caller.run_log.lifecycle.status}")
        return caller.principal, run_id

    async def _receive(self, request: Request, path: Path, principal: Principal) -> _Received:
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > self._max_bytes:
            raise self._too_large()
        self._charge(principal.tenant_id, int(declared) if declared.isdigit() else _UNDECLARED_COSTS_BYTES)
        digest, size = hashlib.sha256(), 0
        with path.open("wb") as file:
            async for chunk in request.stream():
                size += len(chunk)
                if size > self._max_bytes:
                    raise self._too_large()
                digest.update(chunk)
                file.write(chunk)
        return _Received(path, digest.hexdigest(), size)

    async def _keep(
        self,
        principal: Principal,
        run_id: str | None,
        media_type: str,
        classification: Classification,
        received: _Received,
    ) -> ContentMeta:
        ref = content_ref_id(principal.tenant_id, run_id, f"{media_type}\n{classification.value}", received.sha256)
        known = await self._contents.find(principal.tenant_id, ref)
        if known is not None:
            return known
        found = await self._seen(received, media_type, classification)
        view = received.path.with_name("view") if found.view is not None else None
        if view is not None and found.view is not None:
            view.write_bytes(found.view)
        meta = ContentMeta(
            ref=ref, tenant_id=principal.tenant_id, run_id=run_id, sha256=received.sha256, size=received.size,
            media_type=media_type, shown=found.shown, rules=RULES_VERSION, created_at=timestamp(self._now()),
            view_size=None if found.view is None else len(found.view),
            view_sha256=None if found.view is None else hashlib.sha256(found.view).hexdigest(),
        )  # fmt: skip
        await self._contents.put(meta, received.path, view)
        return meta

    async def _seen(self, received: _Received, media_type: str, classification: Classification) -> Seen:
        if classification is Classification.RESTRICTED or received.size > MAX_SEARCHED_BYTES:
            return VAULTED
        async with self._searching:
            if self._scanner is None:
                self._scanner = await asyncio.to_thread(Scanner)
            return await asyncio.to_thread(_look, received.path, media_type, self._scanner)

    def _charge(self, tenant_id: str, size: int) -> None:
        again_in_s = self._quota.take(tenant_id, size, now=self._now())
        if again_in_s > 0:
            raise ProblemError(Code.QUOTA_EXCEEDED, "content bytes per second", retry_after_s=again_in_s)

    def _too_large(self) -> ProblemError:
        return ProblemError(
            Code.PAYLOAD_TOO_LARGE, f"content has at most {self._max_bytes} bytes", headers={"Connection": "close"}
        )


def _look(path: Path, media_type: str, scanner: Scanner) -> Seen:
    return seen(path.read_bytes(), media_type, scanner)


def _media_type(request: Request) -> str:
    stated = request.headers.get("content-type", "").strip() or OCTETS
    if len(stated) > 200 or not _MEDIA_TYPE.fullmatch(stated):
        raise ProblemError(Code.INVALID_REQUEST, "Content-Type: not a media type")
    return stated


def _classification(request: Request) -> Classification:
    stated = request.query_params.get("classification") or Classification.INTERNAL.value
    try:
        return Classification(stated)
    except ValueError as exc:
        known = ", ".join(one.value for one in Classification)
        raise ProblemError(Code.INVALID_REQUEST, f"classification: one of {known}") from exc
