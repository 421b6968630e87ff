"""`GET /v1/content/{ref}`: content of facts, authorized at each read, never to be taken for a page of ours."""

import base64
import hashlib
import re
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from runlane.edge_gateway.queries import choice, query_params
from runlane.hosting.authorizer import Authorizer, Right, require
from runlane.hosting.http import ProblemError
from runlane.kernel.errors import Retryable
from runlane.object_store.content import ContentMeta, Contents, ref_of
from runlane_contracts.problems import Code

_RANGE = re.compile(r"bytes=(\d{0,15})-(\d{0,15})")
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "private, no-store",
    "Accept-Ranges": "bytes",
}


class ContentReads:
    """Content as people may see it; as it came only for who may produce it, and asks for that."""

    def __init__(self, *, authorizer: Authorizer, contents: Contents) -> None:
        self._authorizer, self._contents = authorizer, contents

    def routes(self) -> list[Route]:
        """One."""
        return [Route("/v1/content/{ref:path}", self.get)]

    async def get(self, request: Request) -> Response:
        """The bytes, or those of one range."""
        principal = await require(request, self._authorizer, Right.VIEW)
        params = query_params(request.scope["query_string"])
        raw = choice(params, "raw", ("true", "false")) == "true"
        ref = ref_of(request.path_params["ref"])
        meta = None if ref is None else await self._contents.find(principal.tenant_id, ref)
        if meta is None:
            raise ProblemError(Code.NOT_FOUND, "no such content")
        if raw and not principal.may(Right.PRODUCE):
            raise ProblemError(Code.FORBIDDEN, "the right to produce is missing, which content as it came asks for")
        if meta.shown == "vaulted" and not raw:
            raise ProblemError(Code.FORBIDDEN, "it cannot be searched for secrets: raw=true, with the right to produce")
        return self._answer(request, meta, raw=raw)

    def _answer(self, request: Request, meta: ContentMeta, *, raw: bool) -> Response:
        size, sha256 = meta.size, meta.sha256
        if not raw and meta.view_size is not None and meta.view_sha256 is not None:
            size, sha256 = meta.view_size, meta.view_sha256
        headers = {
            **_HEADERS,
            "Content-Type": meta.media_type,
            "Content-Disposition": f'attachment; filename="{meta.ref}"',
            "ETag": f'"{sha256}"',
            "Repr-Digest": f"sha-256=:{base64.b64encode(bytes.fromhex(sha256)).decode()}:",
            "Runlane-Content": "as_it_is" if raw else meta.shown,
        }
        if _is_known(request, sha256):
            return Response(status_code=304, headers={**_HEADERS, "ETag": headers["ETag"]})
        wanted = _range(request, size, sha256)
        if wanted is None:
            headers["Content-Length"] = str(size)
            whole = _checked(self._contents.read(meta, raw=raw, start=0, end=size), sha256)
            return _Stream(whole, 200, headers)
        start, end = wanted
        if start >= end:
            return Response(status_code=416, headers={**_HEADERS, "Content-Range": f"bytes */{size}"})
        headers |= {"Content-Length": str(end - start), "Content-Range": f"bytes {start}-{end - 1}/{size}"}
        return _Stream(self._contents.read(meta, raw=raw, start=start, end=end), 206, headers)


class _Stream(StreamingResponse):
    """Its media type is what was stated, without a charset of ours."""

    def __init__(self, body: AsyncIterator[bytes], status: int, headers: dict[str, str]) -> None:
        super().__init__(body, status, headers)


def _is_known(request: Request, sha256: str) -> bool:
    """Whether the client has it already, by `If-None-Match`."""
    known = request.headers.get("if-none-match", "")
    return known.strip() == "*" or f'"{sha256}"' in known


def _range(request: Request, size: int, sha256: str) -> tuple[int, int] | None:
    """From where to before where; an empty one cannot be had; None: all of it."""
    found = _RANGE.fullmatch(request.headers.get("range", "").strip())
    if_range = request.headers.get("if-range")
    if found is None or found[0] == "bytes=-" or (if_range is not None and if_range != f'"{sha256}"'):
        return None  # several ranges, other units, or of what it was before: all of it is a right answer
    first, last = found[1], found[2]
    if not first:
        count = int(last)
        return (max(0, size - count), size) if count else (size, size)
    end = size if not last else min(size, int(last) + 1)
    if last and int(last) < int(first):
        return None
    return int(first), end


async def _checked(chunks: AsyncIterator[bytes], sha256: str) -> AsyncIterator[bytes]:
    """The same chunks; the last one once all of it is what was kept. Else the answer stays short, and is broken off."""
    digest, held = hashlib.sha256(), b""
    async for chunk in chunks:
        if held:
            yield held
        digest.update(chunk)
        held = chunk
    if digest.hexdigest() != sha256:
        raise Retryable("content is not what was kept")
    yield held
