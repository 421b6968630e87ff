"""`runlane dead-letters`: what could not be processed and was set aside, and why."""

from typing import TYPE_CHECKING

import click

from runlane.cli.link import Link, linked

if TYPE_CHECKING:
    from runlane.kernel.dead_letter import DeadLetterRecord
    from runlane.kernel.direct import StoredMessage


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
    from runlane.cli.stored import stored_messages  # noqa: PLC0415
    from runlane_contracts.codec import timestamp_of_ns  # noqa: PLC0415
    from runlane_contracts.ids import is_id  # noqa: PLC0415

    if service != "*" and not is_id(service):
        raise click.BadParameter(f"{service!r} is the name of no service", param_hint="--service")
    layout, count = configured_layout(), 0
    async with (
        link.broker(nats_url) as broker,
        stored_messages(broker, layout.dead_stream, layout.subjects.dead(service, "*")) as messages,
    ):
        async for message in messages:
            record = _record(message)
            if record is None:
                say(f"{layout.dead_stream}/{message.seq} is no record of a dead letter")
                continue
            count += 1
            at = timestamp_of_ns(message.time_ns)
            if link.json:
                emit({"time": at, **_shown(record)})
            else:
                click.echo(_line(at, record))
    if not count and not link.json:
        say("none")


def _record(message: "StoredMessage") -> "DeadLetterRecord | None":
    import msgspec  # noqa: PLC0415

    from runlane.kernel.dead_letter import DeadLetterRecord  # noqa: PLC0415

    try:
        return msgspec.json.decode(message.data, type=DeadLetterRecord)
    except msgspec.MsgspecError:
        return None


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
