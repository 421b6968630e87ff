"""Streams, buckets and durable consumers as data, with every bound. `runlane provision` makes the broker match.

Durability: `fsync` streams rest on the server's `sync_interval: always`; the others are derived from one of
them and are derived again when a power cut takes their tail, so they may skip it (`persist: async`, one
replica only).
"""

import re
from typing import Literal

from msgspec import Struct

from runlane_contracts.subjects import Subjects, stream_index, virtual_partition

_COMMAND_DURABLE = re.compile(r"run-supervisor-v1(-\d+-of-\d+)?")

DAY_S = 86_400.0
MIB = 1024 * 1024
GIB = 1024 * MIB

UNSEALED_S = 7 * DAY_S
"""What is audited and not in a log lives so long: the audit sink may be down for as long without losing any of it."""

MAX_PAYLOAD_BYTES = 4 * MIB
"""`max_payload` of the server. A commit, with its headers, stays below it."""
MAX_COMMIT_BYTES = 2 * MIB
"""Facts of one commit, encoded. Larger content goes behind a `content_ref`."""


class Republish(Struct, frozen=True, kw_only=True):
    """What the server sends on after it stored a message."""

    source: str
    destination: str


class StreamSpec(Struct, frozen=True, kw_only=True):
    """One stream. `max_bytes` bounds the disk; `discard: new` refuses instead of forgetting."""

    name: str
    subjects: tuple[str, ...]
    description: str
    fsync: bool
    max_bytes: int
    max_age_s: float = 0.0  # 0: for ever
    discard: Literal["new", "old"] = "new"
    retention: Literal["limits", "workqueue"] = "limits"
    duplicate_window_s: float = 120.0
    max_consumers: int = 200
    max_msgs_per_subject: int = -1
    allow_direct: bool = True
    deny_delete: bool = False
    deny_purge: bool = False
    allow_rollup: bool = False
    allow_msg_ttl: bool = False
    """A message may carry an age of its own; buckets use it for the markers that a deletion leaves."""
    allow_atomic: bool = False
    """Several messages may be stored as one: all or none, with nothing in between."""
    republish: Republish | None = None


class ConsumerSpec(Struct, frozen=True, kw_only=True):
    """One durable consumer. Its name is its cursor: renaming it reads everything again."""

    durable: str
    stream: str
    service: str
    filter_subjects: tuple[str, ...]
    max_ack_pending: int
    ack_wait_s: float = 30.0
    ack_policy: Literal["explicit", "all"] = "explicit"
    pinned: bool = False
    """One active instance; the others stand by and take over."""
    pin_ttl_s: float = 5.0


