"""`POST /v1/runs/{run_id}/events`: a producer that speaks HTTP states facts."""

from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response

from runlane.command_gateway.door import Caller, Door
from runlane.command_gateway.wire import MAX_EVENTS, AppendBody, Appended, Placed
from runlane.hosting.authorizer import Right
from runlane.hosting.http import ProblemError, decode_body, json_response
from runlane_contracts import events
from runlane_contracts.envelope import Actor
from runlane_contracts.lifecycle import FactDraft
from runlane_contracts.problems import Code

T = TypeVar("T")

_DRAFT: Final = msgspec.json.Decoder(FactDraft)


class EventsDesk:
    """Appends, all or nothing."""

    def __init__(self, door: Door, *, max_body_bytes: int) -> None:
        self._door, self._max_body_bytes = door, max_body_bytes

    async def post(self, request: Request) -> Response:
        """Write facts; durable when it answers."""
        caller = await self._door.caller(request, Right.PRODUCE)
        body = await decode_body(request, AppendBody, max_bytes=self._max_body_bytes)
        drafts = drafts_of(body.events)
        placed = await caller.run_log.append(
            drafts,
            lease_epoch=body.lease_epoch,
            actor=_author(caller),
            expected_sequence=body.expected_sequence,
        )
        return json_response(Appended(events=[Placed(event_id, sequence) for event_id, sequence in placed]))


def _author(caller: Caller) -> Actor:
    created = caller.run_log.lifecycle.created
    return Actor(kind="agent", id=created.agent if created is not None else caller.principal.subject)


def drafts_of(raw: list[Raw]) -> list[FactDraft]:
    """The events of an append. What needs no knowledge of the run is checked here; the rest by the log's rules.

    Raises:
        ProblemError: `invalid_request` with the index at fault.
    """
    if not 1 <= len(raw) <= MAX_EVENTS:
        raise ProblemError(Code.INVALID_REQUEST, f"1 to {MAX_EVENTS} events, not {len(raw)}")
    return [_draft(index, one) for index, one in enumerate(raw)]


def _draft(index: int, raw: Raw) -> FactDraft:
    one = decode_at(index, raw, _DRAFT)
    if one.actor is not None and one.actor.kind == "system":
        raise ProblemError(Code.INVALID_REQUEST, "the platform alone speaks as `system`", index=index)
    known = events.PAYLOADS.get(one.type)
    if known is not None and one.schema_version != known.VERSION:
        detail = f"{one.type} has schema version {known.VERSION}, not {one.schema_version}"
        raise ProblemError(Code.INVALID_REQUEST, detail, index=index)
    # The run's session is the run's; it is not for a producer to say.
    return msgspec.structs.replace(one, session_id=None)


def decode_at(index: int, raw: Raw, decoder: "msgspec.json.Decoder[T]", **extra: Any) -> T:
    """One element of a list in a body.

    Raises:
        ProblemError: `invalid_request` with the index.
    """
    try:
        return decoder.decode(raw)
    except RecursionError as exc:
        raise ProblemError(Code.INVALID_REQUEST, "nested too deeply", index=index, **extra) from exc
    except msgspec.MsgspecError as exc:
        raise ProblemError(Code.INVALID_REQUEST, str(exc), index=index, **extra) from exc
