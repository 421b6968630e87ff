"""What a span shows of content, for tenants that want it: read from the view, as people may see it. Off by default.

The opt-in attributes of the GenAI conventions, JSON as text: `gen_ai.input.messages` and `gen_ai.output.messages` of a
run, the latter of a chat, `gen_ai.tool.call.arguments` and `gen_ai.tool.call.result` of a call. A signal has none,
so who may not read the view cannot put it on a span.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from runlane.kernel.errors import KernelError
from runlane.metrics_aggregator.spans import Attributes, FinishedSpan, Place
from runlane_contracts.codec import decode_commit, decode_json, encode
from runlane_contracts.envelope import Fact
from runlane_contracts.streams import Layout
from runlane_contracts.subjects import RunAddress
from runlane_contracts.telemetry import Attribute

WITHIN_S = 5.0
"""Spans do not wait longer for their content; they go without."""
MOST_MESSAGES, MOST_BYTES = 2_000, 8 * 1024 * 1024
"""Of a run, read to find a fact whose place in the view is not that in the log."""
_LOOKS, _BETWEEN_S = 4, 0.1
_MORE = "…"
_TEXT, _STOP = "text", "stop"


class Stored(Protocol):
    """A stored message."""

    @property
    def subject(self) -> str: ...
    @property
    def data(self) -> bytes: ...


class _Page(Protocol):
    @property
    def messages(self) -> Sequence[Stored]: ...


class Reader(Protocol):
    """Reads what the view holds. A `DirectReader`, in production."""

    async def get(self, stream: str, seq: int) -> Stored | None:
        """One message; None if it is not there. Raises Retryable."""
        ...

    async def page(self, stream: str, subject: str, start_seq: int, *, max_messages: int, max_bytes: int) -> _Page:
        """The next messages of a run. Raises Retryable."""
        ...


class _Shown(NamedTuple):
    text: str
    is_cut: bool


class Contents:
    """Adds content to spans of the tenants that want it. `counts`: spans that got theirs, and that went without."""

    def __init__(self, reader: Reader, layout: Layout, tenants: frozenset[str], *, max_chars: int) -> None:
        self.counts = {"shown": 0, "missing": 0}
        self._reader, self._layout = reader, layout
        self._tenants, self._max_chars = tenants, max_chars

    def wants(self, span: FinishedSpan) -> bool:
        """Whether it is to show content."""
        return span.source is not None and span.source.run.tenant_id in self._tenants

    async def added(self, spans: Sequence[FinishedSpan]) -> list[FinishedSpan]:
        """The same spans, those that want it with content. One whose content cannot be had now goes without."""
        out, wanting = list(spans), [n for n, span in enumerate(spans) if self.wants(span)]
        seen = 0
        with contextlib.suppress(TimeoutError, KernelError):
            async with asyncio.timeout(WITHIN_S):
                for n in wanting:
                    found = await self._attributes(spans[n])
                    out[n] = msgspec.structs.replace(spans[n], attributes={**spans[n].attributes, **found})
                    seen += bool(found)
        self.counts["shown"] += seen
        self.counts["missing"] += len(wanting) - seen
        return out

    async def _attributes(self, span: FinishedSpan) -> Attributes:
        """One span's at a time, so that no more than a commit or two are held."""
        assert span.source is not None  # noqa: S101 - it wants content
        source, found = span.source, Attributes()
        for place in dict.fromkeys((source.begin, source.end)):
            fact = await self._fact(source.run, place)
            if fact is not None:
                found |= attributes_of(fact, self._max_chars)
        return found

    async def _fact(self, run: RunAddress, place: Place) -> Fact | None:
        """It mostly stands where it stands in the log, which the view follows message by message."""
        stream, subject = self._layout.view_stream(run.run_id), self._layout.subjects.view(*run)
        message = None
        for look in range(_LOOKS):
            message = await self._reader.get(stream, place.log_seq)
            if message is not None:
                break
            await asyncio.sleep(_BETWEEN_S * look)  # a replica may be a moment behind
        if message is not None and message.subject == subject:
            found = _held(message, place.sequence)
            if found is not None:
                return found
        page = await self._reader.page(stream, subject, 1, max_messages=MOST_MESSAGES, max_bytes=MOST_BYTES)
        return next((found for one in page.messages if (found := _held(one, place.sequence)) is not None), None)


def _held(message: Stored, sequence: int) -> Fact | None:
    try:
        commit = decode_commit(message.data)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return next((fact for fact in commit.facts if fact.sequence == sequence), None)


def attributes_of(fact: Fact, max_chars: int) -> Attributes:
    """What a fact shows. At most `max_chars` of it; then it says that it was cut."""
    found: Attributes = {}
    for name, shown in _shown(fact, max_chars):
        found[name] = shown.text
        if shown.is_cut:
            found[Attribute.CONTENT_CUT] = True
    return found


def _shown(fact: Fact, max_chars: int) -> Iterator[tuple[str, _Shown]]:
    payload = decode_json(fact.payload)
    match fact.type:
        case "run.created" if payload.get("input") is not None:
            yield Attribute.GEN_AI_INPUT_MESSAGES, _message("user", payload["input"], max_chars)
        case "run.completed" if payload.get("output") is not None:
            yield Attribute.GEN_AI_OUTPUT_MESSAGES, _message("assistant", payload["output"], max_chars, _STOP)
        case "message.completed" if payload.get("content") is not None:
            yield Attribute.GEN_AI_OUTPUT_MESSAGES, _message(payload["role"], payload["content"], max_chars, _STOP)
        case "tool.requested" if payload.get("arguments") is not None:
            yield Attribute.GEN_AI_TOOL_ARGUMENTS, _cut(_as_text(payload["arguments"]), max_chars)
        case "tool.completed" | "tool.reconciled" if payload.get("result") is not None:
            yield Attribute.GEN_AI_TOOL_RESULT, _cut(_as_text(payload["result"]), max_chars)
        case _:
            pass


def _message(role: str, content: Any, max_chars: int, finish_reason: str | None = None) -> _Shown:
    """One message of the convention's JSON, which stays JSON when its text is cut."""
    text = _cut(content if isinstance(content, str) else _as_text(content), max_chars)
    message: dict[str, Any] = {"role": role, "parts": [{"type": _TEXT, "content": text.text}]}
    if finish_reason is not None:
        message["finish_reason"] = finish_reason
    return _Shown(_as_text([message]), text.is_cut)


def _cut(text: str, max_chars: int) -> _Shown:
    return _Shown(text, is_cut=False) if len(text) <= max_chars else _Shown(text[: max_chars - 1] + _MORE, is_cut=True)


def _as_text(value: Any) -> str:
    return encode(value).decode()
