"""An S3 API on loopback, for what is kept in object storage."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

Answer = tuple[int, bytes]
"""Status and body."""
Fault = Callable[[str, str], Answer | None]
"""Method and path of a request: what it is answered with instead; None: let it through."""


@contextmanager
def s3_bucket(environment: pytest.MonkeyPatch, bucket: str = "bucket") -> Iterator[str]:
    """A bucket of its own server, which programs reach as `s3://<bucket>`; gives the address of its plain HTTP."""
    import moto.server  # noqa: PLC0415 - takes a second

    server = moto.server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        reach(environment, url)
        # Servers in one process share what they hold: without this, a second try finds what the first one left.
        httpx.post(f"{url}/moto-api/reset", trust_env=False).raise_for_status()
        httpx.put(f"{url}/{bucket}", trust_env=False).raise_for_status()
        yield f"{url}/{bucket}"
    finally:
        server.stop()


def reach(environment: pytest.MonkeyPatch, url: str) -> None:
    """Let programs find the S3 API of an address."""
    for name, value in {
        "AWS_ENDPOINT_URL": url, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing",
    }.items():  # fmt: skip
        environment.setenv(name, value)


class Gate:
    """In front of an S3 API, or instead of one: what a fault is made of does not get through. Keeps what was asked."""

    def __init__(self, there: httpx.Client) -> None:
        self.asked: list[tuple[str, str]] = []
        self.fault: Fault = self.let_through
        self._there = there

    @staticmethod
    def let_through(_method: str, _path: str) -> None:
        """No fault."""

    def answer(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        self.asked.append((method, path))
        instead = self.fault(method, path)
        if instead is not None:
            return instead[0], {}, instead[1]
        reply = self._there.request(method, path, content=body, headers=headers)
        return reply.status_code, dict(reply.headers), reply.content


@contextmanager
def gate(environment: pytest.MonkeyPatch, behind: str = "") -> Iterator[Gate]:
    """Programs reach the S3 API of a server (scheme, host, port) through a gate, or the gate alone."""
    there = httpx.Client(trust_env=False, timeout=20, base_url=behind)
    one = Gate(there)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Nothing."""

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            status, headers, answer = one.answer(self.command, self.path, body, dict(self.headers))
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in {"content-length", "connection", "date", "server", "transfer-encoding"}:
                    self.send_header(name, value)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_PUT = do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815 - as the standard library asks

    with there, ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        reach(environment, f"http://127.0.0.1:{server.server_port}")
        try:
            yield one
        finally:
            server.shutdown()
            serving.join()
