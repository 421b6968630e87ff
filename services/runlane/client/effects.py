"""Tool calls with an effect: the intent is durable before it, the outcome after it, and a crash in between is survived.

What an agent does to the world goes through `RunContext.call`. The log then says of each call whether it was meant,
whether it ran, and what came of it; a new owner of the run goes by that, and by the call's `side_effect`:

    none, idempotent   runs again, under the same operation id
    unsafe             runs at most once: its outcome is unknown until the worker's `reconcile` or a person says
                       what really happened
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from runlane.client.errors import LeaseLost, RequestRefused, RunCancelled, ToolCallFailed
from runlane.client.items import ItemWriter, ToolInProgress
from runlane.client.journal import Item, Journal
from runlane.kernel.clock import NewId
from runlane_contracts import events
from runlane_contracts.canonical import action_digest
from runlane_contracts.codec import decode_json, encode
from runlane_contracts.commands import derived_id
from runlane_contracts.events import Problem
from runlane_contracts.lifecycle import MAX_INLINE_BYTES

if TYPE_CHECKING:
    from runlane.client.context import RunContext

Effect = Callable[[ToolInProgress], Awaitable[Any]]
"""Does it. Is given the call: its `arguments`, its `operation_id`, and `preview` to show how far it is."""


@dataclass(frozen=True, slots=True)
class Executed:
    """It took effect, and gave this."""

    result: Any = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class NotExecuted:
    """It did not take effect, and never will: it may run again."""

    note: str | None = None


@dataclass(frozen=True, slots=True)
class UnknownCall:
    """A call of which nobody knows whether it took effect. `operation_id` is what the effect was given."""

    tool_call_id: str
    operation_id: str
    name: str
    arguments: Any


LARGE_RESULT_TYPE = "application/vnd.runlane.result+json"
"""The media type of a result that was too large to stand in its fact."""

Reconcile = Callable[["RunContext", UnknownCall], Awaitable[Executed | NotExecuted | None]]
"""Finds out what became of a call. None: it cannot be told from here, a person has to say."""


@dataclass(frozen=True, slots=True)
class _Ran:
    result: Any


_log = logging.getLogger(__name__)


class Calls:
    """Runs the tool calls of one agent, each by what the log says of it."""

    def __init__(
        self, context: "RunContext", journal: Journal, writer: ItemWriter, reconcile: Reconcile | None, new_id: NewId
    ) -> None:
        self._context = context
        self._journal = journal
        self._writer = writer
        self._reconcile = reconcile
        self._new_id = new_id
        self._repeats: set[str] = set()

    def repeats(self, tool_call_id: str) -> bool:
        """Whether a call is the repetition of one that is being answered here."""
        return tool_call_id in self._repeats

    async def answer(self, request: events.ToolRequested, effect: Effect) -> Any:
        """What came of a call. Runs it if the log does not say, and it may run; waits if it may not.

        Raises:
            ToolCallFailed: it failed, now or in an earlier attempt.
        """
        while True:
            known = self._journal.item("tool", request.tool_call_id)
            match _standing(known, request):
                case "completed":
                    self._journal.answered(known or {})
                    return await self._result_of(known or {})
                case "failed":
                    self._journal.answered(known or {})
                    raise _failure_of(known or {})
                case "unknown":
                    await self._find_out(request)
                case "to repeat":
                    request = await self._repeat(request)
                case _:
                    ran = await self._run(request, effect, known)
                    if ran is not None:
                        return ran.result

    async def _run(self, request: events.ToolRequested, effect: Effect, known: Item | None) -> _Ran | None:
        """Intent, effect, outcome. None: whether it took effect cannot be told."""
        if known is not None:
            self._journal.answered(known)
        call = ToolInProgress(self._writer, request, self._new_id("pvw"), known=known)
        async with call:
            self._context.check(may_clean_up=True)  # the intent took its time to become durable
            try:
                result = await effect(call)
            except (LeaseLost, RunCancelled):
                raise
            except Exception as exc:
                problem = _problem_of(exc)
                if await call.failed_by(problem, exc):
                    raise ToolCallFailed(problem.code, problem.message, retryable=problem.retryable) from exc
            else:
                return _Ran(await self._finish(call, result))
        await self._context.until(lambda: self._status(request) == "outcome_unknown")
        return None

    async def _finish(self, call: ToolInProgress, result: Any) -> Any:
        try:
            body = b"" if result is None else encode(result)
            if len(body) > MAX_INLINE_BYTES and self._context.writer.keeps_content:
                call.complete(content_ref=await self._context.writer.put_content(body, LARGE_RESULT_TYPE))
                await call.finish()
                return decode_json(body)
            if result is not None:
                call.complete(decode_json(body))
            await call.finish()
        except (TypeError, ValueError, msgspec.MsgspecError, RequestRefused) as exc:
            if isinstance(exc, RequestRefused) and exc.code not in {"invalid_request", "payload_too_large"}:
                raise
            message = f"it ran, and its result cannot be kept: {exc}"
            await call.failed("result_unfit", message)
            raise ToolCallFailed("result_unfit", message) from exc
        return call.result

    async def _result_of(self, item: Item) -> Any:
        """What the call gave; a large result is fetched from where it lies, what an agent put there itself is not."""
        if item.get("content_ref") is None:
            return item.get("result")
        ref = msgspec.convert(item["content_ref"], events.ContentRef)
        if ref.media_type != LARGE_RESULT_TYPE:
            return ref
        try:
            return decode_json(await self._context.writer.get_content(ref))
        except RequestRefused as exc:
            raise ToolCallFailed("result_gone", f"its result cannot be had any more: {exc}") from exc

    async def _find_out(self, request: events.ToolRequested) -> None:
        """Until it is known whether the call took effect: the worker can tell, or a person will."""
        if self._status(request) == "running":
            await self._writer.append(_unknown(request))
            await self._context.until(lambda: self._status(request) == "outcome_unknown")
        verdict = await self._ask_worker(request)
        if verdict is not None:
            await self._context.append_at_head(
                self._reconciled(request, verdict), unless=lambda: self._status(request) != "outcome_unknown"
            )
        async with self._context.waiting_for(request.tool_call_id, is_over=verdict is not None):
            await self._context.until(lambda: self._status(request) != "outcome_unknown")

    async def _ask_worker(self, request: events.ToolRequested) -> Executed | NotExecuted | None:
        if self._reconcile is None:
            return None
        unknown = UnknownCall(
            request.tool_call_id, request.operation_id or request.tool_call_id, request.name, request.arguments
        )
        try:
            return await self._reconcile(self._context, unknown)
        except (LeaseLost, RunCancelled):
            raise
        except Exception as exc:  # noqa: BLE001 - then a person has to say; the run is not to fail for it
            _log.warning("nobody could tell what became of %s: %s", request.tool_call_id, type(exc).__name__)
            _log.debug("its traceback", exc_info=exc)
            return None

    def _reconciled(self, request: events.ToolRequested, verdict: Executed | NotExecuted) -> events.ToolReconciled:
        by, id_ = self._context.writer.worker_id, request.tool_call_id
        if isinstance(verdict, NotExecuted):
            return events.ToolReconciled(tool_call_id=id_, outcome="not_executed", by=by, note=verdict.note)
        result = _as_json(verdict.result)
        return events.ToolReconciled(tool_call_id=id_, outcome="executed", by=by, note=verdict.note, result=result)

    async def _repeat(self, request: events.ToolRequested) -> events.ToolRequested:
        """The call that takes the place of one that was not executed: a person's, or one of our own."""
        while (again := self._repetition_of(request)) is None:
            wanted = msgspec.structs.replace(
                request,
                tool_call_id=derived_id("call", request.tool_call_id, "again"),
                attempt=request.attempt + 1,
                retry_of=request.tool_call_id,
                operation_id=request.operation_id or request.tool_call_id,
                action_digest=request.action_digest or action_digest(request.name, request.arguments),
            )
            await self._context.append_at_head(wanted, unless=lambda: self._repetition_of(request) is not None)
            await self._context.until(lambda: self._repetition_of(request) is not None)
        self._repeats.add(again["id"])
        return msgspec.structs.replace(
            request, tool_call_id=again["id"], attempt=again.get("attempt", 1), retry_of=request.tool_call_id
        )

    def _repetition_of(self, request: events.ToolRequested) -> Item | None:
        return next((one for one in self._journal.calls() if one.get("retry_of") == request.tool_call_id), None)

    def _status(self, request: events.ToolRequested) -> str | None:
        item = self._journal.item("tool", request.tool_call_id)
        return None if item is None else str(item["status"])


