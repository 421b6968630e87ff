"""An S3 API on loopback, for what is kept in object storage."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest


@contextmanager
def s3_bucket(environment: pytest.MonkeyPatch, bucket: str = "bucket") -> Iterator[str]:
    """A bucket of its own server, which programs reach as `s3://<bucket>`; gives the address of its plain HTTP."""
    import moto.server  # noqa: PLC0415 - takes a second

    server = moto.server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        for name, value in {
            "AWS_ENDPOINT_URL": url, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing",
        }.items():  # fmt: skip
            environment.setenv(name, value)
        # Servers in one process share what they hold: without this, a second try finds what the first one left.
        httpx.post(f"{url}/moto-api/reset", trust_env=False).raise_for_status()
        httpx.put(f"{url}/{bucket}", trust_env=False).raise_for_status()
        yield f"{url}/{bucket}"
    finally:
        server.stop()
