"""From one log message, what the view and the signals say of it. Pure: the same log gives the same bytes.

The view gets exactly one message for every log message, whatever it holds; the signals one for every fact.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from runlane.kernel.quarantine import Examined, Fault, Finding, Origin, examine, fault_of, replaced
from runlane.masking.masker import Masker, Unreadable
from runlane.masking.rules import RULES_VERSION
from runlane.redaction_filter.signals import signal_body
from runlane_contracts import headers as names
from runlane_contracts.codec import encode, timestamp_of_ns
from runlane_contracts.envelope import Commit, Fact
from runlane_contracts.events import RunLeased, decode_payload
from runlane_contracts.ids import is_id, is_tenant
from runlane_contracts.streams import MAX_PAYLOAD_BYTES
from runlane_contracts.subjects import RunAddress, Subjects
from runlane_contracts.telemetry import LogEvent

log = logging.getLogger(__name__)

MAX_VIEW_BYTES = MAX_PAYLOAD_BYTES - 64 * 1024
"""Room is left for the headers."""
MAX_KNOWN_SUBJECTS = 50_000
NOBODY = RunAddress("-", "-")
"""Whose a log message is whose subject names no run."""

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

Headers = dict[str, str]


class LogMessage(NamedTuple):
    """A message as the LOG stream holds it. `time_ns`: when it was stored, since 1970."""

    subject: str
    seq: int
    time_ns: int
    data: bytes
    headers: Mapping[str, str]


class Out(NamedTuple):
    """A message to publish."""

    subject: str
    data: bytes
    headers: Headers


class Derived(NamedTuple):
    """What follows from one log message."""

    run: RunAddress
    first_sequence: int
    last_sequence: int
    view: Out
    signals: Sequence[Out]
    findings: Sequence[Finding]
    lease_epoch: int | None
    """The highest that a `run.leased` in it names."""


class Deriver:
    """Derives the messages of one LOG stream incarnation."""

    def __init__(self, masker: Masker, subjects: Subjects, epoch: str) -> None:
        self._masker = masker
        self._subjects = subjects
        self._epoch = epoch
        self._log_prefix = f"{subjects.root}.log."
        self._view_prefix = f"{subjects.root}.view."
        self._runs: dict[str, RunAddress] = {}
        self._second = (-1, "")

    def run_of(self, subject: str) -> RunAddress:
        """The run of a log subject; `NOBODY` if the subject is not exactly how that run's is spelled."""
        run = self._runs.get(subject)
        if run is None:
            if len(self._runs) >= MAX_KNOWN_SUBJECTS:
                self._runs.clear()
            run = self._runs[subject] = self._parsed(subject)
        return run

    def _parsed(self, subject: str) -> RunAddress:
        if subject.count(".") != 4:
            return NOBODY
        run = self._subjects.run_of(subject)
        if is_tenant(run.tenant_id) and is_id(run.run_id) and self._subjects.log(*run) == subject:
            return run
        return NOBODY

    def derive(self, message: LogMessage, run: RunAddress, head: int | None) -> Derived:
        """What the view and the signals say. `head`: the run's last sequence in the view, None if it has none."""
        position = f"{self._epoch}:{message.seq}"
        if run is NOBODY:
            return self._nothing(message, position)
        try:
            return self._derive(message, run, head, position)
        except Exception as exc:  # noqa: BLE001 - no message may stop the others, whatever the fault
            log.error(  # noqa: TRY400 - a traceback may quote what it is about
                "log message %d cannot be derived: %s", message.seq, type(exc).__name__,
                extra={"event": LogEvent.DELIVERY_BURIED},
            )  # fmt: skip
            return self._derive(message._replace(data=b""), run, head, position)

    def signals_of(self, commit: Commit, position: str) -> list[Out]:
        """The signals of a commit of the view."""
        return [self._signal(fact, position) for fact in commit.facts]

    def _derive(self, message: LogMessage, run: RunAddress, head: int | None, position: str) -> Derived:
        origin = Origin(self._epoch, message.seq, run, self._recorded_at(message.time_ns))
        examined = examine(message.data, message.headers, origin, head=head)
        examined = self._masked(message.data, examined, origin)
        examined, body = self._encoded(examined, origin)
        first, last = examined.first_sequence, examined.last_sequence
        view = Out(
            self._view_prefix + message.subject[len(self._log_prefix) :],
            body,
            _view_headers(position, first, last, _trace(message, examined)),
        )
        signals = [self._signal(fact, position) for fact in examined.facts]
        return Derived(run, first, last, view, signals, examined.findings, _lease_epoch(examined.facts))

    def _recorded_at(self, ns: int) -> str:
        """As `timestamp_of_ns`. Many messages are stored in one second."""
        second, rest = divmod(ns, 1_000_000_000)
        if self._second[0] != second:
            self._second = (second, timestamp_of_ns(ns)[:20])
        return f"{self._second[1]}{rest // 1000:06d}Z"

    def _masked(self, body: bytes, examined: Examined, origin: Origin) -> Examined:
        suspicious = self._masker.is_suspicious(body)
        if not suspicious and not examined.findings and not any(map(self._masker.needs_masking, examined.facts)):
            decoded: Sequence[Any] = examined.facts
            for fact in decoded:
                fact.recorded_at = origin.recorded_at  # they are lean ones, which may be changed
            return examined
        facts: list[Fact] = []
        faults: list[Finding] = []
        for fact in examined.facts:
            kept = fact
            if suspicious or self._masker.needs_masking(fact):
                try:
                    kept = self._masker.fact(fact)
                    fault = fault_of(kept, origin.run, fact.sequence)
                except Unreadable:
                    fault = Fault.UNMASKABLE
                if fault is not None:
                    faults.append(Finding(fact.sequence, Fault.UNMASKABLE))
            facts.append(msgspec.structs.replace(kept, recorded_at=origin.recorded_at))
        masked = Examined(examined.commit_id, examined.first_sequence, tuple(facts), examined.findings)
        return replaced(masked, faults, origin) if faults else masked

    def _encoded(self, examined: Examined, origin: Origin) -> tuple[Examined, bytes]:
        body = encode(_commit(examined, origin.run))
        if len(body) <= MAX_VIEW_BYTES:
            return examined, body
        smaller = self._without_content(examined)
        body = encode(_commit(smaller, origin.run))
        if len(body) <= MAX_VIEW_BYTES:
            return smaller, body
        every = [Finding(fact.sequence, Fault.TOO_LARGE) for fact in examined.facts]
        smaller = replaced(examined, every, origin)
        return smaller, encode(_commit(smaller, origin.run))

    def _without_content(self, examined: Examined) -> Examined:
        try:
            facts = tuple(self._masker.without_content(fact) for fact in examined.facts)
        except Unreadable:
            return examined
        return Examined(examined.commit_id, examined.first_sequence, facts, examined.findings)

    def _signal(self, fact: Fact, position: str) -> Out:
        sequence = str(fact.sequence)
        headers = {
            names.FIRST_SEQUENCE: sequence,
            names.LAST_SEQUENCE: sequence,
            names.LOG_POSITION: position,
            names.CE_SPECVERSION: "1.0",
            names.CE_ID: fact.event_id,
            names.CE_TYPE: fact.type,
            names.CE_SOURCE: f"/{fact.tenant_id}/runs/{fact.run_id}",
            names.CE_TIME: fact.occurred_at,
        }
        if fact.traceparent and _TRACEPARENT.fullmatch(fact.traceparent):
            headers[names.TRACEPARENT] = fact.traceparent
        return Out(self._subjects.signal(fact.tenant_id, fact.type), signal_body(fact), headers)

    def _nothing(self, message: LogMessage, position: str) -> Derived:
        # Kept apart by its empty list of facts: whoever reads the view passes over it.
        commit = Commit(commit_id="-", tenant_id=NOBODY.tenant_id, run_id=NOBODY.run_id, first_sequence=1, facts=())
        subject = self._view_prefix + message.subject[len(self._log_prefix) :]
        view = Out(subject, encode(commit), _view_headers(position, 1, 0, None))
        return Derived(NOBODY, 1, 0, view, (), (Finding(0, Fault.UNADDRESSED),), None)


def _commit(examined: Examined, run: RunAddress) -> Commit:
    return Commit(
        commit_id=examined.commit_id,
        tenant_id=run.tenant_id,
        run_id=run.run_id,
        first_sequence=examined.first_sequence,
        facts=examined.facts,
    )


def _view_headers(position: str, first: int, last: int, traceparent: str | None) -> Headers:
    headers = {
        names.FIRST_SEQUENCE: str(first),
        names.LAST_SEQUENCE: str(last),
        names.LOG_POSITION: position,
        names.RULES: RULES_VERSION,
    }
    if traceparent is not None:
        headers[names.TRACEPARENT] = traceparent
    return headers


def _trace(message: LogMessage, examined: Examined) -> str | None:
    stated = message.headers.get(names.TRACEPARENT) or (examined.facts[0].traceparent if examined.facts else None)
    return stated if stated and _TRACEPARENT.fullmatch(stated) else None


def _lease_epoch(facts: Sequence[Fact]) -> int | None:
    epochs = [
        payload.lease_epoch
        for fact in facts
        if fact.type == RunLeased.TYPE and isinstance(payload := decode_payload(fact.type, fact.payload), RunLeased)
    ]
    return max(epochs, default=None)
