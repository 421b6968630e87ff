"""Writes `users.conf`: the broker's users as the contract has them, passwords taken from the environment.

python k8s/nats/render.py            write it
python k8s/nats/render.py --check    fail when it is stale
"""

import sys
from pathlib import Path

from runlane.hosting.nats_server import authorization_lines
from runlane_contracts.access import broker_users
from runlane_contracts.streams import Layout

TARGET = Path(__file__).with_name("users.conf")


def rendered() -> str:
    """The file's text."""
    users = broker_users(Layout())
    passwords = {user.name: f"$RUNLANE_NATS_PASSWORD_{user.name}" for user in users}
    head = "# Made by render.py from runlane_contracts/access.py; do not edit.\n"
    return head + "\n".join(authorization_lines(users, passwords)) + "\n"


def main() -> None:
    """Write or check."""
    if "--check" in sys.argv[1:]:
        if not TARGET.exists() or TARGET.read_text() != rendered():
            sys.exit(f"{TARGET} is stale: run python k8s/nats/render.py")
        return
    TARGET.write_text(rendered())


if __name__ == "__main__":
    main()
