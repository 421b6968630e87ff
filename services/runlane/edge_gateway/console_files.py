"""The web console: static files, read once, never anything outside their folder."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runlane.hosting.http import ProblemError
from runlane_contracts.problems import Code

CONSOLE = Path(__file__).parent / "console"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".webmanifest": "application/manifest+json",
}
CONTENT_SECURITY_POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; connect-src 'self'; object-src 'none'; frame-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""The page makes no markup from text, so no trusted type is needed; it asks nobody but its own server."""
_SECURITY = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes = field(repr=False)
    media_type: str
    etag: str


class ConsoleFiles:
    """`index.html` at ``/``; every file under ``/console/``, and at the root, where the page's own links point."""

    def __init__(self, folder: Path = CONSOLE) -> None:
        self._files = _read(folder) if folder.is_dir() else {}

    def routes(self) -> list[Route]:
        """Where they are."""
        at_root = [Route(f"/{name}", self._at_root) for name in self._files if "/" not in name]
        return [
            Route("/", self._index),
            Route("/console", self._index_below),
            Route("/console/{name:path}", self._named),
            *at_root,
        ]

    async def _index(self, request: Request) -> Response:
        return self._answer(request, "index.html")

    async def _index_below(self, _request: Request) -> Response:
        return Response(status_code=308, headers={"Location": "/console/"})

    async def _named(self, request: Request) -> Response:
        return self._answer(request, request.path_params["name"] or "index.html")

    async def _at_root(self, request: Request) -> Response:
        return self._answer(request, request.url.path.removeprefix("/"))

    def _answer(self, request: Request, name: str) -> Response:
        file = self._files.get(name)
        if file is None:
            raise ProblemError(Code.NOT_FOUND, "no such file")
        # No version is in the names, so each use asks whether the file is still the same.
        headers = {"Cache-Control": "no-cache", "ETag": file.etag, **_SECURITY}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.body, headers=headers, media_type=file.media_type)


def _read(folder: Path) -> dict[str, _File]:
    found = {}
    for path in sorted(folder.rglob("*")):
        media_type = _TYPES.get(path.suffix)
        if media_type is not None and path.is_file():
            body = path.read_bytes()
            etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            found[path.relative_to(folder).as_posix()] = _File(body, media_type, etag)
    return found
