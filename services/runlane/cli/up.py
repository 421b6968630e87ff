"""`runlane up`: everything in one process on an embedded broker, with its state in one folder.

The broker is a child process; the services share one event loop, each with a broker user of its own, exactly as they
would run apart. One port serves both gateways: the edge gateway answers readers, the command gateway writers.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import click

from runlane.cli.failures import Failure
from runlane.cli.state_dir import DEFAULT, StateDir, StateDirBroken, StateDirInUse
from runlane_contracts.access import broker_users
from runlane_contracts.streams import Layout

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line said."""

    state_dir: Path
    host: str
    port: int
    nats_port: int
    as_json: bool
    demo: bool


@click.command("up")
@click.option("--state-dir", type=click.Path(path_type=Path), default=DEFAULT, show_default=True,
              help="Where everything is kept; the same folder continues where it was.")  # fmt: skip
@click.option("--http", "http", default="127.0.0.1:8420", show_default=True, help="HOST:PORT; port 0 takes a free one.")
@click.option("--nats-port", type=click.IntRange(0, 65_535), default=4222, show_default=True,
              help="The broker's port; 0 takes a free one.")  # fmt: skip
@click.option("--demo", is_flag=True, help="Start a demo agent as soon as it serves.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object when ready; everything else to stderr.")
def up(state_dir: Path, http: str, nats_port: int, demo: bool, as_json: bool) -> None:  # noqa: FBT001 - click's way
    """Run the whole product on this machine."""
    host, port = _address(http)
    options = Options(state_dir=state_dir, host=host, port=port, nats_port=nats_port, as_json=as_json, demo=demo)
    try:
        with StateDir(state_dir) as state:
            _run(options, state)
    except (StateDirInUse, StateDirBroken) as exc:
        raise _cannot_start(str(exc)) from exc
    except OSError as exc:
        raise _cannot_start(f"{state_dir}: {exc.strerror or exc}") from exc


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    if host not in LOOPBACK:
        raise click.BadParameter("listens on loopback only: 127.0.0.1, localhost or ::1", param_hint="--http")
    if not port.isdigit() or int(port) > 65_535:
        raise click.BadParameter(f"{text!r} is not HOST:PORT", param_hint="--http")
    return host, int(port)


def _run(options: Options, state: StateDir) -> None:
    import uvloop  # noqa: PLC0415 - `--help` does without

    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(_serve(options, state))


async def _serve(options: Options, state: StateDir) -> None:
    from runlane.hosting.nats_server import EmbeddedServer, NatsServerError  # noqa: PLC0415

    layout = Layout()
    secrets = state.secrets([user.name for user in broker_users(layout)])
    server = EmbeddedServer(
        directory=state.nats_store, layout=layout, passwords=secrets.broker_passwords, port=options.nats_port
    )
    starting = asyncio.ensure_future(server.start())
    await asyncio.sleep(0)
    # The broker starts while the services are imported, which takes longer.
    run_all = await asyncio.to_thread(_import_composition)
    try:
        await starting
    except NatsServerError as exc:
        raise _cannot_start(str(exc)) from exc
    try:
        await run_all(server, secrets, state, options)
    except OSError as exc:
        raise _cannot_start(str(exc.strerror or exc)) from exc
    finally:
        await server.stop()


def _import_composition() -> "Callable[..., Awaitable[None]]":
    from runlane.cli.composition import run_all  # noqa: PLC0415 - takes a second

    return run_all


def _cannot_start(why: str) -> Failure:
    return Failure("cannot_start", why)
