"""How long a request to an object store may take. What the environment says of the client goes before it."""

import os

_VARIABLES = {"s3": "AWS_", "s3a": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
_OPTIONS = (
    "allow_http", "allow_invalid_certificates", "connect_timeout", "http1_only", "proxy_ca_certificate",
    "proxy_excludes", "proxy_url", "read_timeout", "timeout", "user_agent",
)  # fmt: skip
"""What obstore takes from the environment by itself, but only when it is given none of them."""
_TIMEOUTS = {"connect_timeout": "3s", "timeout": "15s"}
"""Of one request; a large file is written in several."""


def client_options(place: str) -> dict[str, str] | None:
    """For the client of a URL, such as AWS_ALLOW_HTTP for an ``s3://``; None: of another kind, which takes none."""
    prefix = _VARIABLES.get(place.partition("://")[0])
    if prefix is None:
        return None
    said = {name: os.environ.get(f"{prefix}{name.upper()}") for name in _OPTIONS}
    return {**_TIMEOUTS, **{name: value for name, value in said.items() if value is not None}}
