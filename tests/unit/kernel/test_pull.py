"""A pull session on what a server may say, in the order in which it may say it."""

from collections.abc import Callable
from types import SimpleNamespace

from nats.aio.msg import Msg

from runlane.kernel.pull import PullSession


class Wire:
    """A connection whose server is the test."""

    is_connected = True

    def __init__(self) -> None:
        self.nc = self
        self.say: Callable[..., object] = print

    def new_inbox(self) -> str:
        return "_INBOX.x"

    def add_disconnect_listener(self, _listener: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    async def subscribe(self, _subject: str, cb: Callable[..., object]) -> SimpleNamespace:
        async def unsubscribe() -> None:
            return None

        self.say = cb
        return SimpleNamespace(unsubscribe=unsubscribe)

    async def publish(self, *_: object, **__: object) -> None:
        return None

    async def status(self, code: str, text: str) -> None:
        headers = {"Status": code, "Description": text, "Nats-Pending-Messages": "0"}
        await self.say(Msg(self, subject="_INBOX.x", headers=headers))  # type: ignore[misc]

    async def message(self, seq: int) -> None:
        reply = f"$JS.ACK.RL_COMMAND.run-supervisor-v1.1.{seq}.{seq}.1796062222794517797.0"
        await self.say(Msg(self, subject="rl.cmd.00.t.r", reply=reply, headers={"Nats-Pin-Id": "p"}))  # type: ignore[misc]


async def test_a_request_that_is_called_completed_before_its_message_came_is_still_waited_for() -> None:
    """What a replicated durable does: the status at once, the message when its peers have agreed."""
    wire, got, changes = Wire(), [], []
    session = PullSession(
        wire, "RL_COMMAND", "run-supervisor-v1", on_delivery=got.append, on_change=lambda: changes.append(1), group="g"
    )
    async with session:
        await session.pull(1)
        await wire.status("409", "Batch Completed")
        assert (got, changes, session.lost.is_set(), session.outstanding) == ([], [], False, 1)
        await wire.message(1)
        assert [one.stream_seq for one in got] == [1]
        assert (session.pin, session.outstanding) == ("p", 0)
