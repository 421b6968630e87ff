"""What could not be processed: recorded first, then given up.

The record names the message and does not repeat it: what a dead letter is about may hold what its readers must
not see, and the stream it came from still has it for those who may.
"""

import hashlib

import msgspec
from msgspec import Struct

from runlane.kernel.delivery import Delivery
from runlane.kernel.publisher import WindowedPublisher
from runlane_contracts.headers import COMMIT_ID
from runlane_contracts.ids import is_tenant
from runlane_contracts.streams import Layout

MAX_REASON = 500
UNKNOWN_TENANT = "unknown"


class DeadLetterRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message on `rl.dead.<service>.<tenant>`."""

    service: str
    tenant_id: str
    reason: str
    stream: str
    stream_seq: int
    subject: str
    deliveries: int
    size: int
    sha256: str
    commit_id: str | None = None
    body: str | None = None


class DeadLetters:
    """Writes the records of one service. `with_body`: only where the message holds nothing its readers may not see."""

    def __init__(self, publisher: WindowedPublisher, layout: Layout, service: str, *, with_body: bool = False) -> None:
        self._publisher = publisher
        self._subjects = layout.subjects
        self._service = service
        self._with_body = with_body

    async def bury(self, delivery: Delivery, reason: str) -> None:
        """Returns once the record is durable; the same delivery twice makes one record.

        Raises:
            Retryable, Permanent: there is no record; the message must not be given up.
        """
        record = self._record(delivery, reason)
        await self._publisher.publish(
            self._subjects.dead(self._service, record.tenant_id),
            msgspec.json.encode(record),
            {COMMIT_ID: f"{record.service}/{record.stream}/{record.stream_seq}"},
        )

    def _record(self, delivery: Delivery, reason: str) -> DeadLetterRecord:
        return DeadLetterRecord(
            service=self._service,
            tenant_id=_tenant_of(delivery.subject),
            reason=reason[:MAX_REASON],
            stream=delivery.stream,
            stream_seq=delivery.stream_seq,
            subject=delivery.subject,
            deliveries=delivery.attempt,
            size=len(delivery.data),
            sha256=hashlib.sha256(delivery.data).hexdigest(),
            commit_id=delivery.headers.get(COMMIT_ID),
            body=delivery.data.decode(errors="replace") if self._with_body else None,
        )


def _tenant_of(subject: str) -> str:
    """Runs have it before the last token; work too."""
    tokens = subject.split(".")
    return tokens[-2] if len(tokens) > 2 and is_tenant(tokens[-2]) else UNKNOWN_TENANT
