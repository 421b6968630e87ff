"""The only module that spells or parses a subject.

Every subject starts with the root (default ``rl``). ``<v>`` is the run's virtual partition: two hex digits,
FNV-1a (32 bit) of the run id, modulo 256, computed by the publisher.
"""

from functools import lru_cache
from typing import NamedTuple

VIRTUAL_PARTITIONS = 256
DEFAULT_ROOT = "rl"


@lru_cache(maxsize=16_384)  # asked twice for every commit
def virtual_partition(run_id: str) -> int:
    """FNV-1a, 32 bit, of the run id, modulo 256."""
    value = 0x811C9DC5
    for byte in run_id.encode():
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value % VIRTUAL_PARTITIONS


class RunAddress(NamedTuple):
    """A run and its tenant, as found in a subject."""

    tenant_id: str
    run_id: str


class Subjects(NamedTuple):
    """Spells every subject under one root."""

    root: str = DEFAULT_ROOT

    def log(self, tenant_id: str, run_id: str) -> str:
        return f"{self.root}.log.{virtual_partition(run_id):02x}.{tenant_id}.{run_id}"

    def view(self, tenant_id: str, run_id: str) -> str:
        return f"{self.root}.view.{virtual_partition(run_id):02x}.{tenant_id}.{run_id}"

    def live(self, tenant_id: str, run_id: str) -> str:
        return f"{self.root}.live.{tenant_id}.{run_id}"

    def signal(self, tenant_id: str, type_: str) -> str:
        """`type_` is ``<family>.<verb>``."""
        return f"{self.root}.signal.{tenant_id}.{type_}"

    def command(self, tenant_id: str, run_id: str) -> str:
        return f"{self.root}.cmd.{virtual_partition(run_id):02x}.{tenant_id}.{run_id}"

    def outcome(self, tenant_id: str, command_id: str) -> str:
        """Core only: a wake-up for whoever waits; the ledger is the record."""
        return f"{self.root}.outcome.{tenant_id}.{command_id}"

    def work(self, tenant_id: str, pool: str) -> str:
        return f"{self.root}.work.{tenant_id}.{pool}"

    def tenant_of_work(self, subject: str) -> str:
        """Whose run lies under a work subject."""
        return subject.rsplit(".", 2)[1]

    def audit(self, tenant_id: str, category: str) -> str:
        return f"{self.root}.audit.{tenant_id}.{category}"

    def intake(self, tenant_id: str, service: str) -> str:
        """What a service reports to the audit and no other stream holds: refusals of access."""
        return f"{self.root}.intake.{tenant_id}.{service}"

    def dead(self, service: str, tenant_id: str) -> str:
        return f"{self.root}.dead.{service}.{tenant_id}"

    def preview_raw(self, tenant_id: str, run_id: str) -> str:
        return f"{self.root}.preview.raw.{tenant_id}.{run_id}"

    def preview_view(self, tenant_id: str, run_id: str) -> str:
        return f"{self.root}.preview.view.{tenant_id}.{run_id}"

    def service(self, name: str, verb: str) -> str:
        """Request and reply: what an operator asks a service (`ping`, `rebuild`)."""
        return f"{self.root}.svc.{name}.{verb}"

    def all_of(self, family: str) -> str:
        """Every subject of a family: ``log``, ``view``, ``live``, ``signal``, ``preview.raw`` and so on."""
        return f"{self.root}.{family}.>"

    def partitions_of(self, family: str, index: int, count: int) -> list[str]:
        """What stream `index` of `count` owns of a partitioned family: a range of virtual partitions."""
        if count == 1:
            return [f"{self.root}.{family}.>"]
        return [f"{self.root}.{family}.{v:02x}.>" for v in range(VIRTUAL_PARTITIONS)
                if stream_index(v, count) == index]  # fmt: skip

    def run_of(self, subject: str) -> RunAddress:
        """The run named by the last two tokens of a log, view, live, command or preview subject."""
        _, tenant_id, run_id = subject.rsplit(".", 2)
        return RunAddress(tenant_id, run_id)


def stream_index(partition: int, count: int) -> int:
    """Which of `count` streams owns a virtual partition."""
    return partition * count // VIRTUAL_PARTITIONS
