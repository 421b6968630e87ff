"""Who may say and hear what on the broker: one user per service, each with the least that its work needs.

The server enforces it. An API request names its own reply subject and the server does not check that one, so
a user with any `$JS.API` right is a user of the platform; tenants have none. Each user listens to its own
inboxes only (`_INBOX_<user>.>`), so nobody reads another's answers. What is denied wins over what is allowed.
"""

from collections.abc import Iterable

from msgspec import Struct

from runlane_contracts.audit import PLATFORM
from runlane_contracts.streams import Layout


class BrokerUser(Struct, frozen=True, kw_only=True):
    """A user and its permissions. An empty `publish` means: nothing at all."""

    name: str
    description: str
    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    deny_publish: tuple[str, ...] = ()
    account: str = ""
    """Empty: the platform's. `SYSTEM_ACCOUNT`: the server's own, where it answers how it is."""

    @property
    def inbox_prefix(self) -> str:
        """What the user's client must use for its inboxes."""
        return inbox_prefix(self.name)


OPERATOR = "operator"
OBSERVER = "observer"
SUBSCRIBER = "subscriber"
BROKER_MONITOR = "broker_monitor"
CONTENT_READER = "content_reader"
BROKER_LOG = "broker_log"
API = "$JS.API"
SYSTEM_ACCOUNT = "SYS"
SERVER_STATES = "$SYS.REQ.SERVER.PING.VARZ"
"""Every server of a cluster answers with its counts."""


def inbox_prefix(user: str) -> str:
    """Where answers to a user go; no other user can listen there."""
    return f"_INBOX_{user}"


def broker_users(layout: Layout) -> tuple[BrokerUser, ...]:
    """Every user: of the platform's account, and the one that asks the servers how they are."""
    return (
        _command_gateway(layout),
        _run_supervisor(layout),
        _redaction_filter(layout),
        _projector(layout),
        _audit_sink(layout),
        _metrics_aggregator(layout),
        _edge_gateway(layout),
        _retention(layout),
        _worker(layout),
        _operator(layout),
        _observer(layout),
        _subscriber(layout),
        _broker_monitor(),
        _content_reader(layout),
        _broker_log(layout),
    )


def broker_user(layout: Layout, name: str) -> BrokerUser:
    """One of them by name. Raises KeyError."""
    return {user.name: user for user in broker_users(layout)}[name]


def _command_gateway(layout: Layout) -> BrokerUser:
    every = layout.subjects.all_of
    return _service(
        "command_gateway",
        "Accepts commands, and facts, leases and previews of producers that speak HTTP.",
        layout,
        publish=(
            every("cmd"), every("log"), every("preview.raw"),
            *_read(*_log(layout), *_buckets(layout), f"KV_{layout.tenant_bucket}"),
            *_write_bucket(layout.lease_bucket), *_write_bucket(layout.ledger_bucket),
            *_inform(layout.command_stream),
            *_read(layout.work_stream), f"{API}.STREAM.MSG.DELETE.{layout.work_stream}",
            layout.subjects.intake("*", "command_gateway"),
        ),
        subscribe=(every("outcome"),),
    )  # fmt: skip


def _run_supervisor(layout: Layout) -> BrokerUser:
    every = layout.subjects.all_of
    return _service(
        "run_supervisor",
        "Decides: applies commands, dispatches work, ends leases.",
        layout,
        publish=(
            every("log"), every("work"), every("outcome"), layout.subjects.service("run_supervisor", "share"),
            *_read(*_log(layout), *_buckets(layout), f"KV_{layout.timer_bucket}"),
            *_tail(*_log(layout), *_buckets(layout), f"KV_{layout.timer_bucket}"),
            *_write_bucket(layout.lease_bucket), *_write_bucket(layout.ledger_bucket),
            *_write_bucket(layout.timer_bucket),
            *_inform(layout.command_stream, layout.work_stream),
        ),
    )  # fmt: skip