class Layout(Struct, frozen=True, kw_only=True):
    """How many streams the partitioned families have, under which root, and how large they may grow."""

    root: str = "rl"
    log_streams: int = 1
    supervisor_partitions: int = 1
    """Over how many durables the commands are spread, by the virtual partitions of their runs."""
    replicas: int = 1
    max_bytes: int = 8 * GIB

    @property
    def subjects(self) -> Subjects:
        """Spells the subjects of this layout."""
        return Subjects(self.root)

    def _name(self, text: str) -> str:
        return f"{self.root.upper()}_{text}"

    def log_stream(self, run_id: str) -> str:
        """The LOG stream that owns a run."""
        return self._name(f"LOG_{stream_index(virtual_partition(run_id), self.log_streams)}")

    def view_stream(self, run_id: str) -> str:
        """The VIEW stream that owns a run."""
        return self._name(f"VIEW_{stream_index(virtual_partition(run_id), self.log_streams)}")

    def log_stream_at(self, index: int) -> str:
        return self._name(f"LOG_{index}")

    def view_stream_at(self, index: int) -> str:
        return self._name(f"VIEW_{index}")

    @property
    def signal_stream(self) -> str:
        return self._name("SIGNAL")

    @property
    def command_stream(self) -> str:
        return self._name("COMMAND")

    @property
    def work_stream(self) -> str:
        return self._name("WORK")

    @property
    def audit_stream(self) -> str:
        return self._name("AUDIT")

    @property
    def intake_stream(self) -> str:
        return self._name("INTAKE")

    @property
    def dead_stream(self) -> str:
        return self._name("DEAD")

    @property
    def lease_bucket(self) -> str:
        return self._name("LEASES")

    @property
    def ledger_bucket(self) -> str:
        return self._name("LEDGER")

    @property
    def timer_bucket(self) -> str:
        return self._name("TIMERS")

    @property
    def tenant_bucket(self) -> str:
        return self._name("TENANTS")

    @property
    def rollup_bucket(self) -> str:
        return self._name("ROLLUP")

    def streams(self) -> tuple[StreamSpec, ...]:
        """Every stream and bucket."""
        return (*self._log_streams(), *self._view_streams(), *self._single_streams(), *self._buckets())

    def _log_streams(self) -> tuple[StreamSpec, ...]:
        return tuple(
            StreamSpec(
                name=self.log_stream_at(index),
                subjects=tuple(self.subjects.partitions_of("log", index, self.log_streams)),
                description="The authoritative record: one message is one commit of one run.",
                fsync=True,
                max_bytes=self.max_bytes,
            )
            for index in range(self.log_streams)
        )

    def _view_streams(self) -> tuple[StreamSpec, ...]:
        return tuple(
            StreamSpec(
                name=self.view_stream_at(index),
                subjects=tuple(self.subjects.partitions_of("view", index, self.log_streams)),
                description="The same commits as people may see them. Derived from the log.",
                fsync=False,
                max_bytes=self.max_bytes,
                republish=Republish(
                    source=f"{self.root}.view.*.*.*",
                    destination=f"{self.root}.live.{{{{wildcard(2)}}}}.{{{{wildcard(3)}}}}",
                ),
            )
            for index in range(self.log_streams)
        )

    def _single_streams(self) -> tuple[StreamSpec, ...]:
        every = self.subjects.all_of
        return (
            StreamSpec(
                name=self.signal_stream, subjects=(every("signal"),), fsync=False, discard="old",
                description="One fact without its content, for other services. Derived from the log.",
                max_bytes=self.max_bytes // 4, max_age_s=14 * DAY_S, max_consumers=500,
            ),
            StreamSpec(
                name=self.command_stream, subjects=(every("cmd"),), fsync=True,
                description="Commands on their way to the supervisor.",
                max_bytes=self.max_bytes // 8, max_age_s=UNSEALED_S,
            ),
            StreamSpec(
                name=self.work_stream, subjects=(every("work"),), fsync=True, retention="workqueue",
                description="Runs to execute, by tenant and pool.", max_bytes=self.max_bytes // 8,
                max_consumers=5000,  # one for each pool of each tenant
            ),
            StreamSpec(
                name=self.audit_stream, subjects=(every("audit"),), fsync=True,
                description="Sealed records of who did what.", max_bytes=self.max_bytes // 4,
                deny_delete=True, deny_purge=True, allow_atomic=True,
            ),
            StreamSpec(
                name=self.intake_stream, subjects=(every("intake"),), fsync=True,
                description="Refusals of access on their way into the audit.",
                max_bytes=self.max_bytes // 64, max_age_s=UNSEALED_S, duplicate_window_s=3600.0, deny_delete=True,
            ),
            StreamSpec(
                name=self.dead_stream, subjects=(every("dead"),), fsync=True, discard="old",
                description="What could not be processed, why, and where it came from.",
                max_bytes=self.max_bytes // 8, max_age_s=30 * DAY_S,
            ),
        )  # fmt: skip

    def _buckets(self) -> tuple[StreamSpec, ...]:
        return (
            self._bucket(self.lease_bucket, "Who drives which run, until when.", 0.0),
            self._bucket(self.ledger_bucket, "What became of each command.", UNSEALED_S),
            self._bucket(self.timer_bucket, "When the supervisor has to look at which run.", 0.0),
            self._bucket(self.tenant_bucket, "What each tenant may have of what all share.", 0.0),
            self._bucket(self.rollup_bucket, "Up to where the signals are counted, and what they came to.", 0.0),
        )

    def _bucket(self, name: str, description: str, max_age_s: float) -> StreamSpec:
        return StreamSpec(
            name=f"KV_{name}", subjects=(f"$KV.{name}.>",), description=description, fsync=True,
            max_bytes=self.max_bytes // 8, max_age_s=max_age_s, max_msgs_per_subject=1, deny_delete=True,
            allow_rollup=True, allow_msg_ttl=True,
        )  # fmt: skip

    def consumers(self) -> tuple[ConsumerSpec, ...]:
        """Every durable consumer of the product's own services."""
        return (
            *(
                ConsumerSpec(
                    durable=f"redaction-filter-v1-{index}", stream=self.log_stream_at(index),
                    service="redaction_filter",
                    filter_subjects=tuple(self.subjects.partitions_of("log", index, self.log_streams)),
                    max_ack_pending=4096, ack_policy="all", pinned=True, pin_ttl_s=2.0,
                )
                for index in range(self.log_streams)
            ),
            *(
                ConsumerSpec(
                    durable=f"projector-v1-{index}", stream=self.view_stream_at(index), service="projector",
                    filter_subjects=tuple(self.subjects.partitions_of("view", index, self.log_streams)),
                    max_ack_pending=4096, ack_policy="all", pinned=True, pin_ttl_s=2.0,
                )
                for index in range(self.log_streams)
            ),
            *(
                ConsumerSpec(
                    durable=f"run-supervisor-log-v1-{index}", stream=self.log_stream_at(index),
                    service="run_supervisor",
                    filter_subjects=tuple(self.subjects.partitions_of("log", index, self.log_streams)),
                    max_ack_pending=4096, ack_policy="all", pinned=True, pin_ttl_s=2.0,
                )
                for index in range(self.log_streams)
            ),
            *(
                ConsumerSpec(
                    durable=self._command_durable(index), pin_ttl_s=1.0, stream=self.command_stream,
                    service="run_supervisor",
                    filter_subjects=tuple(self.subjects.partitions_of("cmd", index, self.supervisor_partitions)),
                    max_ack_pending=1024, pinned=True,
                )
                for index in range(self.supervisor_partitions)
            ),
            *self._audit_consumers(),
            ConsumerSpec(
                durable="metrics-aggregator-v1", stream=self.signal_stream, service="metrics_aggregator",
                filter_subjects=(self.subjects.all_of("signal"),), max_ack_pending=4096, ack_policy="all",
                pinned=True,
            ),
        )  # fmt: skip

    def _audit_consumers(self) -> tuple[ConsumerSpec, ...]:
        """Everything the audit is made of."""
        every = self.subjects.all_of
        sources = (
            *(
                (f"log-v1-{index}", self.log_stream_at(index),
                 tuple(self.subjects.partitions_of("log", index, self.log_streams)))
                for index in range(self.log_streams)
            ),
            ("command-v1", self.command_stream, (every("cmd"),)),
            ("ledger-v1", f"KV_{self.ledger_bucket}", (f"$KV.{self.ledger_bucket}.>",)),
            ("intake-v1", self.intake_stream, (every("intake"),)),
        )  # fmt: skip
        return tuple(
            ConsumerSpec(
                durable=f"audit-sink-{name}", stream=stream, service="audit_sink", filter_subjects=subjects,
                max_ack_pending=4096, ack_policy="all", pinned=True,
            )
            for name, stream, subjects in sources
        )  # fmt: skip

    def subscriber_consumer(self, name: str, filter_subjects: tuple[str, ...] = ()) -> ConsumerSpec:
        """The durable of another service of the platform on the signals; by default on all of them.

        What a service has not fetched before the stream forgets it (age, or size) is lost for it.
        """
        return ConsumerSpec(
            durable=f"subscriber-{name}", stream=self.signal_stream, service="subscriber",
            filter_subjects=filter_subjects or (self.subjects.all_of("signal"),), max_ack_pending=1000,
        )  # fmt: skip

    def is_of_other_partitions(self, durable: str) -> bool:
        """Whether it is a cursor over the commands for another number of partitions than these.

        Nothing is lost with it: those of this number begin at the first command, and know what has an outcome.
        """
        name = _COMMAND_DURABLE.fullmatch(durable)
        return name is not None and durable not in {
            self._command_durable(index) for index in range(self.supervisor_partitions)
        }

    def _command_durable(self, index: int) -> str:
        # A cursor over other partitions is another cursor: one that was extended would skip what the others had left.
        count = self.supervisor_partitions
        return "run-supervisor-v1" if count == 1 else f"run-supervisor-v1-{index}-of-{count}"

    def pool_consumer(self, tenant_id: str, pool: str) -> ConsumerSpec:
        """The durable that the workers of one tenant's pool share.

        An invitation is answered as soon as the lease is taken; that of a worker that died first is not to wait long.
        """
        return ConsumerSpec(
            durable=f"pool-{tenant_id}_{pool}", stream=self.work_stream, service="worker",
            filter_subjects=(self.subjects.work(tenant_id, pool),), ack_wait_s=5.0, max_ack_pending=1000,
        )  # fmt: skip
