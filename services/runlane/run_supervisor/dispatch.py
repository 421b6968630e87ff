"""Puts runs where workers look for them."""

from typing import Protocol

from runlane.kernel.publisher import PubAck
from runlane.kernel.work import WorkItem
from runlane.run_supervisor.recovery import HandOut, work_id
from runlane_contracts import headers
from runlane_contracts.codec import encode
from runlane_contracts.lifecycle import RunLifecycle
from runlane_contracts.subjects import RunAddress, Subjects


class Publish(Protocol):
    """Stores a message in its stream; see `WindowedPublisher.publish`."""

    async def publish(
        self, subject: str, data: bytes, headers: dict[str, str] | None = None, *, timeout_s: float = 5.0
    ) -> PubAck: ...


class Dispatcher:
    """The way into the work queue."""

    def __init__(self, publisher: Publish, subjects: Subjects) -> None:
        self._publisher, self._subjects = publisher, subjects

    async def hand_out(self, run: RunLifecycle, order: HandOut) -> None:
        """Let a run wait for a worker; durable when this returns, and once for each attempt.

        Raises:
            Retryable: not known, or the queue is full.
        """
        agent = run.created.agent if run.created is not None else ""
        item = WorkItem(tenant_id=run.tenant_id, run_id=run.run_id, agent=agent, attempt=order.attempt)
        message_id = work_id(RunAddress(run.tenant_id, run.run_id), order.attempt)
        sent = {headers.COMMIT_ID: message_id}
        if run.traceparent is not None:
            sent[headers.TRACEPARENT] = run.traceparent
        await self._publisher.publish(self._subjects.work(run.tenant_id, order.pool), encode(item), sent)
