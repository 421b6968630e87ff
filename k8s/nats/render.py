"""Writes the broker's configuration: the one of `runlane up`, for a container, passwords taken from the environment.

python k8s/nats/render.py            write it
python k8s/nats/render.py --check    fail when it is stale

`users.conf` names each stream, so it follows RUNLANE_SUBJECT_ROOT, RUNLANE_LOG_STREAMS and
RUNLANE_SUPERVISOR_PARTITIONS.
"""

import sys
from pathlib import Path

from runlane.hosting.nats_server import Cluster, authorization_lines, render_config
from runlane.hosting.settings import CommonSettings
from runlane_contracts.access import broker_users
from runlane_contracts.streams import GIB, MIB, Layout

HERE = Path(__file__).parent
HEAD = "# Made by render.py; do not edit.\n"
LISTEN = "0.0.0.0:4222"
LOG = ('log_file: "/log/server.log"', "logtime_utc: true", f"logfile_size_limit: {32 * MIB}", "logfile_max_num: 3")
"""Read by `runlane.audit_sink.follow` beside it, which shows it, too."""
VOLUME_BYTES = 190 * GIB
"""Of the 200 GiB that a node's volume claim asks for: provisioning refuses streams that would not fit."""


def rendered(layout: Layout) -> dict[str, str]:
    """The text of each file."""
    users = broker_users(layout)
    passwords = {user.name: f"$RUNLANE_NATS_PASSWORD_{user.name}" for user in users}
    cluster = Cluster(
        name="runlane", listen="0.0.0.0:6222", routes=tuple(f"nats://nats-{n}.nats-peers:6222" for n in range(3))
    )
    node = render_config(
        layout=layout, listen=LISTEN, store_dir="/data", passwords=None, monitor="0.0.0.0:8222", cluster=cluster,
        max_file_bytes=VOLUME_BYTES, extra=(*LOG, "include users.conf"),
    )  # fmt: skip
    single = render_config(
        layout=layout, listen=LISTEN, store_dir="/data", passwords=None, extra=(*LOG, "include users.conf")
    )
    return {
        "nats.conf": f"{HEAD}# One of three nodes; each is given its name with --name.\n{node}",
        "single.conf": f"{HEAD}# One node, for docker-compose.\n{single}",
        "users.conf": HEAD + "\n".join(authorization_lines(users, passwords)) + "\n",
    }


def main() -> None:
    """Write or check."""
    files = rendered(CommonSettings().layout)
    if "--check" not in sys.argv[1:]:
        for name, text in files.items():
            (HERE / name).write_text(text)
        return
    stale = [name for name, text in files.items() if not (HERE / name).exists() or (HERE / name).read_text() != text]
    if stale:
        sys.exit(f"stale: {', '.join(stale)}; run python {Path(__file__).name}")


if __name__ == "__main__":
    main()
