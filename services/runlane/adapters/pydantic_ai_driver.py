"""Runs a Pydantic AI agent in this process as one run; deferred approvals become approvals of the run.

A tool marked `requires_approval` ends the agent's run with deferred requests. The driver asks, waits in the log
for the decisions, and runs the agent again with them; an edited approval runs with the edited arguments.
"""

import asyncio
from typing import Any

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ToolApproved, ToolDenied
from pydantic_core import to_jsonable_python

from runlane.adapters.mapping import ModelSaid, foreign_id
from runlane.adapters.pydantic_ai import PydanticAIMapping, approval_id
from runlane.adapters.scribe import Scribe
from runlane_contracts import events
from runlane_contracts.lifecycle import draft


async def run_agent(agent: Agent[None, Any], prompt: str, scribe: Scribe) -> None:
    """Run `agent` on `prompt` until the run has its terminal fact.

    An exception in the agent becomes `run.failed`; a cancellation stops it and becomes `run.cancelled`.
    """
    await scribe.say([draft(events.MessageCompleted(message_id="msg_prompt", role="user", content=prompt))])
    mapping = PydanticAIMapping(_model_of(agent))
    running = asyncio.ensure_future(_steps(agent, prompt, mapping, scribe))
    cancelling = asyncio.ensure_future(scribe.cancel_requested.wait())
    try:
        await asyncio.wait({running, cancelling}, return_when=asyncio.FIRST_COMPLETED)
        await _conclude(running, mapping, scribe)
    finally:
        running.cancel()
        cancelling.cancel()
        await asyncio.gather(running, cancelling, return_exceptions=True)


def _model_of(agent: Agent[None, Any]) -> ModelSaid:
    """Whom the agent asks: a model, the name of one (`openai:gpt-5`), or nobody yet."""
    model = agent.model
    if isinstance(model, str):
        provider, _, name = model.rpartition(":")
        return ModelSaid.of(name, provider)
    return ModelSaid() if model is None else ModelSaid.of(model.model_name, model.system)


async def _conclude(running: "asyncio.Future[None]", mapping: PydanticAIMapping, scribe: Scribe) -> None:
    if not running.done():
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await scribe.say([draft(events.RunCancelled(reason="cancelled on request"))])
        return
    fault = running.exception()
    if fault is None:
        await scribe.say(mapping.finish())
        return
    problem = events.Problem(code="agent_error", message=f"{type(fault).__name__}: {fault}")
    await scribe.say([draft(events.RunFailed(error=problem))])


async def _steps(agent: Agent[None, Any], prompt: str, mapping: PydanticAIMapping, scribe: Scribe) -> None:
    said: str | None = prompt
    history: Any = None
    decisions: DeferredToolResults | None = None
    while True:
        result = None
        async with agent.run_stream_events(said, message_history=history, deferred_tool_results=decisions) as stream:
            async for event in stream:
                result = getattr(event, "result", result) if event.event_kind == "agent_run_result" else result
                plain = to_jsonable_python(event, serialize_unknown=True)
                await scribe.say(mapping.feed(plain))
        if result is None or not isinstance(result.output, DeferredToolRequests):
            return
        decisions = await _decided(result.output, scribe)
        said, history = None, result.all_messages()


async def _decided(requests: DeferredToolRequests, scribe: Scribe) -> DeferredToolResults:
    results = DeferredToolResults()
    for call in requests.approvals:
        resolved = await scribe.decision(approval_id(foreign_id(call.tool_call_id)))
        match resolved.decision:
            case "approved":
                results.approvals[call.tool_call_id] = ToolApproved()
            case "modified":
                results.approvals[call.tool_call_id] = ToolApproved(override_args=resolved.data)
            case other:
                reason = f": {resolved.reason}" if resolved.reason else ""
                results.approvals[call.tool_call_id] = ToolDenied(f"{other} by {resolved.decided_by}{reason}")
    await scribe.say([draft(events.RunResumed())])
    return results
