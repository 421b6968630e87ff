"""The preview lane's way through the filter: raw fragments in, masked fragments out, in order, never waited for.

`PreviewMasker` is pure. It keeps a little text per preview, so that a secret split over fragments is found, within
bounds of number and bytes; what it forgets first is what was quiet longest. A fragment whose text is held back is
not lost: its `preview_seq` goes on in the next one's `coalesced`. `PreviewFilter` is the shell around it.
"""

import asyncio
import base64
import binascii
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
from msgspec import UNSET

from runlane.kernel.errors import KernelError
from runlane.kernel.preview_bus import PreviewInbox
from runlane.masking.masker import masked_id, walk_value
from runlane.masking.scanner import Scanner
from runlane.redaction_filter.preview_text import PreviewText
from runlane_contracts.codec import decode_preview_batch, encode
from runlane_contracts.ids import is_id, is_tenant
from runlane_contracts.previews import Coalesced, Preview, PreviewBatch
from runlane_contracts.subjects import RunAddress, Subjects
from runlane_contracts.telemetry import LogEvent

log = logging.getLogger(__name__)

STATE_OVERHEAD_BYTES = 512
MAX_PREVIEWS = 20_000
MAX_STATE_BYTES = 16 * 1024 * 1024
MAX_KNOWN_RUNS = 100_000
_PASS_ON_EVERY = 32
_NO_LOSSES = frozenset({"received", "shown", "held", "stood_by"})


@dataclass(slots=True)
class PreviewFilterCounts:
    """Fragments since the start, as they came in. `held` is how many wait now; every loss has its own name."""

    received: int = 0
    shown: int = 0
    fenced: int = 0
    repeated: int = 0
    invalid: int = 0
    forgotten: int = 0
    unsent: int = 0
    stood_by: int = 0


class LeaseEpochs:
    """The highest lease epoch seen of each run, of the runs that were seen last."""

    def __init__(self, *, max_runs: int = MAX_KNOWN_RUNS) -> None:
        self._max_runs = max_runs
        self._epochs: OrderedDict[RunAddress, int] = OrderedDict()

    def note(self, run: RunAddress, lease_epoch: int) -> None:
        """A lease with this epoch was given."""
        self._epochs[run] = max(lease_epoch, self._epochs.get(run, 0))
        self._epochs.move_to_end(run)
        if len(self._epochs) > self._max_runs:
            self._epochs.popitem(last=False)

    def forget(self) -> None:
        """Nothing is known any more."""
        self._epochs.clear()

    def of(self, run: RunAddress) -> int | None:
        """The highest, or None if nothing is known."""
        return self._epochs.get(run)


class _State:
    """What is kept of one preview."""

    __slots__ = ("held", "last_seq", "lease_epoch", "size", "text", "truncated", "unchanged")

    def __init__(self, scanner: Scanner, lease_epoch: int) -> None:
        self.text = PreviewText(scanner)
        self.lease_epoch = lease_epoch
        self.last_seq = 0
        self.held: Coalesced | None = None  # fragments of which nothing was shown yet
        self.unchanged = True  # the text shown is the text received, so offsets still hold
        self.truncated = False
        self.size = STATE_OVERHEAD_BYTES


