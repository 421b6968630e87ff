"""`python -m runlane.audit_sink.follow`: beside a broker, for a broker in another container than the audit sink.

Follows the log that the broker writes, hands what it refused to the audit, and shows every line on stdout, so that the
container's log is the broker's. It may do nothing else: its user writes to its own part of the intake.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from runlane.audit_sink.broker_log import BrokerLog
from runlane.audit_sink.follow_settings import BrokerLogSettings
from runlane.hosting.connections import Connections, connection_of
from runlane.hosting.health import Health
from runlane.hosting.service import Running, main
from runlane.hosting.tasks import task_group
from runlane.kernel.publisher import WindowedPublisher
from runlane_contracts.access import BROKER_LOG


@asynccontextmanager
async def serve(settings: BrokerLogSettings, connections: Connections | None = None) -> AsyncIterator[Running]:
    """Follows while the block lasts. Raises Retryable when the broker cannot be reached at the start."""
    async with (
        connection_of(BROKER_LOG, connections) as connection,
        WindowedPublisher(connection) as publisher,
        task_group() as tasks,
    ):
        followed = BrokerLog(settings.path, publisher, settings.common.layout.subjects, show=_show)
        following = tasks.create_task(followed.follow())

        async def health() -> Health:
            detail = {"noted": followed.noted, **({"trouble": followed.trouble} if followed.trouble else {})}
            return Health(ready=connection.is_connected, detail=detail)

        try:
            yield Running(name=BROKER_LOG, health=health)
        finally:
            following.cancel()


def _show(lines: list[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


if __name__ == "__main__":
    main(BROKER_LOG, lambda connections: serve(BrokerLogSettings(), connections))
