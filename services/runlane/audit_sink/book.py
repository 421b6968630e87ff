"""What the sealer knows of its output, and the records that come next. Pure."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from runlane.audit_sink import chain
from runlane.audit_sink.chain import SINK, Head
from runlane.audit_sink.progress import NOTHING, Place, Progress, Reached
from runlane.audit_sink.records import RECORDED, SourceMessage
from runlane_contracts.audit import AuditEntry, AuditRecord, Checkpoint, Target

MAX_HEADS = 50_000


class Signs(Protocol):
    """The sink's key."""

    @property
    def key_id(self) -> str: ...
    def sign(self, message: bytes) -> bytes: ...


class Unsigned(NamedTuple):
    """Records of one tenant that no signature covers yet."""

    first_seq: int
    """Where the first of them lies in the output."""
    since_s: float
    records: int


class Out(NamedTuple):
    """A record as it goes into the stream."""

    record: AuditRecord
    progress: str


@dataclass(slots=True)
class Book:
    """Where the output ends, how far each source is, the chains' heads, what waits for a signature."""

    last_seq: int = 0
    progress: Progress = NOTHING
    heads: "OrderedDict[str, Head]" = field(default_factory=OrderedDict)
    """Of the tenants seen last; others are read."""
    unsigned: dict[str, Unsigned] = field(default_factory=dict)

    def unknown(self, tenants: Iterable[str]) -> list[str]:
        """Of which tenants the head has to be read."""
        return [tenant for tenant in dict.fromkeys(tenants) if tenant not in self.heads]

    def note(self, tenant_id: str, head: Head) -> None:
        """The head of a chain, as it is stored."""
        self.heads[tenant_id] = head
        self.heads.move_to_end(tenant_id)

    def overdue(self, before_s: float) -> list[str]:
        """Whose records have waited for a signature since before then."""
        return [tenant for tenant, one in self.unsigned.items() if one.since_s <= before_s]

    def reached(self, stream: str, epoch: str) -> Reached:
        """How far this incarnation of a source is sealed."""
        place = self.progress.places.get(stream)
        return place.reached if place is not None and place.epoch == epoch else Reached()

    def forget_old_heads(self) -> None:
        """Keep memory bounded."""
        while len(self.heads) > MAX_HEADS:
            self.heads.popitem(last=False)

    def accept(self, draft: "Draft") -> None:
        """What was drafted is stored."""
        self.last_seq += len(draft.out)
        self.progress = draft.progress
        for tenant_id, head in draft.heads.items():
            self.note(tenant_id, head)
        self.unsigned = draft.unsigned


class Draft:
    """The next records, in order, on top of a book that stays as it is until they are stored.

    The book has to know the heads of all tenants it is about.
    """

    def __init__(self, book: Book, *, now_s: float, time: str, key: Signs, checkpoint_records: int) -> None:
        self.out: list[Out] = []
        self.heads: dict[str, Head] = {}
        self.unsigned = dict(book.unsigned)
        oldest = min((one.first_seq for one in book.unsigned.values()), default=book.last_seq + 1)
        self.progress = Progress(book.progress.places, oldest)
        self._book = book
        self._now_s = now_s
        self._time = time
        self._key = key
        self._checkpoint_records = checkpoint_records

    def message(self, message: SourceMessage, epoch: str, entries: Sequence[AuditEntry], most: int) -> bool:
        """What one message of a source says, but for what is sealed of it already; False: there is no room for all."""
        place = self.progress.places.get(message.stream)
        reached = place.reached if place is not None and place.epoch == epoch else Reached()
        begin = reached.left_of(message.seq, len(entries))
        for part, entry in enumerate(entries[begin:], begin + 1):
            if len(self.out) >= most:
                return False
            self.entry(entry, message.stream, epoch, Reached(message.seq, part if part < len(entries) else 0))
        if message.seq > reached.done_up_to:
            self.move(message.stream, epoch, Reached(message.seq))
        return True

    def entry(self, entry: AuditEntry, stream: str, epoch: str, reached: Reached) -> None:
        """One record, with which its source is that far."""
        self.move(stream, epoch, reached)
        self._seal(entry, None)
        waiting = self.unsigned.get(entry.tenant_id)
        first_seq, since_s, count = waiting or (self._book.last_seq + len(self.out), self._now_s, 0)
        self.unsigned[entry.tenant_id] = Unsigned(first_seq, since_s, count + 1)
        if count + 1 >= self._checkpoint_records:
            self.checkpoint(entry.tenant_id)

    def checkpoint(self, tenant_id: str) -> None:
        """Sign a tenant's chain as it is."""
        head = self._head(tenant_id)
        entry = AuditEntry(
            tenant_id=tenant_id, category="checkpoint", time=self._time, actor=SINK, action="audit.checkpoint",
            target=Target(kind="chain", id=str(head.sequence)), outcome=RECORDED, source_position="-",
        )  # fmt: skip
        self._seal(entry, chain.checkpoint_of(tenant_id, head, self._key.key_id, self._key.sign))
        self.unsigned.pop(tenant_id, None)

    def move(self, stream: str, epoch: str, reached: Reached) -> None:
        """A source is that far."""
        self.progress = self.progress.at(stream, Place(epoch, reached))

    def _head(self, tenant_id: str) -> Head:
        return self.heads[tenant_id] if tenant_id in self.heads else self._book.heads[tenant_id]

    def _seal(self, entry: AuditEntry, checkpoint: Checkpoint | None) -> None:
        progress = self.progress.text()
        record = chain.seal(entry, self._head(entry.tenant_id), progress, checkpoint)
        self.heads[entry.tenant_id] = Head(record.sequence, record.hash)
        self.out.append(Out(record, progress))