def _standing(known: Item | None, request: events.ToolRequested) -> str:
    """What the log says of a call, as far as it decides what to do now."""
    if known is None:
        return "new"
    match known["status"]:
        case "completed":
            return "completed"
        case "failed" if known.get("outcome") == "not_executed":
            return "to repeat"
        case "failed" | "cancelled":
            return "failed"
        case "outcome_unknown":
            return "unknown"
        case "running" if request.side_effect == "unsafe":
            return "unknown"
        case _:
            return "begun"


def _unknown(request: events.ToolRequested) -> events.ToolOutcomeUnknown:
    return events.ToolOutcomeUnknown(
        tool_call_id=request.tool_call_id, operation_id=request.operation_id or request.tool_call_id
    )


def _failure_of(item: Item) -> ToolCallFailed:
    error = item.get("error") or {"code": item["status"]}
    return ToolCallFailed(str(error["code"]), str(error.get("message", "")), retryable=bool(error.get("retryable")))


def _problem_of(exc: Exception) -> Problem:
    code = getattr(exc, "code", None)
    return Problem(
        code=code if isinstance(code, str) and code else type(exc).__name__,
        message=(exc.message if isinstance(exc, ToolCallFailed) else str(exc))[:2000],
        retryable=getattr(exc, "retryable", False) is True,
    )


def _as_json(value: Any) -> Any:
    """What the log would give back: the answer is the same whether the call ran now or in an earlier attempt."""
    return decode_json(encode(value))
