"""The demo: a real Pydantic AI agent whose model is a script, so that it needs no network and no key.

It prepares a release: thinks, reads the open tickets and the test report, writes a summary, asks before it
publishes, and acts on the answer.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel

PROMPT = "Prepare release 2.4 and publish it when it is ready."

_THOUGHT = (
    "A release needs three things: every blocking ticket closed, a green test report, and somebody who says yes. "
    "I will look at the first two before I ask."
)
_PLAN = "I will read the open tickets and the last test report first, then summarise what I found. "
_SUMMARY = (
    "Here is where release 2.4 stands.\n\n"
    "Tickets: 14 of 14 blocking tickets are closed; two cosmetic ones move to 2.5.\n"
    "Tests: 1,204 passed, none failed, and the two flaky ones passed three times in a row.\n"
    "Size: the package grew by 0.4 %, from the new time-zone table.\n\n"
    "Nothing speaks against publishing. Publishing cannot be undone, so I ask first. "
)
_PUBLISHED = "Release 2.4 is published. The announcement is drafted and waits in the outbox. "
_NOT_PUBLISHED = "I have not published release 2.4. The summary above stays in the record for whoever decides. "


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the script talks, in seconds."""

    word_s: float = 0.045
    tool_s: float = 0.8


def demo_agent(pace: Pace | None = None) -> Agent[None, str | DeferredToolRequests]:
    """A fresh demo agent."""
    speed = pace or Pace()
    agent = Agent(
        FunctionModel(stream_function=_Script(speed)), output_type=[str, DeferredToolRequests], name="release-assistant"
    )

    @agent.tool_plain
    async def list_tickets(milestone: str) -> dict[str, object]:
        """Tickets of a milestone."""
        await asyncio.sleep(speed.tool_s)
        return {"milestone": milestone, "blocking_open": 0, "blocking_closed": 14, "moved": ["UI-881", "UI-902"]}

    @agent.tool_plain
    async def read_test_report(branch: str) -> dict[str, object]:
        """The last test report of a branch."""
        await asyncio.sleep(speed.tool_s)
        return {"branch": branch, "passed": 1204, "failed": 0, "flaky": 2, "duration_s": 418.2}

    @agent.tool_plain(requires_approval=True)
    async def publish_release(version: str, channel: str) -> str:
        """Publish; cannot be undone."""
        await asyncio.sleep(speed.tool_s)
        return f"published {version} to {channel}"

    return agent


class _Script:
    """What the model says: decided by which results it has been given so far."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace

    async def __call__(
        self, messages: list[ModelMessage], _info: AgentInfo
    ) -> AsyncIterator[str | dict[int, DeltaToolCall] | dict[int, DeltaThinkingPart]]:
        results = _results(messages)
        if "publish_release" in results:
            text = _PUBLISHED if "published 2.4" in results["publish_release"] else _NOT_PUBLISHED
            async for word in self._say(text):
                yield word
        elif "read_test_report" in results:
            async for word in self._say(_SUMMARY):
                yield word
            yield {
                1: DeltaToolCall(
                    name="publish_release",
                    json_args='{"version":"2.4","channel":"stable"}',
                    tool_call_id="call_publish",
                )
            }
        else:
            async for word in self._say(_THOUGHT):
                yield {0: DeltaThinkingPart(content=word)}
            async for word in self._say(_PLAN):
                yield word
            yield {2: DeltaToolCall(name="list_tickets", json_args='{"milestone":"2.4"}', tool_call_id="call_tickets")}
            yield {
                3: DeltaToolCall(
                    name="read_test_report", json_args='{"branch":"release/2.4"}', tool_call_id="call_report"
                )
            }

    async def _say(self, text: str) -> AsyncIterator[str]:
        for word in text.split(" "):
            if word:
                yield word + " "
                await asyncio.sleep(self._pace.word_s)


def _results(messages: list[ModelMessage]) -> dict[str, str]:
    """Tool name → what it returned (or what was said instead)."""
    found: dict[str, str] = {}
    for message in messages:
        for part in message.parts:
            if part.part_kind in {"tool-return", "retry-prompt"} and part.tool_name:
                found[part.tool_name] = str(part.content)
    return found
