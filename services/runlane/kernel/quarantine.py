"""What to make of a log message that is not what it should be, so that its run stays gapless and others flow.

`examine` never fails. A fact that is no good becomes ``log.quarantined`` under its own `sequence`; a message of
which nothing can be read becomes as many of them as its headers say it held, or one. A type this code does not
know is no fault. Reasons are fixed phrases: what was wrong with a secret must not spell it.
"""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Raw, Struct

from runlane.kernel.well_formed import has_good_ids, is_good_payload
from runlane_contracts import events
from runlane_contracts.classification import Classification
from runlane_contracts.codec import encode
from runlane_contracts.commands import derived_id
from runlane_contracts.envelope import Actor, Fact
from runlane_contracts.headers import FIRST_SEQUENCE, LAST_SEQUENCE
from runlane_contracts.ids import is_id
from runlane_contracts.lean import decode_lean_commit, decode_lean_fact
from runlane_contracts.lifecycle import MAX_FACTS_PER_COMMIT
from runlane_contracts.subjects import RunAddress

ACTOR = Actor(kind="service", id="redaction_filter")
MAX_TYPE_CHARS = 128
_TYPE = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)+")
_UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)


class Fault(StrEnum):
    """Why a fact was quarantined."""

    UNDECODABLE = "the log message cannot be decoded"
    ENVELOPE = "the envelope does not fit the contract"
    TYPE_NAME = "the type is not a dotted name"
    PAYLOAD = "the payload does not fit its type"
    FOREIGN = "tenant or run differ from the subject"
    SEQUENCE = "the sequence is not its place in the commit"
    MISSING = "missing from the log"
    REPEATED = "the sequence was written before"
    UNMASKABLE = "the payload cannot be searched for secrets"
    TOO_LARGE = "too large to be shown"
    UNADDRESSED = "the subject names no run"


class Origin(Struct, frozen=True):
    """Where in the log a message lies, whose it is by its subject, when it was stored."""

    epoch: str
    stream_seq: int
    run: RunAddress
    recorded_at: str


class Finding(Struct, frozen=True):
    """One fault, for the dead letter. `event_id` as far as it could be read."""

    sequence: int
    fault: Fault
    event_id: str | None = None


class Examined(Struct, frozen=True):
    """A commit in which every fact is one that readers can take. Empty when everything in it was a repeat."""

    commit_id: str
    first_sequence: int
    facts: tuple[Fact, ...]
    findings: tuple[Finding, ...] = ()

    @property
    def last_sequence(self) -> int:
        """The `sequence` of the last fact."""
        return self.first_sequence + len(self.facts) - 1


def examine(body: bytes, headers: Mapping[str, str], origin: Origin, *, head: int | None) -> Examined:
    """Judge one log message. `head` is the run's last sequence in the view; None: the view has nothing of it."""
    try:
        commit = decode_lean_commit(body)
        if not body.isascii():
            body.decode()  # what is skipped unread while decoding may still be no text
    except _UNREADABLE:
        return _salvage(body, headers, origin, head)
    if (commit.tenant_id, commit.run_id) != origin.run or not _starts_right(commit.first_sequence, head):
        return _salvage(body, headers, origin, head)
    findings: list[Finding] = []
    is_shallow = body.count(b"{") + body.count(b"[") <= events.MAX_NESTING
    for sequence, fact in enumerate(commit.facts, commit.first_sequence):
        fault = fault_of(fact, origin.run, sequence, is_shallow=is_shallow)
        if fault is not None:
            findings.append(Finding(sequence, fault, fact.event_id if is_id(fact.event_id) else None))
    commit_id = _commit_id(commit.commit_id, origin)
    if not findings:
        return Examined(commit_id, commit.first_sequence, commit.facts)
    return replaced(Examined(commit_id, commit.first_sequence, commit.facts), findings, origin)


def replaced(examined: Examined, findings: Sequence[Finding], origin: Origin) -> Examined:
    """The commit with the facts at fault taken out of it, each under its sequence."""
    facts = list(examined.facts)
    for finding in findings:
        facts[finding.sequence - examined.first_sequence] = quarantined(
            origin, finding.sequence, finding.fault, finding.event_id
        )
    return Examined(examined.commit_id, examined.first_sequence, tuple(facts), (*examined.findings, *findings))


def fault_of(fact: Fact, run: RunAddress, sequence: int, *, is_shallow: bool = False) -> Fault | None:
    """What is wrong with a fact at a place, if anything. Its ids need not have been checked."""
    if fact.tenant_id != run.tenant_id or fact.run_id != run.run_id:
        return Fault.FOREIGN
    if fact.sequence != sequence:
        return Fault.SEQUENCE
    if fact.type not in events.PAYLOADS and (len(fact.type) > MAX_TYPE_CHARS or not _TYPE.fullmatch(fact.type)):
        return Fault.TYPE_NAME
    if not has_good_ids(fact):
        return Fault.ENVELOPE
    try:
        return None if is_good_payload(fact.type, fact.payload, is_shallow=is_shallow) else Fault.PAYLOAD
    except _UNREADABLE:
        return Fault.PAYLOAD


