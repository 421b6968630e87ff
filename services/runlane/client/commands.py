"""Ask that something happen to a run, once, whatever the network does.

An `Intent` is made once per wish and carries its idempotency key for life: sent again, it has one effect and
one answer. A lost answer is `Unknown`, never "failed", and nothing is sent again by itself: `RunActions.recover` asks
what became of it. How a command stands is kept apart from how the run stands: `RunActions.latest`.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, assert_never

import msgspec

from runlane.client.backoff import Backoff, BackoffPolicy
from runlane.client.errors import ProblemBody, RequestRefused, Unreachable
from runlane.client.objections import objection
from runlane.client.state import RunState
from runlane.client.transports.ports import CommandReceipt, CommandTransport
from runlane.kernel.clock import new_id
from runlane_contracts import commands as contract
from runlane_contracts.commands import CommandPayload
from runlane_contracts.problems import Code

DEFAULT_WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Intent:
    """One wish: what, to which run, under which key."""

    run_id: str
    payload: CommandPayload
    idempotency_key: str

    @property
    def type(self) -> str:
        """The command's wire name."""
        return self.payload.TYPE


@dataclass(frozen=True, slots=True)
class Applied:
    """It took effect. Reads from `applied_through` on show it."""

    command_id: str
    applied_through: str | None = None
    applied_sequence: int | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """Accepted and durable, not decided yet: the run has no owner, or the wait was too short."""

    command_id: str


@dataclass(frozen=True, slots=True)
class Declined:
    """It took no effect. `recorded` is what was decided before, when that is why. `sent`: the server was asked."""

    code: str
    detail: str
    recorded: dict[str, Any] | None = None
    sent: bool = True


@dataclass(frozen=True, slots=True)
class Unknown:
    """No answer came. It may have taken effect; `recover` finds out."""

    detail: str
    idempotency_key: str = ""


ActionOutcome = Applied | Held | Declined | Unknown

Phase = Literal["submitting", "succeeded", "failed", "unknown"]


@dataclass(frozen=True, slots=True)
class CommandState:
    """How the latest command of one action stands. What it does to the run is in the run's state, when it comes.

    `submitting` until there is an outcome (also while it is `Held`), `unknown` when its answer was lost.
    """

    action: str
    entity: str
    idempotency_key: str
    phase: Phase
    outcome: ActionOutcome | None = None


IN_PROGRESS = "in_progress"
"""Declined here: another command about the same thing is on its way, or its outcome is not known yet."""


def entity_of(intent: Intent) -> str:
    """What a command is about: one is on its way about it at a time. Each message, and the cancel, stands alone."""
    match intent.payload:
        case contract.ResolveApproval(approval_id=id_) | contract.RevokeApproval(approval_id=id_):
            return f"approval:{id_}"
        case contract.RetryTool(tool_call_id=id_) | contract.ReconcileTool(tool_call_id=id_):
            return f"tool:{id_}"
        case contract.ProvideInput(input_id=id_):
            return f"input:{id_}"
        case contract.SendMessage():
            return f"message:{intent.idempotency_key}"
        case contract.CancelRun():
            return "cancel"
        case _:
            return "run"


class CommandFactory:
    """Makes intents; each call is a new wish with a new key."""

    def __init__(self, new_key: Callable[[], str]) -> None:
        self._new_key = new_key

    def intent(self, run_id: str, payload: CommandPayload, *, idempotency_key: str | None = None) -> Intent:
        """An intent; bring a key of your own when your wish has an identity of its own (a form, a ticket)."""
        return Intent(run_id, payload, idempotency_key or self._new_key())


def new_key() -> str:
    """A fresh idempotency key."""
    return new_id("key")


class CommandDesk(Protocol):
    """Keeps commands whose outcome is not known, beyond this process."""

    async def hold(self, intent: Intent) -> None:
        """Keep it; it leaves when this returns."""
        ...

    def release(self, idempotency_key: str) -> None:
        """Its outcome is known."""
        ...


