"""Whose a lease epoch of a run was: what `run.leased` in its log says, and nothing that a worker says of itself."""

from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from runlane.audit_sink.records import LEASE_EPOCH, Entries, SourceMessage, safe
from runlane.kernel.direct import Page
from runlane_contracts import events
from runlane_contracts.codec import decode_commit
from runlane_contracts.envelope import Actor

MAX_RUNS: Final = 20_000
_MARK: Final = events.RunLeased.TYPE.encode()


class LogPages(Protocol):
    """How a run's log is read; see `DirectReader`."""

    def pages(self, stream: str, subject: str, start_seq: int = 1) -> AsyncIterator[Page]: ...


class Owners:
    """The workers of the runs seen last; of others their log is read. The same log always gives the same names."""

    def __init__(self, log: LogPages) -> None:
        self._log = log
        self._runs: OrderedDict[str, dict[str, str]] = OrderedDict()  # subject → actor id of an epoch → worker

    def forget(self) -> None:
        """Another sink was active: what it heard was not heard here."""
        self._runs.clear()

    async def named(self, message: SourceMessage, entries: Entries) -> Entries:
        """The entries of a commit, with the worker in the name of each owner. Raises Retryable."""
        if message.subject in self._runs:
            _learn(self._runs[message.subject], message.data)
        if not any(_is_owner(entry.actor) for entry in entries):
            return entries
        workers = await self._workers(message)
        return [
            replace(entry, actor=Actor(kind="agent", id=f"{workers[entry.actor.id]}@{entry.actor.id}"))
            if _is_owner(entry.actor) and entry.actor.id in workers
            else entry
            for entry in entries
        ]

    async def _workers(self, message: SourceMessage) -> dict[str, str]:
        subject = message.subject
        known = self._runs.get(subject)
        if known is None:
            known, is_whole = await self._read(message)
            if not is_whole:  # a replica is behind: it is asked again the next time
                return known
            self._runs[subject] = known
            if len(self._runs) > MAX_RUNS:
                self._runs.popitem(last=False)
        self._runs.move_to_end(subject)
        return known

    async def _read(self, message: SourceMessage) -> tuple[dict[str, str], bool]:
        """Up to the message: what comes after it is learned when it comes. And whether it got there."""
        workers: dict[str, str] = {}
        async for page in self._log.pages(message.stream, message.subject):
            for one in page.messages:
                if one.seq <= message.seq:
                    _learn(workers, one.data)
                if one.seq >= message.seq:
                    return workers, True
        return workers, False


def _learn(workers: dict[str, str], data: bytes) -> None:
    if _MARK not in data:
        return
    try:
        facts = decode_commit(data).facts
    except (msgspec.MsgspecError, RecursionError):
        return
    for fact in facts:
        if fact.type != events.RunLeased.TYPE or fact.lease_epoch:
            continue
        try:
            leased = events.decode_payload(fact.type, fact.payload)
        except (msgspec.MsgspecError, RecursionError):
            continue
        if isinstance(leased, events.RunLeased):
            workers.setdefault(f"{LEASE_EPOCH}{leased.lease_epoch}", safe(leased.worker_id))


def _is_owner(actor: Actor) -> bool:
    return actor.kind == "agent" and actor.id.startswith(LEASE_EPOCH)
