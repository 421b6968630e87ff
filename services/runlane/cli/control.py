"""What an operator asks a service: `rl.svc.<service>.<verb>`, request and reply."""

from typing import Any

from runlane.client.errors import ProblemBody, RequestRefused
from runlane.kernel.connection import Connection
from runlane_contracts.codec import decode_json, encode
from runlane_contracts.subjects import Subjects

SERVICES = ("command_gateway", "run_supervisor", "redaction_filter", "projector", "audit_sink", "metrics_aggregator",
            "edge_gateway", "retention")  # fmt: skip


async def ask(
    broker: Connection, subjects: Subjects, service: str, verb: str, body: Any = None, *, timeout_s: float = 5.0
) -> dict[str, Any]:
    """One answer.

    Raises:
        RequestRefused: the service answered with a problem.
        Retryable: nobody answers.
    """
    answer = await broker.request(
        subjects.service(service, verb), b"" if body is None else encode(body), timeout_s=timeout_s
    )
    found: dict[str, Any] = decode_json(answer.data)
    if str(found.get("type", "")).startswith("urn:runlane:problem:"):
        raise RequestRefused(ProblemBody(code=found["code"], detail=found.get("detail", ""), status=found["status"]))
    return found