@dataclass(slots=True)
class RunActions:
    """What people do to one run. Each method sends one intent and says what became of it.

    Where the server says that it cannot just now, and where nothing left, the intent is sent again under its key until
    `give_up_after_s`. A lost answer is `Unknown` at once; the intent stays in `unsettled` until `recover`.

    With `state`, what can have no effect any more is declined here, without asking: `Declined.sent` is False. About one
    approval, call or input, one command is on its way at a time; the next is declined as `in_progress`. `latest` says
    how the last command of each action stands, by `(action, entity)`; `on_change` is told each time.
    """

    transport: CommandTransport
    run_id: str
    wait_s: float = DEFAULT_WAIT_S
    give_up_after_s: float = 30.0
    factory: CommandFactory = field(default_factory=lambda: CommandFactory(new_key))
    unsettled: dict[str, Intent] = field(default_factory=dict)
    desk: CommandDesk | None = None
    state: RunState | None = None
    latest: dict[tuple[str, str], CommandState] = field(default_factory=dict)
    on_change: Callable[[CommandState], None] | None = None

    async def resolve_approval(
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
        raw = {
            "approval_id": approval_id, "decision": decision, "data": data, "expected_version": expected_version,
            "action_digest": action_digest, "reason": reason,
        }  # fmt: skip
        return await self.send_intent(self._intent(msgspec.convert(raw, contract.ResolveApproval)))

    async def revoke_approval(self, approval_id: str, reason: str) -> ActionOutcome:
        """Take the question back."""
        return await self.send_intent(self._intent(contract.RevokeApproval(approval_id=approval_id, reason=reason)))

    async def cancel(self, reason: str | None = None) -> ActionOutcome:
        """End the run at its next safe point."""
        return await self.send_intent(self._intent(contract.CancelRun(reason=reason)))

    async def cancel_run(self, reason: str | None = None) -> ActionOutcome:
        """`cancel`, by the name of what it ends."""
        return await self.cancel(reason)

    async def pause(self) -> ActionOutcome:
        """Stop at the next safe point, to go on later."""
        return await self.send_intent(self._intent(contract.PauseRun()))

    async def resume(self) -> ActionOutcome:
        """Go on."""
        return await self.send_intent(self._intent(contract.ResumeRun()))

    async def retry_tool(self, tool_call_id: str) -> ActionOutcome:
        """Try a failed tool call again, as a new call."""
        return await self.send_intent(self._intent(contract.RetryTool(tool_call_id=tool_call_id)))

    async def reconcile_tool(self, tool_call_id: str, outcome: str, note: str, *, result: Any = None) -> ActionOutcome:
        """Say what really became of a call whose outcome is unknown, and what it gave if it was `executed`."""
        raw = {"tool_call_id": tool_call_id, "outcome": outcome, "note": note, "result": result}
        return await self.send_intent(self._intent(msgspec.convert(raw, contract.ReconcileTool)))

    async def reconcile(self, tool_call_id: str, outcome: str, note: str, *, result: Any = None) -> ActionOutcome:
        """`reconcile_tool`, by the name of the verb."""
        return await self.reconcile_tool(tool_call_id, outcome, note, result=result)

    async def send(self, content: Any) -> ActionOutcome:
        """Say something to the agent; it hears it at its next safe boundary."""
        return await self.send_intent(self._intent(contract.SendMessage(content=content)))

    async def provide_input(self, input_id: str, value: Any) -> ActionOutcome:
        """Answer what the agent asked for."""
        return await self.send_intent(self._intent(contract.ProvideInput(input_id=input_id, value=value)))

    def _intent(self, payload: CommandPayload) -> Intent:
        return self.factory.intent(self.run_id, payload)

    async def send_intent(self, intent: Intent) -> ActionOutcome:
        """Send one intent, unless it is known already that it can have no effect."""
        declined = self._objection(intent)
        if declined is not None:
            if declined.code != IN_PROGRESS:
                self._note(intent, "failed", declined)
            return declined
        return await self._submit(intent)

    def _objection(self, intent: Intent) -> Declined | None:
        entity = entity_of(intent)
        for key, other in self.unsettled.items():
            if key != intent.idempotency_key and entity_of(other) == entity and not self._is_held(other):
                return Declined(
                    IN_PROGRESS, f"{other.type} of {entity} is on its way, or has no known outcome", sent=False
                )
        found = None if self.state is None else objection(self.state, intent.payload)
        return None if found is None else Declined(found.code, found.detail, found.recorded, sent=False)

    def _is_held(self, intent: Intent) -> bool:
        known = self.latest.get((intent.type, entity_of(intent)))
        return known is not None and isinstance(known.outcome, Held)

    def _note(self, intent: Intent, phase: Phase, outcome: ActionOutcome | None = None) -> None:
        noted = CommandState(intent.type, entity_of(intent), intent.idempotency_key, phase, outcome)
        self.latest[noted.action, noted.entity] = noted
        if self.on_change is not None:
            self.on_change(noted)

    async def _submit(self, intent: Intent) -> ActionOutcome:
        self.unsettled[intent.idempotency_key] = intent
        self._note(intent, "submitting")
        if self.desk is not None:
            await self.desk.hold(intent)
        clock = asyncio.get_running_loop().time
        backoff = Backoff(BackoffPolicy(budget_s=self.give_up_after_s))
        while True:
            after_s: float | None = None
            maybe = True
            try:
                receipt = await self.transport.submit(
                    intent.run_id, intent.type, intent.payload,
                    idempotency_key=intent.idempotency_key, wait_s=self.wait_s,
                )  # fmt: skip
                return self._settle(intent, _outcome(receipt))
            except RequestRefused as refused:
                if not refused.retryable:
                    return self._settle(intent, _declined(refused.problem))
                lost, after_s, maybe = str(refused), refused.retry_after_s, refused.code != Code.QUOTA_EXCEEDED
            except Unreachable as exc:
                if exc.sent:
                    return self._give_up(intent, str(exc), maybe=True)
                lost, maybe = str(exc), False
            delay_s = backoff.next_delay_s(now_s=clock(), at_least_s=after_s)
            if delay_s is None:
                return self._give_up(intent, lost, maybe=maybe)
            await asyncio.sleep(delay_s)

    async def recover(self) -> dict[str, ActionOutcome]:
        """Settle what is unknown or held, by key. What the server does not know is sent again under its key."""
        outcomes: dict[str, ActionOutcome] = {}
        for key, intent in list(self.unsettled.items()):
            try:
                receipt = await self.transport.find_command(key)
            except (Unreachable, RequestRefused) as exc:
                outcomes[key] = Unknown(str(exc), key)
                continue
            outcomes[key] = await self._submit(intent) if receipt is None else self._settle(intent, _outcome(receipt))
        return outcomes

    async def settled(self, outcome: ActionOutcome) -> ActionOutcome:
        """For who wants to wait: `recover` until this one is known, for `give_up_after_s` at most."""
        clock = asyncio.get_running_loop().time
        backoff = Backoff(BackoffPolicy(budget_s=self.give_up_after_s))
        while isinstance(outcome, Unknown):
            delay_s = backoff.next_delay_s(now_s=clock(), at_least_s=None)
            if delay_s is None:
                break
            await asyncio.sleep(delay_s)
            outcome = (await self.recover()).get(outcome.idempotency_key, outcome)
        return outcome

    def _settle(self, intent: Intent, outcome: ActionOutcome) -> ActionOutcome:
        if isinstance(outcome, Applied | Declined):
            self.unsettled.pop(intent.idempotency_key, None)
            if self.desk is not None:
                self.desk.release(intent.idempotency_key)
        self._note(intent, _phase(outcome), outcome)
        return outcome

    def _give_up(self, intent: Intent, lost: str, *, maybe: bool) -> ActionOutcome:
        unknown = Unknown(lost, intent.idempotency_key)
        return self._settle(intent, unknown if maybe else Declined("unreachable", lost, sent=False))


def _phase(outcome: ActionOutcome) -> Phase:
    match outcome:
        case Applied():
            return "succeeded"
        case Declined():
            return "failed"
        case Held():
            return "submitting"
        case Unknown():
            return "unknown"
        case _:
            assert_never(outcome)


def _outcome(receipt: CommandReceipt) -> ActionOutcome:
    match receipt.status:
        case "applied":
            return Applied(receipt.command_id, receipt.applied_through, receipt.applied_sequence)
        case "rejected":
            return _declined_entry(receipt.rejection or {})
        case "expired":
            return Declined("expired", "nobody took the run in time")
        case _:
            return Held(receipt.command_id)


def _declined(problem: ProblemBody) -> Declined:
    return Declined(problem.code, problem.detail or problem.title, problem.recorded)


def _declined_entry(rejection: dict[str, Any]) -> Declined:
    return Declined(str(rejection.get("code", "internal")), str(rejection.get("detail", "")), rejection.get("recorded"))