class PreviewMasker:
    """Masks the fragments of all runs."""

    def __init__(
        self,
        scanner: Scanner,
        leases: LeaseEpochs,
        *,
        max_previews: int = MAX_PREVIEWS,
        max_state_bytes: int = MAX_STATE_BYTES,
    ) -> None:
        self.counts = PreviewFilterCounts()
        self._scanner = scanner
        self._leases = leases
        self._max_previews = max_previews
        self._max_state_bytes = max_state_bytes
        self._states: OrderedDict[tuple[RunAddress, str], _State] = OrderedDict()
        self._state_bytes = 0

    def batch(self, run: RunAddress, body: bytes) -> PreviewBatch | None:
        """What may be shown of a message on a run's preview subject; None if nothing of it may be shown now."""
        try:
            batch = decode_preview_batch(body)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            self.counts.invalid += 1
            return None
        sources = sum(_sources(preview) for preview in batch.previews)
        self.counts.received += sources
        if (batch.tenant_id, batch.run_id) != run:
            self.counts.invalid += sources
            return None
        has_candidates = self._scanner.has_candidates(body)
        shown = []
        for preview in batch.previews:
            kept = self._one(run, preview)
            if kept is not None:
                shown.append(self._with_masked_names(kept) if has_candidates else kept)
        self._evict()
        return PreviewBatch(tenant_id=run.tenant_id, run_id=run.run_id, previews=tuple(shown)) if shown else None

    @property
    def held(self) -> int:
        """Previews of which something waits for a decision."""
        return sum(1 for state in self._states.values() if state.held is not None)

    def _one(self, run: RunAddress, preview: Preview) -> Preview | None:
        sources = _sources(preview)
        if not _is_ours(preview, run):
            self.counts.invalid += sources
            return None
        if preview.lease_epoch < (self._leases.of(run) or 0):
            self.counts.fenced += sources
            return None
        key = (run, preview.preview_id)
        state = self._state(key, preview)
        if preview.preview_seq <= state.last_seq:
            self.counts.repeated += sources
            return None
        after_gap = preview.first_seq > state.last_seq + 1
        if after_gap:
            self._skip(state)
            state.held = None  # it is among what the receiver sees missing
        state.last_seq = preview.preview_seq
        if preview.fate is not None:
            self._state_bytes -= self._states.pop(key).size
            return self._accounted(state, preview, None)
        try:
            data = self._data(state, preview)
        except (binascii.Error, ValueError, msgspec.MsgspecError, RecursionError):
            self._skip(state)  # unreadable: as good as missing
            data = None
        self._measure(state)
        if data is None and after_gap:
            data = ""  # says at once that something is missing; with the next word it might never be said
        if data is None and preview.data is not None:
            state.held = _joined(state.held, preview, truncated=state.truncated)
            return None
        return self._accounted(state, preview, data)

    def _state(self, key: tuple[RunAddress, str], preview: Preview) -> _State:
        state = self._states.get(key)
        if state is not None and preview.first_seq == 1 and preview.lease_epoch > state.lease_epoch:
            self._state_bytes -= self._states.pop(key).size  # a new owner begins it anew
            state = None
        if state is None:
            state = self._states[key] = _State(self._scanner, preview.lease_epoch)
            self._state_bytes += state.size
        self._states.move_to_end(key)
        return state

    def _skip(self, state: _State) -> None:
        """The text has a hole here."""
        state.text.skip()
        state.unchanged = False
        state.truncated = True

    def _data(self, state: _State, preview: Preview) -> Any:
        """What may be shown of a fragment's data; None: nothing yet."""
        match preview.operation:
            case "append" if isinstance(preview.data, str):
                return self._appended(state, preview.data, preview.encoding)
            case "replace" if isinstance(preview.data, str):
                self._restart(state)
                shown = self._appended(state, preview.data, preview.encoding)
                return "" if shown is None else shown
            case "append":
                return self._whole(preview.data)
            case _:
                self._restart(state)
                return self._whole(preview.data, preview.encoding)

    def _appended(self, state: _State, data: str, encoding: str | None) -> str | None:
        raw = base64.b64decode(data, validate=True) if encoding == "base64" else data.encode()
        shown = state.text.feed(raw)
        state.unchanged = state.unchanged and shown == raw
        state.truncated = state.truncated or state.text.is_sealed
        if not shown and raw:
            return None
        return base64.b64encode(shown).decode() if encoding == "base64" else shown.decode()

    def _restart(self, state: _State) -> None:
        state.text = PreviewText(self._scanner)
        state.unchanged, state.truncated = True, False

    def _whole(self, data: Any, encoding: str | None = None) -> Any:
        """Data that stands for itself: every string in it is cut where it may be the beginning of a secret."""
        if encoding == "base64" and isinstance(data, str):
            return base64.b64encode(PreviewText(self._scanner).feed(base64.b64decode(data, validate=True))).decode()
        return walk_value(data, self._cut)

    def _cut(self, text: str) -> str:
        return PreviewText(self._scanner).feed(text.encode()).decode()

    def _accounted(self, state: _State, preview: Preview, data: Any) -> Preview:
        coalesced = preview.coalesced
        if state.held is not None or (state.truncated and preview.fate is None):
            coalesced = _joined(state.held, preview, truncated=state.truncated)
        self.counts.shown += coalesced.source_count if coalesced is not None else 1
        state.held = None
        state.truncated = state.text.is_sealed or state.text.is_after_gap
        return msgspec.structs.replace(
            preview,
            data=data,
            coalesced=coalesced,
            offset=preview.offset if state.unchanged else None,
            tenant_id=UNSET,
            run_id=UNSET,
        )

    def _with_masked_names(self, preview: Preview) -> Preview:
        """Ids with a secret in them become the ids that the view gives them."""

        def name(text: str) -> str:
            return masked_id(text) if self._scanner.spans(text.encode()) else text

        subject = msgspec.structs.replace(preview.subject, kind=name(preview.subject.kind), id=name(preview.subject.id))
        encoding = preview.encoding and name(preview.encoding)
        return msgspec.structs.replace(preview, preview_id=name(preview.preview_id), subject=subject, encoding=encoding)

    def _measure(self, state: _State) -> None:
        size = STATE_OVERHEAD_BYTES + state.text.size
        self._state_bytes += size - state.size
        state.size = size

    def _evict(self) -> None:
        while len(self._states) > self._max_previews or self._state_bytes > self._max_state_bytes:
            _, state = self._states.popitem(last=False)
            self._state_bytes -= state.size
            if state.held is not None:
                self.counts.forgotten += state.held.source_count