def _redaction_filter(layout: Layout) -> BrokerUser:
    every = layout.subjects.all_of
    return _service(
        "redaction_filter",
        "The only one that writes what people and other services may read.",
        layout,
        publish=(
            every("view"), every("signal"), every("preview.view"),
            *_read(*_log(layout), *_view(layout), layout.signal_stream, f"KV_{layout.lease_bucket}"),
        ),
        subscribe=(every("preview.raw"),),
    )  # fmt: skip


def _projector(layout: Layout) -> BrokerUser:
    return _service(
        "projector",
        "Folds the view into the read store.",
        layout,
        publish=(*_read(*_view(layout)), *_tail(*_view(layout))),
    )


def _audit_sink(layout: Layout) -> BrokerUser:
    stream = layout.audit_stream
    return _service(
        "audit_sink",
        "The only one that writes the audit. Reads what it is made of by its own durables, and the broker's log.",
        layout,
        publish=(
            layout.subjects.all_of("audit"), *_read(stream), f"{API}.STREAM.MSG.GET.{stream}",
            *_read(*_log(layout)),  # who held a lease is said by the run's own log
            layout.subjects.intake(PLATFORM, "broker"),
        ),
        buries=False,
    )  # fmt: skip


def _metrics_aggregator(layout: Layout) -> BrokerUser:
    """Reads signals, and of every stream and consumer the counts; no content of any other stream."""
    bucket = layout.rollup_bucket
    return _service(
        "metrics_aggregator",
        "Counts what the signals say, and what the broker says of itself.",
        layout,
        publish=(
            *_read(f"KV_{bucket}"), *_write_bucket(bucket),
            f"{API}.STREAM.LIST", *_inform(layout.dead_stream),
            f"{API}.CONSUMER.INFO.*.*", f"{API}.CONSUMER.LIST.{layout.signal_stream}",
        ),
        buries=False,
    )  # fmt: skip


def _edge_gateway(layout: Layout) -> BrokerUser:
    every = layout.subjects.all_of
    return _service(
        "edge_gateway",
        "The clients' door: reads the view; of the log it learns the position only.",
        layout,
        publish=(
            *_read(*_view(layout)), *_tail(*_view(layout)), *_inform(*_log(layout)),
            layout.subjects.intake("*", "edge_gateway"),
        ),
        subscribe=(every("live"), every("preview.view")),
        buries=False,
    )  # fmt: skip


def _retention(layout: Layout) -> BrokerUser:
    """Nobody else can take messages out of the record. The subject to purge is in the body: it is the whole stream."""
    kept = (*_log(layout), *_view(layout))
    return _service(
        "retention",
        "Archives and erases finished runs: the only one that takes messages out of LOG, VIEW and COMMAND.",
        layout,
        publish=(
            layout.subjects.all_of("log"),
            *_read(*kept, layout.command_stream),
            *(
                f"{API}.{verb}.{stream}"
                for stream in (*kept, layout.command_stream)
                for verb in ("STREAM.PURGE", "STREAM.MSG.DELETE", "CONSUMER.LIST")
            ),
        ),
        buries=False,
    )  # fmt: skip


def _worker(layout: Layout) -> BrokerUser:
    every = layout.subjects.all_of
    return BrokerUser(
        name="worker",
        description="A worker of the platform: takes work and leases, states facts, follows its own runs.",
        publish=(
            f"{API}.INFO", every("log"), every("preview.raw"),
            *_read(*_log(layout), f"KV_{layout.lease_bucket}", f"KV_{layout.tenant_bucket}"),
            *_tail(*_log(layout)),
            *_write_bucket(layout.lease_bucket),
            *_inform(layout.work_stream),
            *_shared_pool(layout),
        ),
        subscribe=(_inbox("worker"),),
        deny_publish=_durables_of_others(layout, "worker"),
    )  # fmt: skip


