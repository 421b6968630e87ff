"""Drive one run: hold its lease, state facts, show previews.

    writer = await RunWriter.start(transport, agent="basket", input={"text": "What is in it?"})
    async with writer as run:
        async with run.message() as answer:
            answer.preview("An apple ")
            answer.complete("An apple and a pear.")
        await run.complete({"text": "An apple and a pear."})

Two lanes, two verbs: what `append` returned is durable; what `publish_preview` took may vanish.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
from msgspec import Raw

from runlane.client.active_span import active_traceparent
from runlane.client.backoff import Backoff, BackoffPolicy
from runlane.client.commit_queue import CommitQueue
from runlane.client.errors import ContractViolation, LeaseLost, ProblemBody, RequestRefused, Unreachable
from runlane.client.items import MessageInProgress, ReasoningInProgress, ToolInProgress
from runlane.client.lease_keeper import LeaseKeeper
from runlane.client.preview_outbox import PreviewOutbox
from runlane.client.redact import Redactor, TextStream, TokenRedactor, masked_payload
from runlane.client.transports.ports import ContentTransport, NewRun, StartedRun, WriterTransport, Written
from runlane.kernel.clock import NewId, Now, new_id, utc_now
from runlane_contracts import events, lifecycle
from runlane_contracts.codec import decode_json, encode, timestamp
from runlane_contracts.events import ContentRef, Limits, Payload, Problem
from runlane_contracts.lifecycle import FactDraft
from runlane_contracts.previews import Operation, Preview, PreviewSubject

T = TypeVar("T")

FactLike = Payload | FactDraft | tuple[str, dict[str, Any]]
"""A typed payload, a draft with its envelope, or a type and its payload."""

DEFAULT_TTL_S = 30.0
RETRY = BackoffPolicy(initial_s=0.05, max_s=2.0, budget_s=60.0)
MAX_OPEN_PREVIEWS = 1024
CLOSE_WITHIN_S = 10.0

_LOST_CODES = frozenset({"lease_fenced", "run_terminal", "run_not_found"})


class RunWriter:
    """The one who may write to a run, while it holds the lease.

    Promises:

    - `append` returns when its facts are durable, each exactly once, in the order of the calls; nothing of one
      call is visible without the rest of it.
    - Once the lease is lost, or could not be confirmed in time, `lease_ok` is false, `lease_lost` is set and every
      append and preview raises `LeaseLost` before anything leaves the process.
    - `publish_preview` never waits and never fails for want of a connection; what it loses is counted.
    - Secrets of a recognizable form are masked before they leave, unless `redactor=None`; but for what the log hands
      back to code: the run's input, a call's arguments, a checkpoint. Readers see those masked by the platform.

    Leaving the context writes what is queued, then releases the lease unless the run is over. It does not end the
    run: say `complete`, `fail` or `cancelled`.
    """

    def __init__(  # noqa: PLR0913 - the options of a public constructor, by keyword
        self,
        transport: WriterTransport,
        run_id: str,
        *,
        worker_id: str | None = None,
        ttl_s: float = DEFAULT_TTL_S,
        lease_epoch: int | None = None,
        state_started: bool = False,
        redactor: Redactor | type[TokenRedactor] | None = TokenRedactor,
        retry: BackoffPolicy = RETRY,
        new_id: NewId = new_id,
        now: Now = utc_now,
    ) -> None:
        self.run_id = run_id
        self.worker_id = worker_id or new_id("wrk")
        self.lease_epoch = lease_epoch or 0
        self.sequence = 0
        self.started: StartedRun | None = None
        self._transport = transport
        self._ttl_s = ttl_s
        self._has_lease = lease_epoch is not None
        self._state_started = state_started
        self._redactor = redactor() if isinstance(redactor, type) else redactor
        self._retry = retry
        self._new_id = new_id
        self._now = now
        self._clock = asyncio.get_running_loop().time
        self._lease = LeaseKeeper(ttl_s=ttl_s, clock=self._clock)
        if self._has_lease:
            self._lease.confirmed(self._clock())
        self._queue = CommitQueue(self._commit)
        self._outbox = PreviewOutbox(self._send_previews)
        self._preview_seqs: OrderedDict[str, int] = OrderedDict()
        self._preview_texts: dict[str, TextStream] = {}
        self._over = False
        self._tasks: asyncio.TaskGroup | None = None
        self._running: list[asyncio.Task[None]] = []

    # -- beginning ----------------------------------------------------------------------------------------

    @classmethod
    async def start(  # noqa: PLR0913 - the fields of a run, by keyword
        cls,
        transport: WriterTransport,
        *,
        agent: str,
        input: Any = None,  # noqa: A002 - the protocol's word
        run_id: str | None = None,
        session_id: str | None = None,
        dispatch: str = "external",
        pool: str = "default",
        limits: Limits | None = None,
        deadline_at: str | None = None,
        parent_run_id: str | None = None,
        **writer: Any,
    ) -> Self:
        """Start a run and get a writer for it; entering the writer takes the lease and states `run.started`.

        The same `run_id` starts the run once, also when the first answer was lost. `dispatch="external"` means
        that no worker of a pool is asked: this process is the producer.
        """
        make_id: NewId = writer.get("new_id", new_id)
        run_id = run_id or make_id("run")
        new = NewRun(
            agent=agent, run_id=run_id, idempotency_key=f"start-{run_id}", input=input, session_id=session_id,
            dispatch=dispatch, pool=pool, limits=limits, deadline_at=deadline_at, parent_run_id=parent_run_id,
        )  # fmt: skip
        one = cls(transport, run_id, state_started=True, **writer)
        one.started = await one._persist(lambda: _durably(transport.start_run(new)))
        one.sequence = one.started.sequence or 0
        return one

    @classmethod
    def attach(cls, transport: WriterTransport, run_id: str, **writer: Any) -> Self:
        """A writer for a run that exists; entering it takes the lease, unless `lease_epoch` says it is taken."""
        return cls(transport, run_id, **writer)

    async def __aenter__(self) -> Self:
        if not self._has_lease:
            await self._take_lease()
        elif self._lease.ok:
            # The answer that gave the lease may have been long on its way; ask when this one holds.
            asked_at_s = self._clock()
            await self._persist(self._confirm_once)
            self._lease.confirmed(asked_at_s)
        self._tasks = await asyncio.TaskGroup().__aenter__()
        self._running = [
            self._tasks.create_task(self._lease.keep(self._confirm), name=f"lease of {self.run_id}"),
            self._tasks.create_task(self._queue.run(), name=f"commits of {self.run_id}"),
            self._tasks.create_task(self._outbox.run(), name=f"previews of {self.run_id}"),
            self._tasks.create_task(self._refuse_when_lost(), name=f"fence of {self.run_id}"),
        ]
        if self._state_started:
            await self.append(events.RunStarted())
        return self

    async def _take_lease(self) -> None:
        answer_was_lost = False

        async def take() -> None:
            nonlocal answer_was_lost
            asked_at_s = self._clock()
            try:
                lease = await self._transport.take_lease(self.run_id, worker_id=self.worker_id, ttl_s=self._ttl_s)
            except Unreachable as exc:
                answer_was_lost = answer_was_lost or exc.sent
                raise
            except RequestRefused as refused:
                if refused.code == "lease_held" and answer_was_lost:
                    # It may be our own: a name proves nothing, so it has to run out first.
                    raise Unreachable("an earlier request may have taken the lease") from refused
                raise
            self.lease_epoch, self._has_lease = lease.lease_epoch, True
            self._lease.confirmed(asked_at_s)

        await self._persist(take)

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._lease.ok and not isinstance(exc, asyncio.CancelledError):
                with suppress(TimeoutError):
                    async with asyncio.timeout(CLOSE_WITHIN_S):
                        await self._outbox.flush()
                        await self._queue.idle()
        finally:
            await self._stop_tasks()
            if not self._over and self._lease.ok:
                await self._release()

    async def _stop_tasks(self) -> None:
        await self._queue.close(LeaseLost("the writer was closed"))
        self._outbox.clear()
        for task in self._running:
            task.cancel()
        if self._tasks is not None:
            # The body's exception is not the group's business: it must reach the caller as it is.
            await self._tasks.__aexit__(None, None, None)
            self._tasks = None

    async def _release(self) -> None:
        self._lease.lose("the lease was released")
        with suppress(Unreachable, RequestRefused, TimeoutError):  # it then runs out by itself
            async with asyncio.timeout(CLOSE_WITHIN_S):
                await self._transport.release_lease(self.run_id, worker_id=self.worker_id, lease_epoch=self.lease_epoch)

    # -- the lease ----------------------------------------------------------------------------------------

    @property
    def lease_ok(self) -> bool:
        """Whether side effects are allowed now. Ask before each one that cannot be undone."""
        return self._has_lease and self._lease.ok

    @property
    def lease_lost(self) -> asyncio.Event:
        """Set when the lease is lost."""
        return self._lease.lost

    @property
    def is_over(self) -> bool:
        """Whether a terminal fact was written by this writer."""
        return self._over

    async def _confirm_once(self) -> object:
        self._lease.require()
        try:
            return await self._confirm()
        except RequestRefused as refused:
            if refused.code in _LOST_CODES:
                self._lease.lose(str(refused))
                raise LeaseLost(str(refused)) from refused
            raise

    def abandon(self, reason: str) -> None:
        """Behave from now on as if the lease were lost: nothing more leaves this process."""
        self._lease.lose(reason)

    async def _confirm(self) -> object:
        return await self._transport.confirm_lease(self.run_id, worker_id=self.worker_id, lease_epoch=self.lease_epoch)

    async def _refuse_when_lost(self) -> None:
        await self._lease.lost.wait()
        await self._queue.close(LeaseLost(self._lease.reason))
        self._outbox.clear()

    # -- facts --------------------------------------------------------------------------------------------

    async def append(self, *facts: FactLike, expected_sequence: int | None = None) -> list[Written]:
        """Write all of `facts` or none; durable when this returns.

        A lost answer is settled by sending the same event ids again. With `expected_sequence` the facts are
        written only if the run is still there.

        Raises:
            LeaseLost: this process may not write any more.
            RequestRefused: the facts do not fit the contract or the run's state (`problem.index` says which).
            Unreachable: no answer within the retry budget; whether they were written is not known.
        """
        self._require_lease()
        drafts = tuple(self._draft(one) for one in facts)
        try:
            lifecycle.validate(drafts)
        except lifecycle.Refused as refused:
            raise RequestRefused(
                ProblemBody(code=refused.code.value, detail=refused.detail, status=400, index=refused.index)
            ) from refused
        written = await self._queue.put(drafts, expected_sequence)
        if drafts[-1].type in events.TERMINAL_RUN:
            self._over = True
        for one in drafts:
            self._forget_preview(one)
        return written

    def masked(self, value: Any) -> Any:
        """A JSON value as it would stand in the log."""
        raw = encode(value)
        return decode_json(raw if self._redactor is None else self._redactor.json(raw))

    def _draft(self, one: FactLike) -> FactDraft:
        draft = draft_of(one)
        payload = draft.payload
        if self._redactor is not None:
            payload = Raw(masked_payload(self._redactor, draft.type, bytes(payload)))
        return msgspec.structs.replace(
            draft,
            payload=payload,
            event_id=draft.event_id or self._new_id("evt"),
            occurred_at=draft.occurred_at or timestamp(self._now()),
            traceparent=draft.traceparent or active_traceparent(),
        )

    def _require_lease(self) -> None:
        if not self._has_lease or self._tasks is None:
            raise LeaseLost("the writer is not entered: use `async with`")
        self._lease.require()

    async def _commit(self, drafts: Sequence[FactDraft], expected_sequence: int | None) -> list[Written]:
        written = await self._persist(lambda: self._append_once(drafts, expected_sequence))
        self.sequence = max(self.sequence, *(one.sequence for one in written)) if written else self.sequence
        return written

    async def _append_once(self, drafts: Sequence[FactDraft], expected_sequence: int | None) -> list[Written]:
        self._lease.require()
        try:
            return await self._transport.append(
                self.run_id, drafts, lease_epoch=self.lease_epoch, expected_sequence=expected_sequence
            )
        except RequestRefused as refused:
            if refused.code == "lease_fenced":
                self._lease.lose(str(refused))
                raise LeaseLost(str(refused)) from refused
            raise

    # -- content ------------------------------------------------------------------------------------------

    @property
    def keeps_content(self) -> bool:
        """Whether content too large for a fact can be kept over this transport."""
        return isinstance(self._transport, ContentTransport)

    async def put_content(
        self, data: bytes, media_type: str = "application/octet-stream", *, restricted: bool = False
    ) -> ContentRef:
        """Keep content that is too large for a fact, and what the fact states as its `content_ref`.

        What people may see of it is decided when it is kept: all, a copy without the secrets, or nothing; nothing if it
        is `restricted`.

        Raises:
            RequestRefused: `payload_too_large`, `run_terminal`; `invalid_request` over a transport that keeps none.
            Unreachable: nobody answered for as long as the retry policy allows.
        """
        kept = self._content()
        return await self._persist(
            lambda: kept.put_content(
                data, media_type=media_type, run_id=self.run_id, classification="restricted" if restricted else None
            )
        )

    async def get_content(self, ref: ContentRef) -> bytes:
        """Content of this run as it came. Raises as `put_content`, `not_found`; ContractViolation: it was changed."""
        kept = self._content()
        data = await self._persist(lambda: kept.get_content(ref.uri, raw=True))
        if hashlib.sha256(data).hexdigest() != ref.sha256:
            raise ContractViolation("content is not what its fact says")
        return data

    def _content(self) -> ContentTransport:
        if not isinstance(self._transport, ContentTransport):
            raise RequestRefused(
                ProblemBody(code="invalid_request", detail="this transport keeps no content", status=400)
            )
        return self._transport

    async def _persist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Try again what may be tried again, within the budget."""
        backoff = Backoff(self._retry)
        while True:
            after_s: float | None = None
            try:
                return await call()
            except RequestRefused as refused:
                if not refused.retryable or refused.code == "lease_held":
                    raise
                lost: RequestRefused | Unreachable = refused
                after_s = refused.retry_after_s
            except Unreachable as exc:
                lost = exc
            delay_s = backoff.next_delay_s(now_s=self._clock(), at_least_s=after_s)
            if delay_s is None:
                raise lost
            await asyncio.sleep(delay_s)

    # -- previews -----------------------------------------------------------------------------------------

    def publish_preview(
        self,
        kind: str,
        id: str,  # noqa: A002 - the protocol's word
        data: Any = None,
        *,
        preview_id: str,
        operation: Operation = "append",
        abandoned: bool = False,
    ) -> None:
        """Show a fragment of the item (`kind`, `id`). It may vanish; nobody waits.

        Appended text is held back while its end may be an unfinished secret.

        Raises:
            LeaseLost: this process may not show anything any more.
        """
        self._require_lease()
        if self._redactor is not None and not abandoned:
            data = self._masked_preview(preview_id, operation, data)
        if operation == "append" and data == "" and not abandoned:
            return
        self._preview_seqs[preview_id] = preview_seq = self._preview_seqs.get(preview_id, 0) + 1
        while len(self._preview_seqs) > MAX_OPEN_PREVIEWS:
            oldest, _ = self._preview_seqs.popitem(last=False)
            self._preview_texts.pop(oldest, None)
        self._outbox.offer(
            Preview(
                preview_id=preview_id,
                subject=PreviewSubject(kind=kind, id=id),
                preview_seq=preview_seq,
                operation=operation,
                data=data,
                lease_epoch=self.lease_epoch,
                fate="abandoned" if abandoned else None,
            )
        )

    @property
    def dropped_previews(self) -> int:
        """Fragments that did not leave this process."""
        return self._outbox.dropped

    def _masked_preview(self, preview_id: str, operation: Operation, data: Any) -> Any:
        assert self._redactor is not None  # noqa: S101 - the caller asked
        if operation == "append" and isinstance(data, str):
            text = self._preview_texts.get(preview_id)
            if text is None:
                text = self._preview_texts[preview_id] = self._redactor.stream()
            return text.push(data)
        if data is None:
            return None
        return decode_json(self._redactor.json(encode(data)))

    async def _send_previews(self, previews: Sequence[Preview]) -> None:
        if not self._lease.ok:
            return
        try:
            await self._transport.publish_previews(self.run_id, previews, lease_epoch=self.lease_epoch)
        except RequestRefused as refused:
            if refused.code == "lease_fenced":
                self._lease.lose(str(refused))
            raise

    def _forget_preview(self, draft: FactDraft) -> None:
        if b'"preview_id"' in bytes(draft.payload):
            preview_id = decode_json(draft.payload).get("preview_id")
            self._preview_seqs.pop(preview_id, None)
            self._preview_texts.pop(preview_id, None)

    # -- what agents do -----------------------------------------------------------------------------------

    def message(
        self,
        role: str = "assistant",
        *,
        message_id: str | None = None,
        model: str | None = None,
        provider: str | None = None,
    ) -> MessageInProgress:
        """A message that grows: previews while it does, one fact at its end. Use with `async with`.

        `model` and `provider`: of whom it is, for traces (`gpt-5`, `openai`).
        """
        ids = message_id or self._new_id("msg"), self._new_id("pvw")
        return MessageInProgress(self, *ids, role, model=model, provider=provider)

    def reasoning(self, *, reasoning_id: str | None = None) -> ReasoningInProgress:
        """Reasoning that grows, like `message`."""
        return ReasoningInProgress(self, reasoning_id or self._new_id("rsn"), self._new_id("pvw"))

    def tool(
        self,
        name: str,
        arguments: Any,
        *,
        tool_call_id: str | None = None,
        side_effect: events.SideEffect = "none",
        operation_id: str | None = None,
        attempt: int = 1,
        retry_of: str | None = None,
    ) -> ToolInProgress:
        """A tool call: requested and running on entering, completed or failed on leaving. Use with `async with`."""
        request = events.ToolRequested(
            tool_call_id=tool_call_id or self._new_id("call"), name=name, arguments=arguments, attempt=attempt,
            retry_of=retry_of, side_effect=side_effect, operation_id=operation_id,
        )  # fmt: skip
        return ToolInProgress(self, request, self._new_id("pvw"))

    def requested_tool(self, request: events.ToolRequested) -> ToolInProgress:
        """A tool call that stands in the log as requested: running on entering, then as `tool`."""
        return ToolInProgress(self, request, self._new_id("pvw"), known={"status": "requested"})

    async def complete(self, output: Any = None, *, usage: dict[str, Any] | None = None) -> None:
        """End the run well. Items that are still open are closed in the same commit."""
        await self.append(events.RunCompleted(output=output, usage=usage))

    async def fail(self, code: str, message: str = "", *, retryable: bool = False) -> None:
        """End the run as failed."""
        await self.append(events.RunFailed(error=Problem(code=code, message=message, retryable=retryable)))

    async def cancelled(self, reason: str | None = None) -> None:
        """End the run as cancelled, at a safe point after `run.cancel_requested`."""
        await self.append(events.RunCancelled(reason=reason))


def draft_of(one: FactLike) -> FactDraft:
    """What a producer states, with room for its envelope."""
    if isinstance(one, FactDraft):
        return one
    if isinstance(one, Payload):
        return FactDraft(type=one.TYPE, payload=Raw(encode(one)))
    return FactDraft(type=one[0], payload=Raw(encode(one[1])))


async def _durably(starting: Awaitable[StartedRun]) -> StartedRun:
    started = await starting
    if started.sequence is None:
        raise Unreachable(f"run {started.run_id} is accepted, and not durable yet")
    return started
