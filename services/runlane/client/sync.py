"""The SDK for code without asyncio: the same names, the same promises, and calls that wait.

    from runlane.client.sync import HttpTransport, RunReader

    with HttpTransport(url, token) as transport, RunReader(transport, "run_1") as reader:
        for item in reader:
            print(item)

Agents, effects and `reconcile` are plain functions here; each runs in a thread of its own. Made from the async classes
by `poe sync-client`, and not to be edited.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self

import httpx

from runlane.client import (
    client as _client,
    commands as _commands,
    context as _context,
    items as _items,
    reader as _reader,
    worker as _worker,
    writer as _writer,
)
from runlane.client.backoff import BackoffPolicy
from runlane.client.blocking import (
    Blocking,
    BlockingContext,
    BlockingIterator,
    each,
    in_thread,
    on_loop,
    plain,
    wait_for,
)
from runlane.client.checkpoint_stores import CheckpointStore
from runlane.client.client import SAVE_EVERY_S, OnRunConnection
from runlane.client.commands import DEFAULT_WAIT_S, ActionOutcome, Intent
from runlane.client.cursor_store import CursorStore
from runlane.client.effects import Executed, NotExecuted, UnknownCall
from runlane.client.reader import Connection, OnConnection, ReadOutcome
from runlane.client.redact import Redactor, TokenRedactor
from runlane.client.run_tail import SentMessage
from runlane.client.state import RunState
from runlane.client.transports import http as _http
from runlane.client.transports.http import DEFAULT_TIMEOUT_S, Token
from runlane.client.transports.ports import Item, SharedWork, StartedRun, Written
from runlane.client.worker import CLAIM_WAIT_S
from runlane.client.writer import DEFAULT_TTL_S, RETRY, FactLike
from runlane.kernel.clock import NewId, Now, new_id, utc_now
from runlane_contracts import events
from runlane_contracts.events import ContentRef, Limits
from runlane_contracts.previews import Operation
from runlane_contracts.resume import From

Agent = Callable[["RunContext"], Any]
"""Does the work of one run. What it returns is the run's output."""

Effect = Callable[["ToolInProgress"], Any]
"""Does it. Is given the call: its `arguments`, its `operation_id`, and `preview` to show how far it is."""

Reconcile = Callable[["RunContext", UnknownCall], Executed | NotExecuted | None]
"""Finds out what became of a call. None: it cannot be told from here, a person has to say."""


