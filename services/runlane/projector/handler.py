"""Between the consumer of one stream and the projector."""

from runlane.kernel.delivery import Delivery
from runlane.projector.projector import Projector
from runlane.projector.view import view_message
from runlane_contracts.subjects import Subjects


class StreamHandler:
    """What a `BatchConsumer` calls."""

    def __init__(self, projector: Projector, stream: str, subjects: Subjects) -> None:
        self._projector = projector
        self._stream = stream
        self._subjects = subjects

    async def resume(self) -> int:
        """Where the stored states stand: deliveries begin after it. Raises Retryable."""
        return await self._projector.position(self._stream)

    async def handle(self, deliveries: list[Delivery]) -> int:
        """Store what a batch makes of its runs; done up to its last message. Raises Retryable."""
        messages = [
            view_message(self._subjects, one.subject, one.stream_seq, one.headers, one.data) for one in deliveries
        ]
        await self._projector.handle(self._stream, messages)
        return messages[-1].stream_seq
