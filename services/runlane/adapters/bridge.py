"""Drives a live agent program: its messages become the run, a person's decisions become its answers."""

import asyncio
import contextlib

from runlane.adapters.dialogue import Dialogue
from runlane.adapters.mapping import Message
from runlane.adapters.process import JsonLineProcess
from runlane.adapters.scribe import Scribe
from runlane_contracts import events
from runlane_contracts.lifecycle import draft


class Bridge:
    """One program, one run. `run` returns when the run has its terminal fact."""

    def __init__(self, dialogue: Dialogue, process: JsonLineProcess, scribe: Scribe) -> None:
        self._dialogue, self._process, self._scribe = dialogue, process, scribe
        self._saying = asyncio.Lock()  # an answer's facts must not split a message's

    async def run(self) -> None:
        """Play the whole dialogue.

        Raises:
            NotStarted: the program could not be started; nothing was said.
        """
        async with asyncio.TaskGroup() as tasks:
            stopping = tasks.create_task(self._stop_when_cancelled())
            await self._talk(tasks)
            stopping.cancel()
        await self._finish()

    async def _talk(self, tasks: asyncio.TaskGroup) -> None:
        answering: set[asyncio.Task[None]] = set()
        try:
            await self._send(self._dialogue.opening())
            async for message in self._process.messages():
                async with self._saying:
                    await self._scribe.say(self._dialogue.mapping.feed(message))
                if self._dialogue.asks(message) is not None:
                    answering.add(tasks.create_task(self._answer(message)))
                await self._send(self._dialogue.react(message))
                if self._dialogue.is_over(message):
                    await self._process.close_stdin()
        finally:
            for task in answering:
                task.cancel()

    async def _answer(self, message: Message) -> None:
        approval_id = self._dialogue.asks(message)
        if approval_id is None:
            return
        decision = await self._scribe.decision(approval_id)
        reply = self._dialogue.answer(message, decision)
        async with self._saying:
            # Facts first: the run must not wait any more when the program goes on.
            await self._scribe.say(self._dialogue.mapping.feed(reply))
            await self._send([reply])

    async def _stop_when_cancelled(self) -> None:
        await self._scribe.cancel_requested.wait()
        await self._send(self._dialogue.interrupt())
        await self._process.stop()

    async def _send(self, messages: list[Message]) -> None:
        for message in messages:
            with contextlib.suppress(ConnectionError):  # it no longer reads; its end will say why
                await self._process.send(message)

    async def _finish(self) -> None:
        if self._scribe.cancel_requested.is_set():
            await self._scribe.say([draft(events.RunCancelled(reason="cancelled on request"))])
            return
        await self._process.stop()
        words = self._process.last_words[-2000:]
        failure = f"exit code {self._process.exit_code}" + (f": {words}" if words else "")
        await self._scribe.say(self._dialogue.mapping.finish(failure))