class HttpTransport(BlockingContext[_http.HttpTransport]):
    """One connection pool to one Runlane. Closes the `client` only if it made it."""

    def __init__(
        self,
        url: str,
        token: Token = "",
        *,
        client: httpx.AsyncClient | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self.of = on_loop(lambda: _http.HttpTransport(url, token, client=client, timeout_s=timeout_s))

    def aclose(self) -> None:
        """Close the connections."""
        return wait_for(self.of.aclose())

    def get_json(self, path: str, params: Mapping[str, Any] | None = None) -> Any:
        """One read of the HTTP API, as plain JSON; parameters that are None are left out."""
        return wait_for(self.of.get_json(path, params))

    def put_content(
        self, data: bytes, *, media_type: str, run_id: str | None = None, classification: str | None = None
    ) -> ContentRef:
        """Keep content that is too large for a fact; what a fact states as its `content_ref`."""
        return wait_for(self.of.put_content(data, media_type=media_type, run_id=run_id, classification=classification))

    def get_content(self, uri: str, *, raw: bool = False) -> bytes:
        """What people may see of some content; `raw`: as it came, which takes the right to produce."""
        return wait_for(self.of.get_content(uri, raw=raw))


class RunReader(BlockingIterator[_reader.RunReader, Item]):
    """An async iterator over one run's items.

    They are `Hello`, `SnapshotFrame`, `Fact`, `Preview`, `PreviewGap`, `Synced` and `End` of the contract.

    Promises: facts come gapless and without repeats; each connection says first how it continues; a lost
    connection is never taken for the end of the run, and is opened again with back-off within `backoff.budget_s`.

    Raises, out of the iteration:
        RequestRefused: the server refused for good (no such run, no right, a foreign cursor).
        Unreachable: the retry budget is used up.
        ContractViolation: the server broke the protocol again and again.
    """

    def __init__(
        self,
        transport: HttpTransport,
        run_id: str,
        *,
        cursor: str | None = None,
        store: CursorStore | None = None,
        from_: From | None = None,
        previews: bool = True,
        types: tuple[str, ...] = (),
        backoff: BackoffPolicy | None = None,
        on_connection: OnConnection | None = None,
    ) -> None:
        self.of = on_loop(
            lambda: _reader.RunReader(
                plain(transport),
                run_id,
                cursor=cursor,
                store=store,
                from_=from_,
                previews=previews,
                types=types,
                backoff=backoff,
                on_connection=on_connection,
            )
        )

    @property
    def cursor(self) -> str | None:
        """Continues after the last item that was *applied*."""
        return self.of.cursor

    @property
    def pending_cursor(self) -> str | None:
        """Continues after the item in hand; becomes `cursor` when the next one is asked for."""
        return self.of.pending_cursor

    @property
    def sequence(self) -> int | None:
        """`sequence` of the last fact or snapshot that was yielded."""
        return self.of.sequence

    def connect(self) -> ReadOutcome:
        """Open the first connection and say how it continues. The iteration then starts with its `Hello`."""
        return wait_for(self.of.connect())

    @property
    def outcome(self) -> ReadOutcome | None:
        """How the newest connection continues; None before the first."""
        return self.of.outcome

    def mark_applied(self) -> None:
        """Save the cursor of the item in hand now, not when the next one is asked for: before leaving the loop."""
        return wait_for(self.of.mark_applied())

    def aclose(self) -> None:
        """Leave. Changes nothing for the run; the item in hand counts as not applied."""
        return wait_for(self.of.aclose())


class RunActions(Blocking[_commands.RunActions]):
    """What people do to one run. Each method sends one intent and says what became of it.

    Where the server says that it cannot just now, and where nothing left, the intent is sent again under its key until
    `give_up_after_s`. A lost answer is `Unknown` at once; the intent stays in `unsettled` until `recover`.

    With `state`, what can have no effect any more is declined here, without asking: `Declined.sent` is False. About one
    approval, call or input, one command is on its way at a time; the next is declined as `in_progress`. `latest` says
    how the last command of each action stands, by `(action, entity)`; `on_change` is told each time.
    """

    def __init__(
        self, transport: HttpTransport, run_id: str, wait_s: float = DEFAULT_WAIT_S, give_up_after_s: float = 30.0
    ) -> None:
        self.of = on_loop(lambda: _commands.RunActions(plain(transport), run_id, wait_s, give_up_after_s))

    def resolve_approval(
        self,
        approval_id: str,
        decision: str,
        *,
        data: Any = None,
        expected_version: int | None = None,
        action_digest: str | None = None,
        reason: str | None = None,
    ) -> ActionOutcome:
        """Decide. Pass the version and digest that were shown: a decision holds for exactly that action."""
        return wait_for(
            self.of.resolve_approval(
                approval_id,
                decision,
                data=data,
                expected_version=expected_version,
                action_digest=action_digest,
                reason=reason,
            )
        )

    def revoke_approval(self, approval_id: str, reason: str) -> ActionOutcome:
        """Take the question back."""
        return wait_for(self.of.revoke_approval(approval_id, reason))

    def cancel(self, reason: str | None = None) -> ActionOutcome:
        """End the run at its next safe point."""
        return wait_for(self.of.cancel(reason))

    def pause(self) -> ActionOutcome:
        """Stop at the next safe point, to go on later."""
        return wait_for(self.of.pause())

    def resume(self) -> ActionOutcome:
        """Go on."""
        return wait_for(self.of.resume())

    def retry_tool(self, tool_call_id: str) -> ActionOutcome:
        """Try a failed tool call again, as a new call."""
        return wait_for(self.of.retry_tool(tool_call_id))

    def reconcile_tool(self, tool_call_id: str, outcome: str, note: str, *, result: Any = None) -> ActionOutcome:
        """Say what really became of a call whose outcome is unknown, and what it gave if it was `executed`."""
        return wait_for(self.of.reconcile_tool(tool_call_id, outcome, note, result=result))

    def send(self, content: Any) -> ActionOutcome:
        """Say something to the agent; it hears it at its next safe boundary."""
        return wait_for(self.of.send(content))

    def provide_input(self, input_id: str, value: Any) -> ActionOutcome:
        """Answer what the agent asked for."""
        return wait_for(self.of.provide_input(input_id, value))

    def send_intent(self, intent: Intent) -> ActionOutcome:
        """Send one intent, unless it is known already that it can have no effect."""
        return wait_for(self.of.send_intent(intent))

    def recover(self) -> dict[str, ActionOutcome]:
        """Settle what is unknown or held, by key. What the server does not know is sent again under its key."""
        return wait_for(self.of.recover())

    def cancel_run(self, reason: str | None = None) -> ActionOutcome:
        """`cancel`, by the name of what it ends."""
        return wait_for(self.of.cancel_run(reason))

    def reconcile(self, tool_call_id: str, outcome: str, note: str, *, result: Any = None) -> ActionOutcome:
        """`reconcile_tool`, by the name of the verb."""
        return wait_for(self.of.reconcile(tool_call_id, outcome, note, result=result))

    def settled(self, outcome: ActionOutcome) -> ActionOutcome:
        """For who wants to wait: `recover` until this one is known, for `give_up_after_s` at most."""
        return wait_for(self.of.settled(outcome))


class Client(BlockingContext[_client.Client]):
    """States of runs, kept current by `follow` and kept over restarts in a checkpoint.

    Promises:
    - A checkpoint is loaded whole or not at all. With `on_broken="refuse"` entering raises `CheckpointRefused`; with
      `"set_aside"` the broken one is moved out of the way, `refused` says why, and the client begins anew.
    - State and cursor are saved as of one moment. An item counts as applied once the next one is asked for: a crash
      while it is handled gives it again, and the state takes no fact twice.
    - A command is in the checkpoint before it leaves; `recover` settles those whose outcome was never heard.
    """

    def __init__(
        self,
        transport: HttpTransport,
        *,
        store: CheckpointStore | None = None,
        save_every_s: float = SAVE_EVERY_S,
        on_broken: Literal["refuse", "set_aside"] = "refuse",
        backoff: BackoffPolicy | None = None,
        on_connection: OnRunConnection | None = None,
    ) -> None:
        self.of = on_loop(
            lambda: _client.Client(
                plain(transport),
                store=store,
                save_every_s=save_every_s,
                on_broken=on_broken,
                backoff=backoff,
                on_connection=on_connection,
            )
        )

    @property
    def runs(self) -> Mapping[str, RunState]:
        """The states of all runs that are known here, also those of an earlier process."""
        return self.of.runs

    def state(self, run_id: str) -> RunState:
        """The state of a run; empty until it is followed."""
        return on_loop(lambda: self.of.state(run_id))

    def connection(self, run_id: str) -> Connection:
        """How the run is connected."""
        return on_loop(lambda: self.of.connection(run_id))

    def input(self, run_id: str) -> Any:
        """What the run was started with from here, or None."""
        return on_loop(lambda: self.of.input(run_id))

    @property
    def pending(self) -> Mapping[str, Intent]:
        """Commands whose outcome is not known, by idempotency key."""
        return self.of.pending

    def forget(self, run_id: str) -> None:
        """Keep nothing of a run any longer. Not while it is followed."""
        return on_loop(lambda: self.of.forget(run_id))

    def follow(self, run_id: str, *, previews: bool = True) -> Iterator[Item]:
        """Every item of a run from where this client is, over any number of connections, until the run is over.

        The state has taken the item when it is yielded. Ends and raises as `RunReader` does.

        Raises:
            ValueError: the run is being followed already.
        """
        return each(self.of.follow(run_id, previews=previews))

    def start_run(self, *, agent: str, input: Any = None, run_id: str | None = None, **more: Any) -> StartedRun:
        """Start a run. Its input is in the checkpoint first; the same `run_id` starts it once, said once or often.

        Raises:
            RequestRefused, Unreachable: as the transport says.
        """
        return wait_for(self.of.start_run(agent=agent, input=input, run_id=run_id, **more))

    def actions(self, run_id: str) -> RunActions:
        """What people do to the run; what is sent through it is in the checkpoint until it is settled."""
        return RunActions.around(on_loop(lambda: self.of.actions(run_id)))

    def recover(self) -> dict[str, ActionOutcome]:
        """Find out what became of each command that is pending, by key. What never arrived is sent now."""
        return wait_for(self.of.recover())

    def flush(self) -> None:
        """Save what changed since the last save, now. Raises what the store raises; then it is tried again later."""
        return wait_for(self.of.flush())


class MessageInProgress(BlockingContext[_items.MessageInProgress]):
    """A message. Its final content is what `complete` was given, else the previewed text, joined."""

    @property
    def content(self) -> Any:
        """What it says: of one that is `done`, what the log holds."""
        return self.of.content

    def preview(self, data: Any, *, operation: Operation = "append") -> None:
        """Show a fragment, and remember appended text for the final content."""
        return on_loop(lambda: self.of.preview(data, operation=operation))

    def complete(self, content: Any, *, model: str | None = None) -> None:
        """Set the final content; it replaces what was previewed. `model`: which one answered, if not the one asked."""
        return on_loop(lambda: self.of.complete(content, model=model))


class ReasoningInProgress(BlockingContext[_items.ReasoningInProgress]):
    """Reasoning. Its final content is what `complete` was given, else the previewed text, joined."""

    def preview(self, data: Any, *, operation: Operation = "append") -> None:
        """Show a fragment, and remember appended text for the final content."""
        return on_loop(lambda: self.of.preview(data, operation=operation))

    def complete(self, content: Any = None, *, summary: Any = None) -> None:
        """Set the final content and summary; they replace what was previewed."""
        return on_loop(lambda: self.of.complete(content, summary=summary))


class ToolInProgress(BlockingContext[_items.ToolInProgress]):
    """A tool call. `complete` sets its result; `outcome_unknown` says that nobody knows what it did."""

    @property
    def result(self) -> Any:
        """What it gave, or where a large result lies: of one that is `done`, what the log holds."""
        return self.of.result

    def preview(self, data: Any, *, operation: Operation = "append") -> None:
        """Show a fragment. It may vanish; nobody waits."""
        return on_loop(lambda: self.of.preview(data, operation=operation))

    def complete(self, result: Any = None, *, content_ref: events.ContentRef | None = None) -> None:
        """Set the result, or where a large one lies."""
        return on_loop(lambda: self.of.complete(result, content_ref=content_ref))

    def finish(self) -> None:
        """Write the outcome now, and not at the end of the block."""
        return wait_for(self.of.finish())

    def failed(self, code: str, message: str = "", *, retryable: bool = False) -> None:
        """End the call as failed; `retryable` lets people try it again."""
        return wait_for(self.of.failed(code, message, retryable=retryable))

    def outcome_unknown(self, operation_id: str) -> None:
        """Say that the call may or may not have taken effect; a person reconciles it."""
        return wait_for(self.of.outcome_unknown(operation_id))


class RunWriter(BlockingContext[_writer.RunWriter]):
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

    def __init__(
        self,
        transport: HttpTransport,
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
        self.of = on_loop(
            lambda: _writer.RunWriter(
                plain(transport),
                run_id,
                worker_id=worker_id,
                ttl_s=ttl_s,
                lease_epoch=lease_epoch,
                state_started=state_started,
                redactor=redactor,
                retry=retry,
                new_id=new_id,
                now=now,
            )
        )

    @classmethod
    def start(
        cls,
        transport: HttpTransport,
        *,
        agent: str,
        input: Any = None,
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
        return cls.around(
            wait_for(
                _writer.RunWriter.start(
                    plain(transport),
                    agent=agent,
                    input=input,
                    run_id=run_id,
                    session_id=session_id,
                    dispatch=dispatch,
                    pool=pool,
                    limits=limits,
                    deadline_at=deadline_at,
                    parent_run_id=parent_run_id,
                    **writer,
                )
            )
        )

    @classmethod
    def attach(cls, transport: HttpTransport, run_id: str, **writer: Any) -> Self:
        """A writer for a run that exists; entering it takes the lease, unless `lease_epoch` says it is taken."""
        return cls.around(on_loop(lambda: _writer.RunWriter.attach(plain(transport), run_id, **writer)))

    @property
    def lease_ok(self) -> bool:
        """Whether side effects are allowed now. Ask before each one that cannot be undone."""
        return self.of.lease_ok

    @property
    def lease_lost(self) -> bool:
        """Set when the lease is lost."""
        return self.of.lease_lost.is_set()

    @property
    def is_over(self) -> bool:
        """Whether a terminal fact was written by this writer."""
        return self.of.is_over

    def append(self, *facts: FactLike, expected_sequence: int | None = None) -> list[Written]:
        """Write all of `facts` or none; durable when this returns.

        A lost answer is settled by sending the same event ids again. With `expected_sequence` the facts are
        written only if the run is still there.

        Raises:
            LeaseLost: this process may not write any more.
            RequestRefused: the facts do not fit the contract or the run's state (`problem.index` says which).
            Unreachable: no answer within the retry budget; whether they were written is not known.
        """
        return wait_for(self.of.append(*facts, expected_sequence=expected_sequence))

    def publish_preview(
        self,
        kind: str,
        id: str,
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
        return on_loop(
            lambda: self.of.publish_preview(
                kind, id, data, preview_id=preview_id, operation=operation, abandoned=abandoned
            )
        )

    @property
    def dropped_previews(self) -> int:
        """Fragments that did not leave this process."""
        return self.of.dropped_previews

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
        return MessageInProgress.around(
            on_loop(lambda: self.of.message(role, message_id=message_id, model=model, provider=provider))
        )

    def reasoning(self, *, reasoning_id: str | None = None) -> ReasoningInProgress:
        """Reasoning that grows, like `message`."""
        return ReasoningInProgress.around(on_loop(lambda: self.of.reasoning(reasoning_id=reasoning_id)))

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
        return ToolInProgress.around(
            on_loop(
                lambda: self.of.tool(
                    name,
                    arguments,
                    tool_call_id=tool_call_id,
                    side_effect=side_effect,
                    operation_id=operation_id,
                    attempt=attempt,
                    retry_of=retry_of,
                )
            )
        )

    def requested_tool(self, request: events.ToolRequested) -> ToolInProgress:
        """A tool call that stands in the log as requested: running on entering, then as `tool`."""
        return ToolInProgress.around(on_loop(lambda: self.of.requested_tool(request)))

    def complete(self, output: Any = None, *, usage: dict[str, Any] | None = None) -> None:
        """End the run well. Items that are still open are closed in the same commit."""
        return wait_for(self.of.complete(output, usage=usage))

    def fail(self, code: str, message: str = "", *, retryable: bool = False) -> None:
        """End the run as failed."""
        return wait_for(self.of.fail(code, message, retryable=retryable))

    def cancelled(self, reason: str | None = None) -> None:
        """End the run as cancelled, at a safe point after `run.cancel_requested`."""
        return wait_for(self.of.cancelled(reason))

    @property
    def keeps_content(self) -> bool:
        """Whether content too large for a fact can be kept over this transport."""
        return self.of.keeps_content

    def put_content(
        self, data: bytes, media_type: str = "application/octet-stream", *, restricted: bool = False
    ) -> ContentRef:
        """Keep content that is too large for a fact, and what the fact states as its `content_ref`.

        What people may see of it is decided when it is kept: all, a copy without the secrets, or nothing; nothing if it
        is `restricted`.

        Raises:
            RequestRefused: `payload_too_large`, `run_terminal`; `invalid_request` over a transport that keeps none.
            Unreachable: nobody answered for as long as the retry policy allows.
        """
        return wait_for(self.of.put_content(data, media_type, restricted=restricted))

    def get_content(self, ref: ContentRef) -> bytes:
        """Content of this run as it came. Raises as `put_content`, `not_found`; ContractViolation: it was changed."""
        return wait_for(self.of.get_content(ref))


class RunContext(Blocking[_context.RunContext]):
    """One run, in the hands of one agent.

    `boundary()` is where people reach the agent: call it between steps. What the agent does to the world goes
    through `call`. After a worker was lost the agent starts anew, from its beginning, with `attempt` 2, 3 …: then
    each step that the log holds already is answered from there. What is done is not done again, what was said is not
    said again, what was asked is not asked again. So an agent has to take the same steps in the same order.

    Raises, out of each step:
        NonDeterministic: the agent does something else than it did before.
    """

    @property
    def state(self) -> RunState:
        """The run as its log tells it; see `selectors`."""
        return self.of.state

    @property
    def attempt(self) -> int:
        """1 for the first worker, 2 after it was lost, and so on."""
        return self.of.attempt

    @property
    def cancelled(self) -> bool:
        """Set when somebody asked that the run end."""
        return self.of.cancelled.is_set()

    @property
    def lease_ok(self) -> bool:
        """Whether side effects are allowed now. Ask before each one that cannot be undone."""
        return self.of.lease_ok

    def boundary(self) -> list[SentMessage]:
        """A safe point: stops here if the run is to end, waits here while it is paused; what people said since.

        Raises:
            RunCancelled: clean up and let it pass; the worker then states `run.cancelled`.
            LeaseLost: another may drive the run now; stop.
        """
        return wait_for(self.of.boundary())

    def messages(self) -> list[SentMessage]:
        """What people said since this was last asked, without waiting. In a later attempt: at the same step."""
        return on_loop(lambda: self.of.messages())

    def retries(self) -> list[events.ToolRequested]:
        """Tool calls that people asked to try again. Run each with `call_again`."""
        return on_loop(lambda: self.of.retries())

    def approval(
        self,
        description: str,
        *,
        risk: str = "high",
        data: Any = None,
        tool_call_id: str | None = None,
        approval_id: str | None = None,
        action_digest: str | None = None,
        editable: bool = False,
        expires_in_s: float | None = None,
        quorum: int = 1,
        not_by: Sequence[str] = (),
        reason_again: str | None = None,
    ) -> events.ApprovalResolved:
        """Ask people, and wait for what they decide.

        Asked once: the same `approval_id`, or the same tool call with the same digest, finds the question that is
        open or the decision that was made, also in a later attempt. Act only on `approved`, or on `modified` with
        the `data` of the decision; `rejected`, `expired` and `revoked` mean no. `quorum` different people have to
        approve the same action, and nobody in `not_by` may; what was rejected is asked again with `reason_again` only.

        Raises:
            RunCancelled, LeaseLost: as `boundary`.
        """
        return wait_for(
            self.of.approval(
                description,
                risk=risk,
                data=data,
                tool_call_id=tool_call_id,
                approval_id=approval_id,
                action_digest=action_digest,
                editable=editable,
                expires_in_s=expires_in_s,
                quorum=quorum,
                not_by=not_by,
                reason_again=reason_again,
            )
        )

    def ask(
        self,
        prompt: str,
        *,
        schema: dict[str, Any] | None = None,
        input_id: str | None = None,
        expires_in_s: float | None = None,
    ) -> events.InputProvided | events.InputCancelled:
        """Ask people for a value, and wait for it; the same `input_id` is asked once.

        Raises:
            RunCancelled, LeaseLost: as `boundary`.
        """
        return wait_for(self.of.ask(prompt, schema=schema, input_id=input_id, expires_in_s=expires_in_s))

    def call(
        self,
        name: str,
        arguments: Any,
        effect: Effect,
        *,
        side_effect: events.SideEffect = "none",
        tool_call_id: str | None = None,
        operation_id: str | None = None,
    ) -> Any:
        """Do something to the world: `effect`, with its intent in the log before, and its outcome after.

            receipt = await ctx.call("pay", {"amount": 5}, pay, side_effect="unsafe")

        What it returns is JSON, as the log has it. In a later attempt a call that has an outcome is not run again:
        its result is returned, or its failure raised. One that was cut short runs again with the same
        `operation_id`, unless it is `unsafe`: then it waits until the worker's `reconcile` or a person says whether
        it took effect. An effect that stops being wanted, or whose run was lost, is cancelled.

        Raises:
            ToolCallFailed: the effect raised; the cause is its exception, if it ran now.
            RunCancelled, LeaseLost: as `boundary`; but an agent that was told that it is cancelled may clean up.
        """
        return wait_for(
            self.of.call(
                name,
                arguments,
                in_thread(effect, ToolInProgress),
                side_effect=side_effect,
                tool_call_id=tool_call_id,
                operation_id=operation_id,
            )
        )

    def call_again(self, request: events.ToolRequested, effect: Effect) -> Any:
        """Run a call that stands in the log as requested (see `retries`); as `call`."""
        return wait_for(self.of.call_again(request, in_thread(effect, ToolInProgress)))

    def put_content(
        self, data: bytes, media_type: str = "application/octet-stream", *, restricted: bool = False
    ) -> events.ContentRef:
        """Keep content that is too large for a fact: what an artifact or a call states as its `content_ref`.

        Kept again after a restart it has the same address. Large results of `call` are kept by themselves. Raises as
        `RunWriter.put_content`.
        """
        return wait_for(self.of.put_content(data, media_type, restricted=restricted))

    def get_content(self, ref: events.ContentRef) -> bytes:
        """Content of this run as it came. Raises as `RunWriter.get_content`."""
        return wait_for(self.of.get_content(ref))

    def checkpoint(self, state: Any) -> None:
        """Keep `state`: a later attempt finds it in `checkpointed`, and may go on from there. At most 64 KiB."""
        return wait_for(self.of.checkpoint(state))

    @property
    def checkpointed(self) -> Any:
        """The last checkpoint of an earlier attempt, or the one that the run was begun with; else None.

        Reading it says that the agent goes on from there: the steps before it are not asked for any more.
        """
        return self.of.checkpointed

    def append(self, *facts: FactLike, expected_sequence: int | None = None) -> list[Written]:
        """Durable when this returns; see `RunWriter.append`. Facts of an earlier attempt are not stated again."""
        return wait_for(self.of.append(*facts, expected_sequence=expected_sequence))

    def publish_preview(
        self,
        kind: str,
        id: str,
        data: Any = None,
        *,
        preview_id: str,
        operation: Operation = "append",
        abandoned: bool = False,
    ) -> None:
        """May vanish; see `RunWriter.publish_preview`."""
        return on_loop(
            lambda: self.of.publish_preview(
                kind, id, data, preview_id=preview_id, operation=operation, abandoned=abandoned
            )
        )

    def message(
        self,
        role: str = "assistant",
        *,
        message_id: str | None = None,
        model: str | None = None,
        provider: str | None = None,
    ) -> MessageInProgress:
        """A message that grows; see `RunWriter.message`. One of an earlier attempt is `done`: ask its `content`."""
        return MessageInProgress.around(
            on_loop(lambda: self.of.message(role, message_id=message_id, model=model, provider=provider))
        )

    def reasoning(self, *, reasoning_id: str | None = None) -> ReasoningInProgress:
        """Reasoning that grows; see `RunWriter.reasoning`. One of an earlier attempt is `done`."""
        return ReasoningInProgress.around(on_loop(lambda: self.of.reasoning(reasoning_id=reasoning_id)))

    def tool(
        self,
        name: str,
        arguments: Any,
        *,
        tool_call_id: str | None = None,
        side_effect: events.SideEffect = "none",
        operation_id: str | None = None,
    ) -> ToolInProgress:
        """A tool call whose effect stands in the block; see `RunWriter.tool`.

        A block cannot be skipped. In a later attempt it runs again, so ask `done` in it, and `result` after it; one
        that is `unsafe` and began before raises AlreadyRan on entering. `call` has neither trouble.
        """
        return ToolInProgress.around(
            on_loop(
                lambda: self.of.tool(
                    name, arguments, tool_call_id=tool_call_id, side_effect=side_effect, operation_id=operation_id
                )
            )
        )

    def requested_tool(self, request: events.ToolRequested) -> ToolInProgress:
        """A tool call that stands in the log as requested: approved, or asked for again by people; as `tool`."""
        return ToolInProgress.around(on_loop(lambda: self.of.requested_tool(request)))


class Worker(Blocking[_worker.Worker]):
    """Executes runs of one pool.

    Promises: at most `concurrency` runs at once; each under a lease that fails closed, so an agent whose run was
    taken is cancelled and can write nothing; a cancel request reaches the agent at its next boundary, and ends
    it shortly before its grace is over; connections that break are opened again. `stop` takes no new run, gives
    the running ones `stop_within_s` to finish, and gives back what is left. A run that lost its worker is begun
    anew, and what it has done is not done again: see `RunContext.call`. `reconcile` is asked first what became of an
    unsafe call that was cut short. Over `NatsPools` it serves several tenants, each its part.
    """

    def __init__(
        self,
        transport: HttpTransport | SharedWork,
        *,
        agent: Agent,
        pool: str = "default",
        worker_id: str | None = None,
        concurrency: int = 4,
        ttl_s: float = DEFAULT_TTL_S,
        claim_wait_s: float = CLAIM_WAIT_S,
        stop_within_s: float = 30.0,
        reconcile: Reconcile | None = None,
        redactor: Redactor | type[TokenRedactor] | None = TokenRedactor,
        new_id: NewId = new_id,
        now: Now = utc_now,
    ) -> None:
        self.of = on_loop(
            lambda: _worker.Worker(
                plain(transport),
                agent=in_thread(agent, RunContext),
                pool=pool,
                worker_id=worker_id,
                concurrency=concurrency,
                ttl_s=ttl_s,
                claim_wait_s=claim_wait_s,
                stop_within_s=stop_within_s,
                reconcile=None if reconcile is None else in_thread(reconcile, RunContext),
                redactor=redactor,
                new_id=new_id,
                now=now,
            )
        )

    def stop(self) -> None:
        """Take no new run; `run` returns when the running ones are done or given back, and no claim is open."""
        return on_loop(lambda: self.of.stop())

    def run(self) -> None:
        """Work until `stop` is called or this task is cancelled.

        Raises:
            RequestRefused: the pool may not be worked for; runs that were going on have finished.
        """
        return wait_for(self.of.run())


__all__ = [
    "Agent",
    "Client",
    "Effect",
    "HttpTransport",
    "MessageInProgress",
    "ReasoningInProgress",
    "Reconcile",
    "RunActions",
    "RunContext",
    "RunReader",
    "RunWriter",
    "ToolInProgress",
    "Worker",
]