def _operator(layout: Layout) -> BrokerUser:
    """Makes and repairs streams and consumers; sees positions, what people may see, and the dead letters."""
    return BrokerUser(
        name=OPERATOR,
        description="Provisions and examines. Writes no fact, reads no content of the log.",
        publish=(
            f"{API}.INFO", f"{API}.STREAM.NAMES", f"{API}.STREAM.LIST",
            *(f"{API}.STREAM.{verb}.*" for verb in ("CREATE", "UPDATE", "INFO", "DELETE")),
            *(f"{API}.CONSUMER.{verb}.*" for verb in ("NAMES", "LIST")),
            *(f"{API}.CONSUMER.{verb}.*.*" for verb in ("CREATE", "INFO", "DELETE", "UNPIN", "RESET")),
            f"{API}.CONSUMER.CREATE.*.*.>",
            *_read(*_view(layout), layout.signal_stream, layout.dead_stream, layout.audit_stream),
            *_read(f"KV_{layout.lease_bucket}", f"KV_{layout.tenant_bucket}"), *_write_bucket(layout.tenant_bucket),
            layout.subjects.all_of("svc"), layout.subjects.intake("*", OPERATOR),
        ),
        deny_publish=(f"{API}.STREAM.DELETE.{layout.audit_stream}",),
        subscribe=(_inbox(OPERATOR), layout.subjects.all_of("signal"), layout.subjects.all_of("live")),
    )  # fmt: skip


def _observer(layout: Layout) -> BrokerUser:
    return BrokerUser(
        name=OBSERVER,
        description="Another service that listens to signals and live views. Says nothing at all.",
        subscribe=(layout.subjects.all_of("signal"), layout.subjects.all_of("live"), _inbox(OBSERVER)),
    )


def _subscriber(layout: Layout) -> BrokerUser:
    """Shared by all of them: each keeps to its own durable. A service of the platform, see ADR 0010."""
    stream = layout.signal_stream
    return BrokerUser(
        name=SUBSCRIBER,
        description="Another service of the platform that must not miss a signal: works through its durable.",
        publish=(
            f"{API}.CONSUMER.INFO.{stream}.*", f"{API}.CONSUMER.MSG.NEXT.{stream}.*", f"$JS.ACK.{stream}.>",
        ),
        subscribe=(_inbox(SUBSCRIBER), layout.subjects.all_of("signal")),
        deny_publish=(*_durables_of_others(layout, SUBSCRIBER), *_answers_of_others(layout)),
    )  # fmt: skip


def _broker_monitor() -> BrokerUser:
    """In the server's own account, so it sees nothing of the platform's."""
    return BrokerUser(
        name=BROKER_MONITOR,
        description="Asks the servers how they are: connections, memory, slow consumers. No messages.",
        publish=(SERVER_STATES,),
        subscribe=(_inbox(BROKER_MONITOR),),
        account=SYSTEM_ACCOUNT,
    )


def _content_reader(layout: Layout) -> BrokerUser:
    """Apart from the user who counts, so that without this one's password no span can show content."""
    return BrokerUser(
        name=CONTENT_READER,
        description="Reads the view, for spans of tenants that want their content shown.",
        publish=tuple(_read(*_view(layout))),
        subscribe=(_inbox(CONTENT_READER),),
    )


def _broker_log(layout: Layout) -> BrokerUser:
    return _service(
        BROKER_LOG,
        "Beside a broker: says what its log says was refused.",
        layout,
        publish=(layout.subjects.intake(PLATFORM, "broker"),),
        buries=False,
    )


def _service(
    name: str,
    description: str,
    layout: Layout,
    *,
    publish: tuple[str, ...],
    subscribe: tuple[str, ...] = (),
    buries: bool = True,
) -> BrokerUser:
    own = [spec for spec in layout.consumers() if spec.service == name]
    return BrokerUser(
        name=name,
        description=description,
        publish=_unique(
            f"{API}.INFO",
            *publish,
            *(subject for spec in own for subject in _durable(spec.stream, spec.durable)),
            *((layout.subjects.dead(name, "*"),) if buries else ()),
            _inbox(OPERATOR),  # answers to what an operator asks
        ),
        subscribe=(*subscribe, layout.subjects.service(name, "*"), _inbox(name)),
        deny_publish=_durables_of_others(layout, name),
    )


