"""What a stream of the broker holds, for verbs that look through it."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from runlane.kernel.connection import Connection
from runlane.kernel.direct import DirectReader, StoredMessage


@asynccontextmanager
async def stored_messages(
    broker: Connection, stream: str, subjects: str
) -> AsyncIterator[AsyncIterator[StoredMessage]]:
    """The messages of these subjects, oldest first. Closed with the block, also when its reader went away in between.

    Iterating raises Retryable.
    """

    async def each() -> AsyncGenerator[StoredMessage, None]:
        async for page in reader.pages(stream, subjects):
            for message in page.messages:
                yield message

    async with DirectReader(broker) as reader, aclosing(each()) as messages:
        yield messages
