"""Between the consumer of one source and the sealer."""

from collections.abc import Callable

from runlane.audit_sink import records
from runlane.audit_sink.owners import Owners
from runlane.audit_sink.records import Read, SourceMessage
from runlane.audit_sink.sealer import Sealer
from runlane.kernel.delivery import Delivery
from runlane.kernel.direct import DirectReader
from runlane_contracts.streams import Layout


class SourceHandler:
    """What a `BatchConsumer` of one source calls."""

    def __init__(self, sealer: Sealer, direct: DirectReader, stream: str, read: Read, *, is_gapless: bool) -> None:
        self._sealer, self._direct = sealer, direct
        self._stream, self._read, self._is_gapless = stream, read, is_gapless
        self._owners = Owners(direct) if read is records.of_commit else None
        self._epoch = ""

    async def resume(self) -> int:
        """Where the records stand: deliveries begin after it. Raises Retryable."""
        self._direct.forget_epoch(self._stream)
        if self._owners is not None:
            self._owners.forget()
        state = await self._direct.stream_state(self._stream)
        self._epoch = state.epoch
        return await self._sealer.resume(self._stream, state.epoch, state.first_seq if self._is_gapless else 0)

    async def handle(self, deliveries: list[Delivery]) -> int:
        """Seal a batch; done up to its last message. Raises Retryable, Overloaded."""
        messages = [SourceMessage(one.stream, one.stream_seq, one.time_ns, one.subject, one.data) for one in deliveries]
        await self._sealer.seal(self._epoch, [(message, await self._entries(message)) for message in messages])
        return messages[-1].seq

    async def _entries(self, message: SourceMessage) -> records.Entries:
        entries = self._read(message)
        return entries if self._owners is None else await self._owners.named(message, entries)


def reader_of(layout: Layout, stream: str) -> Read:
    """How messages of a source are read."""
    single: dict[str, Callable[[SourceMessage], records.Entries]] = {
        layout.command_stream: records.of_command,
        f"KV_{layout.ledger_bucket}": records.of_ledger,
        layout.intake_stream: records.of_refusal,
    }
    return single.get(stream, records.of_commit)


def is_gapless(layout: Layout, stream: str) -> bool:
    """Whether a missing sequence is a loss. In a bucket a new value takes the place of the old one."""
    return stream != f"KV_{layout.ledger_bucket}"