def quarantined(origin: Origin, sequence: int, fault: Fault, event_id: str | None = None) -> Fact:
    """What stands in the view in the place of a fact that is no good. The same place gives the same bytes."""
    payload = events.LogQuarantined(
        reason=fault.value, event_id=event_id if event_id is not None and is_id(event_id) else None
    )
    return Fact(
        event_id=derived_id("evt", "quarantined", origin.epoch, str(origin.stream_seq), str(sequence)),
        type=payload.TYPE,
        schema_version=payload.VERSION,
        tenant_id=origin.run.tenant_id,
        run_id=origin.run.run_id,
        sequence=sequence,
        lease_epoch=0,
        actor=ACTOR,
        occurred_at=origin.recorded_at,
        classification=Classification.INTERNAL,
        payload=Raw(encode(payload)),
    )


# --- the slow way: something is wrong, take what can be taken -----------------------------------------------


class _Loose(Struct, frozen=True):
    """A commit of which nothing is taken for granted."""

    commit_id: Any = None
    tenant_id: Any = None
    run_id: Any = None
    first_sequence: Any = None
    facts: list[Raw] | None = None


class _Named(Struct, frozen=True):
    event_id: Any = None


_LOOSE = msgspec.json.Decoder(_Loose)
_NAMED = msgspec.json.Decoder(_Named)
_NO_FACT = Raw(b"null")


def _starts_right(first: int, head: int | None) -> bool:
    return first >= 1 if head is None else first == head + 1


def _salvage(body: bytes, headers: Mapping[str, str], origin: Origin, head: int | None) -> Examined:
    stated = _loosely(body)
    ours = (stated.tenant_id, stated.run_id) == origin.run and stated.facts is not None
    facts: list[Fact] = []
    findings: list[Finding] = []
    first = _stated_first(stated) if ours else None
    expected = _expected(first, headers, head)
    # Only what is this run's own says where it stands; anything else takes the next place.
    first = first or expected
    if expected < first <= expected + MAX_FACTS_PER_COMMIT:
        for sequence in range(expected, first):
            facts.append(quarantined(origin, sequence, Fault.MISSING))
            findings.append(Finding(sequence, Fault.MISSING))
    elif first > expected:
        expected = first  # too many to stand in for: the hole stays, and readers notice it
        findings.append(Finding(first, Fault.MISSING))
    for sequence, raw in enumerate(_claims(stated, headers, expected), first):
        event_id = _event_id(raw)
        fact = Fault.REPEATED if sequence < expected else _judged(raw, origin, sequence, ours=ours)
        if isinstance(fact, Fault):
            findings.append(Finding(sequence, fact, event_id))
            fact = quarantined(origin, sequence, fact, event_id)
        if sequence >= expected:
            facts.append(fact)
    return Examined(_commit_id(stated.commit_id, origin), expected, tuple(facts), tuple(findings))


def _judged(raw: Raw, origin: Origin, sequence: int, *, ours: bool) -> Fact | Fault:
    if raw is _NO_FACT:
        return Fault.UNDECODABLE
    if not ours:
        return Fault.FOREIGN
    try:
        bytes(raw).decode()
        fact = decode_lean_fact(raw)
    except _UNREADABLE:
        return Fault.ENVELOPE
    return fault_of(fact, origin.run, sequence) or fact


def _loosely(body: bytes) -> _Loose:
    try:
        return _LOOSE.decode(body)
    except _UNREADABLE:
        return _Loose()


def _claims(stated: _Loose, headers: Mapping[str, str], expected: int) -> Sequence[Raw]:
    if stated.facts is not None:
        return stated.facts
    first, last = _number(headers.get(FIRST_SEQUENCE)), _number(headers.get(LAST_SEQUENCE))
    count = last - first + 1 if first == expected else 1
    return [_NO_FACT] * (count if 1 <= count <= MAX_FACTS_PER_COMMIT else 1)


def _event_id(raw: Raw) -> str | None:
    try:
        stated = _NAMED.decode(raw).event_id
    except _UNREADABLE:
        return None
    return stated if isinstance(stated, str) and is_id(stated) else None


def _stated_first(stated: _Loose) -> int | None:
    first = stated.first_sequence
    return first if type(first) is int and 1 <= first < 2**53 else None


def _expected(first: int | None, headers: Mapping[str, str], head: int | None) -> int:
    if head is not None:
        return head + 1
    return first or _number(headers.get(FIRST_SEQUENCE)) or 1


def _commit_id(stated: Any, origin: Origin) -> str:
    if isinstance(stated, str) and is_id(stated):
        return stated
    return derived_id("cmt", origin.epoch, str(origin.stream_seq))


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 16 else 0
