"""Checks a copy of RL_AUDIT, message by message, and names the first that is not as it was written. Pure.

Three things are looked at: each chain, by `Chains`; that the messages are without a gap, since nothing is ever deleted
from the stream; and that each lies where its content says.
"""

from typing import NamedTuple

from runlane.audit_sink.chain import ChainFault, Chains, Fault
from runlane_contracts.audit import PROGRESS, AuditRecord

UNKNOWN = "unknown"


class Kept(NamedTuple):
    """A message of the stream, as it lies there or in an export."""

    seq: int
    subject: str
    progress: str
    data: bytes


class StreamCheck:
    """`take` every message in order, then `finish`. `tenant_id`: only that chain was kept, gaps mean nothing."""

    def __init__(self, chains: Chains, *, tenant_id: str | None = None) -> None:
        self._chains = chains
        self._tenant_id = tenant_id
        self._next_seq = 1
        self._missing = 0
        self._last: dict[str, str] = {}

    def take(self, message: Kept) -> AuditRecord:
        """The next one. Raises ChainFault."""
        where = f"stream sequence {message.seq}"
        if message.seq < self._next_seq:
            raise ChainFault(Fault(UNKNOWN, 0, where, "it comes again"))
        if message.seq > self._next_seq and self._tenant_id is None:
            # Which record is gone is seen by the chain it is missing in, unless it was that chain's last.
            self._missing = self._missing or self._next_seq
        self._next_seq = message.seq + 1
        _, _, rest = message.subject.partition(".audit.")
        tenant_id, _, category = rest.partition(".")
        record = self._chains.take(tenant_id, message.data, where, progress=message.progress)
        if record.category != category:
            raise ChainFault(Fault(tenant_id, record.sequence, where, f"it is no {category} record"))
        return record

    def missing(self, last_seq: int) -> int:
        """The first stream sequence up to `last_seq` that did not come; 0: all did."""
        return self._missing or (self._next_seq if self._next_seq <= last_seq else 0)

    def finish(self, last_seq: int) -> None:
        """Nothing follows; the stream is said to end at `last_seq`. Raises ChainFault."""
        if self._tenant_id is not None:
            return
        missing = self.missing(last_seq)
        if missing:
            raise ChainFault(Fault(UNKNOWN, 0, f"stream sequence {missing}", "it is missing: the last of its chain"))


def kept(seq: int, subject: str, headers: dict[str, str], data: bytes) -> Kept:
    """Of a stored message."""
    return Kept(seq, subject, headers.get(PROGRESS, ""), data)