def _is_ours(preview: Preview, run: RunAddress) -> bool:
    return (preview.tenant_id is UNSET or preview.tenant_id == run.tenant_id) and (
        preview.run_id is UNSET or preview.run_id == run.run_id
    )


def _sources(preview: Preview) -> int:
    return preview.coalesced.source_count if preview.coalesced is not None else 1


def _joined(held: Coalesced | None, preview: Preview, *, truncated: bool) -> Coalesced:
    own = preview.coalesced
    return Coalesced(
        first_seq=held.first_seq if held is not None else preview.first_seq,
        last_seq=preview.preview_seq,
        source_count=(held.source_count if held is not None else 0) + _sources(preview),
        truncated=truncated or bool(own and own.truncated) or bool(held and held.truncated),
    )


Send = Callable[[str, bytes], Awaitable[None]]
FindEpoch = Callable[[RunAddress], Awaitable[int | None]]
"""The lease epoch of a run of which the log feed has not shown one; Retryable when it cannot be told."""


class PreviewFilter:
    """Takes messages from an inbox and sends what may be shown of them."""

    def __init__(
        self, inbox: PreviewInbox, masker: PreviewMasker, leases: LeaseEpochs, subjects: Subjects,
        *, send: Send, find_epoch: FindEpoch, is_active: Callable[[], bool] = lambda: True,
        on_shown: Callable[[RunAddress], None] = lambda _run: None,
    ) -> None:  # fmt: skip
        self._inbox = inbox
        self._masker = masker
        self._leases = leases
        self._subjects = subjects
        self._send = send
        self._find_epoch = find_epoch
        self._is_active = is_active
        self._on_shown = on_shown

    def counts(self) -> dict[str, int]:
        """Fragments by what became of them, and messages that gave way in the inbox."""
        return {**asdict(self._masker.counts), "held": self._masker.held, "dropped_messages": self._inbox.dropped}

    def losses(self) -> dict[str, int]:
        """Those of them that will not be shown."""
        return {name: count for name, count in self.counts().items() if name not in _NO_LOSSES}

    async def run(self) -> None:
        """Until cancelled."""
        count = 0
        async for subject, body in self._inbox:
            await self._pass_on(subject, body)
            count += 1
            if count % _PASS_ON_EVERY == 0:
                await asyncio.sleep(0)  # a flood of previews leaves room for facts

    async def _pass_on(self, subject: str, body: bytes) -> None:
        run = self._subjects.run_of(subject)
        if not (is_tenant(run.tenant_id) and is_id(run.run_id)):
            self._masker.counts.invalid += 1
            return
        if self._leases.of(run) is None:
            await self._learn(run)
        batch = self._masker.batch(run, body)
        if batch is None:
            return
        if not self._is_active():
            # Whoever stands by reads along, so that it can take over in the middle of a word.
            self._masker.counts.stood_by += self._take_back(batch)
            return
        try:
            await self._send(self._subjects.preview_view(*run), encode(batch))
            self._on_shown(run)
        except Exception as exc:  # noqa: BLE001 - a preview that cannot be sent is lost, and counted, whatever the cause
            self._masker.counts.unsent += self._take_back(batch)
            log.debug("previews not sent: %s", exc, extra={"event": LogEvent.PREVIEWS_DROPPED})

    def _take_back(self, batch: PreviewBatch) -> int:
        """How many fragments were not shown after all."""
        sources = sum(_sources(preview) for preview in batch.previews)
        self._masker.counts.shown -= sources
        return sources

    async def _learn(self, run: RunAddress) -> None:
        try:
            self._leases.note(run, await self._find_epoch(run) or 0)
        except KernelError as exc:
            log.debug("lease epoch not known: %s", exc)