def _unique(*subjects: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(subjects))


def _inbox(user: str) -> str:
    return f"{inbox_prefix(user)}.>"


def _log(layout: Layout) -> list[str]:
    return [layout.log_stream_at(index) for index in range(layout.log_streams)]


def _view(layout: Layout) -> list[str]:
    return [layout.view_stream_at(index) for index in range(layout.log_streams)]


def _buckets(layout: Layout) -> list[str]:
    return [f"KV_{layout.lease_bucket}", f"KV_{layout.ledger_bucket}"]


def _inform(*streams: str) -> Iterable[str]:
    """Positions and counts, no content."""
    return [f"{API}.STREAM.INFO.{stream}" for stream in streams]


def _read(*streams: str) -> Iterable[str]:
    """Content by direct get. The selector is in the body, so this is the whole stream."""
    for stream in streams:
        yield f"{API}.STREAM.INFO.{stream}"
        yield f"{API}.DIRECT.GET.{stream}"
        yield f"{API}.DIRECT.GET.{stream}.>"


def _tail(*streams: str) -> Iterable[str]:
    """A consumer with a generated name. A wildcard covers whole tokens, so names cannot be fenced by prefix."""
    for stream in streams:
        yield f"{API}.CONSUMER.CREATE.{stream}.*"
        yield f"{API}.CONSUMER.CREATE.{stream}.*.>"
        yield f"{API}.CONSUMER.MSG.NEXT.{stream}.*"
        yield f"{API}.CONSUMER.INFO.{stream}.*"
        yield f"{API}.CONSUMER.DELETE.{stream}.*"


def _durable(stream: str, durable: str) -> Iterable[str]:
    yield f"{API}.STREAM.INFO.{stream}"
    yield f"{API}.CONSUMER.CREATE.{stream}.{durable}"
    yield f"{API}.CONSUMER.CREATE.{stream}.{durable}.>"
    yield f"{API}.CONSUMER.MSG.NEXT.{stream}.{durable}"
    yield f"{API}.CONSUMER.INFO.{stream}.{durable}"
    yield f"{API}.CONSUMER.RESET.{stream}.{durable}"
    yield f"{API}.CONSUMER.UNPIN.{stream}.{durable}"
    yield f"$JS.ACK.{stream}.{durable}.>"


def _shared_pool(layout: Layout) -> Iterable[str]:
    """Pools are named by whoever starts runs, so their durables are made when first asked for."""
    stream = layout.work_stream
    yield f"{API}.CONSUMER.CREATE.{stream}.*"
    yield f"{API}.CONSUMER.CREATE.{stream}.*.>"
    yield f"{API}.CONSUMER.MSG.NEXT.{stream}.*"
    yield f"{API}.CONSUMER.INFO.{stream}.*"
    yield f"$JS.ACK.{stream}.>"


def _write_bucket(bucket: str) -> Iterable[str]:
    yield f"$KV.{bucket}.>"


def _answers_of_others(layout: Layout) -> Iterable[str]:
    """Acknowledging what a service of the product got from the signals."""
    for spec in layout.consumers():
        if spec.stream == layout.signal_stream:
            yield f"$JS.ACK.{spec.stream}.{spec.durable}.>"


def _durables_of_others(layout: Layout, name: str) -> tuple[str, ...]:
    return tuple(
        subject
        for spec in layout.consumers()
        if spec.service != name
        for subject in (
            f"{API}.CONSUMER.CREATE.{spec.stream}.{spec.durable}",
            f"{API}.CONSUMER.CREATE.{spec.stream}.{spec.durable}.>",
            f"{API}.CONSUMER.MSG.NEXT.{spec.stream}.{spec.durable}",
            f"{API}.CONSUMER.DELETE.{spec.stream}.{spec.durable}",
            f"{API}.CONSUMER.RESET.{spec.stream}.{spec.durable}",
        )
    )
