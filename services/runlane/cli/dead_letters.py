"""`runlane dead-letters`: what could not be processed and was set aside, and why."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import click

from runlane.cli.link import Link, linked

if TYPE_CHECKING:
    from runlane.kernel.connection import Connection
    from runlane.kernel.dead_letter import DeadLetterRecord
    from runlane_contracts.streams import Layout


@click.command("dead-letters")
@click.option("--service", default="*", metavar="NAME", help="Only those that this service set aside.")
@click.option(
    "--nats-url", envvar="RUNLANE_NATS_URL", help="The broker. Who: in it, or RUNLANE_NATS_USER and _PASSWORD."
)
@linked
async def dead_letters(link: Link, service: str, nats_url: str | None) -> None:
    """Show what could not be processed, oldest first, of all tenants: what it was, why, and where it lies.

    None is tried again by itself, and none has content. They are kept for 30 days.
    """
    from runlane.cli.layout import configured_layout  # noqa: PLC0415
    from runlane.cli.output import emit, say  # noqa: PLC0415
    from runlane_contracts.ids import is_id  # noqa: PLC0415

    if service != "*" and not is_id(service):
        raise click.BadParameter(f"{service!r} is the name of no service", param_hint="--service")
    count = 0
    async with link.broker(nats_url) as broker:
        async for at, record in _records(broker, configured_layout(), service):
            count += 1
            if link.json:
                emit({"time": at, **_shown(record)})
            else:
                click.echo(_line(at, record))
    if not count and not link.json:
        say("none")


async def _records(
    broker: "Connection", layout: "Layout", service: str
) -> AsyncIterator[tuple[str, "DeadLetterRecord"]]:
    import msgspec  # noqa: PLC0415

    from runlane.cli.output import say  # noqa: PLC0415
    from runlane.kernel.dead_letter import DeadLetterRecord  # noqa: PLC0415
    from runlane.kernel.direct import DirectReader  # noqa: PLC0415
    from runlane_contracts.codec import timestamp_of_ns  # noqa: PLC0415

    decode = msgspec.json.Decoder(DeadLetterRecord).decode
    async with DirectReader(broker) as reader:
        async for page in reader.pages(layout.dead_stream, layout.subjects.dead(service, "*")):
            for message in page.messages:
                try:
                    yield timestamp_of_ns(message.time_ns), decode(message.data)
                except msgspec.MsgspecError:
                    say(f"{layout.dead_stream}/{message.seq} is no record of a dead letter")


def _shown(record: "DeadLetterRecord") -> dict[str, object]:
    import msgspec  # noqa: PLC0415

    found = msgspec.structs.asdict(record)
    return {name: value for name, value in found.items() if value is not None and name != "body"}


def _line(at: str, record: "DeadLetterRecord") -> str:
    from runlane.cli.output import printable  # noqa: PLC0415

    return printable(
        f"{at[:19]}Z  {record.service:<16} {record.tenant_id:<12} {record.stream}/{record.stream_seq}  "
        f"{record.subject}  {record.size} bytes  deliveries {record.deliveries}: {record.reason}"
    )
