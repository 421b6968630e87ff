"""Make the server match the layout: streams, buckets, durable consumers. Idempotent; refuses to lose data.

Speaks the raw JSON API: a round trip through a client's own types drops what the client does not know, and its
`add_consumer` overwrites what is there. What we do not set stays as it is.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from runlane.kernel.clock import Now
from runlane.kernel.connection import Connection
from runlane.kernel.errors import Permanent
from runlane.kernel.jetstream import CONSUMER_NOT_FOUND, STREAM_NOT_FOUND, ApiError, api
from runlane_contracts.streams import ConsumerSpec, Layout, StreamSpec
from runlane_contracts.telemetry import SCOPE

MIN_API_LEVEL = 4
"""Server 2.14. An older one ignores headers it does not know (what must be refused would be stored), and cannot
set a consumer back to what it has not acknowledged."""
PRIORITY_GROUP = "active"
NAME_IN_USE = 10058
CONSUMER_EXISTS = 10148
_NS = 1_000_000_000

Config = dict[str, Any]
Kind = Literal["created", "updated", "removed"]

LOOKS_BEFORE_REMOVAL = 5
LOOK_EVERY_S = 0.3
"""Whoever works with a durable has a request there nearly all the time."""


class DestructiveDrift(Permanent):
    """The server differs from the layout in a way that cannot be mended without losing data or a position."""


class ServerTooOld(Permanent):
    """The server lacks what the layout needs."""


@dataclass(frozen=True, slots=True)
class Change:
    """What was done to one stream or consumer, and to which of its settings."""

    kind: Kind
    name: str
    settings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """What `provision` did."""

    changes: tuple[Change, ...]
    unchanged: int
    former_in_use: tuple[str, ...] = ()
    """Durables of another number of partitions that somebody still works with; they are left alone."""


async def provision(
    connection: Connection,
    layout: Layout,
    *,
    now: Now,
    pools: Sequence[tuple[str, str]] = (),
    more: Sequence[ConsumerSpec] = (),
    dry_run: bool = False,
    timeout_s: float = 20.0,
) -> Report:
    """Make the server match the layout, the durables of `pools` (tenant, pool), and `more`. Twice changes nothing.

    Durables of commands that were made for another number of partitions are removed once nobody works with them.

    `dry_run`: report what would be done.

    Raises:
        DestructiveDrift: nothing of that stream or consumer was changed; others may have been.
        ServerTooOld, Retryable, Permanent.
    """
    await require_api_level(connection)
    desk = _Desk(connection, now, dry_run, timeout_s)
    streams = layout.streams()
    made = list(await asyncio.gather(*(desk.stream(spec, layout.replicas) for spec in streams)))
    subjects = {spec.name: spec.subjects for spec in streams}
    consumers = (*layout.consumers(), *(layout.pool_consumer(*pool) for pool in pools), *more)
    made += await asyncio.gather(*(desk.consumer(spec, subjects[spec.stream]) for spec in consumers))
    former, in_use = await desk.former(layout)
    changes = (*(change for change in made if change is not None), *(Change("removed", name) for name in former))
    return Report(changes, len(made) - sum(change is not None for change in made), tuple(in_use))


async def require_api_level(connection: Connection) -> int:
    """The server's JetStream API level.

    Raises:
        ServerTooOld: below what Runlane rests on.
    """
    info = await api(connection, "INFO", answer=dict[str, Any])
    level = int(info.get("api", {}).get("level", 0))
    if level < MIN_API_LEVEL:
        raise ServerTooOld(f"the server has JetStream API level {level}, Runlane needs {MIN_API_LEVEL} (2.14)")
    return level


async def ensure_consumer(connection: Connection, layout: Layout, spec: ConsumerSpec) -> None:
    """Make one durable if it is not there; one that is there stays as it is. Safe to race."""
    subjects = next(stream.subjects for stream in layout.streams() if stream.name == spec.stream)
    await create_consumer(connection, spec, consumer_config(spec, subjects))


async def create_consumer(connection: Connection, spec: ConsumerSpec, config: Config) -> bool:
    """Whether it was made; False: one of that name is there."""
    try:
        await _put_consumer(connection, spec, config, "create", 5.0)
    except ApiError as exc:
        if exc.err_code == CONSUMER_EXISTS:
            return False
        raise
    return True


class _Desk:
    def __init__(self, connection: Connection, now: Now, dry_run: bool, timeout_s: float) -> None:  # noqa: FBT001
        self._connection = connection
        self._now = now
        self._dry_run = dry_run
        self._timeout_s = timeout_s

    async def stream(self, spec: StreamSpec, replicas: int) -> Change | None:
        wanted = stream_config(spec, replicas)
        info = await self._find(f"STREAM.INFO.{spec.name}", STREAM_NOT_FOUND)
        if info is None:
            try:
                await self._write(f"STREAM.CREATE.{spec.name}", wanted)
            except ApiError as exc:
                if exc.err_code != NAME_IN_USE:
                    raise
                return await self.stream(spec, replicas)  # somebody else made it meanwhile, and differently
            return Change("created", spec.name)
        current: Config = info["config"]
        differing = _differing(current, wanted)
        if not differing:
            return None
        _refuse_loss(spec.name, info, wanted, differing, self._now())
        await self._write(f"STREAM.UPDATE.{spec.name}", _merged(current, wanted))
        return Change("updated", spec.name, differing)

    async def consumer(self, spec: ConsumerSpec, stream_subjects: Sequence[str]) -> Change | None:
        wanted = consumer_config(spec, stream_subjects)
        name = f"{spec.stream}/{spec.durable}"
        info = await self._find(f"CONSUMER.INFO.{spec.stream}.{spec.durable}", CONSUMER_NOT_FOUND, STREAM_NOT_FOUND)
        if info is None:
            if not self._dry_run and not await create_consumer(self._connection, spec, wanted):
                return await self.consumer(spec, stream_subjects)
            return Change("created", name)
        current: Config = info["config"]
        wanted = {key: value for key, value in wanted.items() if key not in _START}  # where it began is history
        differing = _differing(_one_filter_form(current), _one_filter_form(wanted))
        if not differing:
            return None
        _refuse_lost_place(name, current, wanted, differing)
        if not self._dry_run:
            merged = _merged({k: v for k, v in current.items() if not k.startswith("filter_")}, wanted)
            await _put_consumer(self._connection, spec, merged, "update", self._timeout_s)
        return Change("updated", name, differing)

    async def former(self, layout: Layout) -> tuple[list[str], list[str]]:
        """Removes what is left of other numbers of partitions. The names of those, and of those still in use."""
        stream = layout.command_stream
        names = [name for name in await self._consumers(stream) if layout.is_of_other_partitions(name)]
        used = await asyncio.gather(*(self._is_used(f"{stream}.{name}") for name in names))
        unused = [name for name, is_used in zip(names, used, strict=True) if not is_used]
        if not self._dry_run:
            for name in unused:
                with contextlib.suppress(ApiError):  # somebody else removed it
                    verb = f"CONSUMER.DELETE.{stream}.{name}"
                    await api(self._connection, verb, answer=dict[str, Any], timeout_s=self._timeout_s)
        return [f"{stream}/{name}" for name in unused], [f"{stream}/{name}" for name in names if name not in unused]

    async def _consumers(self, stream: str) -> list[str]:
        names: list[str] = []
        while True:
            page = await self._find(f"CONSUMER.NAMES.{stream}", STREAM_NOT_FOUND, body={"offset": len(names)})
            found = (page or {}).get("consumers") or []
            names += found
            if not found or page is None or len(names) >= page.get("total", 0):
                return names

    async def _is_used(self, path: str) -> bool:
        for _ in range(LOOKS_BEFORE_REMOVAL):
            info = await self._find(f"CONSUMER.INFO.{path}", CONSUMER_NOT_FOUND)
            if info is None:
                return False
            if info.get("num_waiting"):
                return True
            await asyncio.sleep(LOOK_EVERY_S)
        return False

    async def _find(self, verb: str, *absent: int, body: Config | None = None) -> Config | None:
        try:
            return await api(self._connection, verb, body, answer=dict[str, Any], timeout_s=self._timeout_s)
        except ApiError as exc:
            if exc.err_code in absent:
                return None
            raise

    async def _write(self, verb: str, config: Config) -> None:
        if not self._dry_run:
            await api(self._connection, verb, config, answer=dict[str, Any], timeout_s=self._timeout_s)


async def _put_consumer(
    connection: Connection, spec: ConsumerSpec, config: Config, action: str, timeout_s: float
) -> None:
    # A single filter has to be the end of the subject, so that permissions can speak of it.
    only = config.get("filter_subject")
    verb = f"CONSUMER.CREATE.{spec.stream}.{spec.durable}" + (f".{only}" if only else "")
    body = {"stream_name": spec.stream, "config": config, "action": action}
    await api(connection, verb, body, answer=dict[str, Any], timeout_s=timeout_s)


# --- the layout in the server's words -----------------------------------------------------------------------


def stream_config(spec: StreamSpec, replicas: int) -> Config:
    """A stream as the API names it."""
    config: Config = {
        "name": spec.name,
        "description": spec.description,
        "subjects": list(spec.subjects),
        "retention": spec.retention,
        "storage": "file",
        "num_replicas": replicas,
        "discard": spec.discard,
        "max_bytes": spec.max_bytes,
        "max_age": round(spec.max_age_s * _NS),
        "max_msgs_per_subject": spec.max_msgs_per_subject,
        "max_consumers": spec.max_consumers,
        "duplicate_window": round(spec.duplicate_window_s * _NS),
        "allow_direct": spec.allow_direct,
        "deny_delete": spec.deny_delete,
        "deny_purge": spec.deny_purge,
        "allow_rollup_hdrs": spec.allow_rollup,
        "allow_msg_ttl": spec.allow_msg_ttl,
        "metadata": {SCOPE: "1"},
    }
    if spec.allow_atomic:
        config["allow_atomic"] = True
    if spec.republish is not None:
        config["republish"] = {"src": spec.republish.source, "dest": spec.republish.destination}
    if not spec.fsync and replicas == 1:
        config["persist_mode"] = "async"  # replicated streams do not have it
    return config


def consumer_config(spec: ConsumerSpec, stream_subjects: Sequence[str], *, start_seq: int | None = None) -> Config:
    """A durable as the API names it. `start_seq`: where a durable that vanished goes on."""
    config: Config = {
        "durable_name": spec.durable,
        "name": spec.durable,
        "ack_policy": spec.ack_policy,
        "ack_wait": round(spec.ack_wait_s * _NS),
        "max_ack_pending": spec.max_ack_pending,
        "max_deliver": -1,  # poison is recognized and buried by the consumer loop, never dropped by the server
        "replay_policy": "instant",
        "deliver_policy": "all",
        "metadata": {SCOPE: spec.service},
    }
    if start_seq is not None:
        config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": start_seq}
    # A filter that lets everything through would be compared with every message all the same.
    if set(spec.filter_subjects) != set(stream_subjects):
        if len(spec.filter_subjects) == 1:
            config["filter_subject"] = spec.filter_subjects[0]
        else:
            config["filter_subjects"] = list(spec.filter_subjects)
    if spec.pinned:
        config["priority_groups"] = [PRIORITY_GROUP]
        config["priority_policy"] = "pinned_client"
        config["priority_timeout"] = round(spec.pin_ttl_s * _NS)
    return config


# --- what differs, and what must not be changed -------------------------------------------------------------

_START = frozenset({"deliver_policy", "opt_start_seq"})
_DEFAULTS: Config = {"filter_subjects": [], "republish": None, "persist_mode": "default", "max_age": 0}
_UNORDERED = frozenset({"subjects", "filter_subjects", "priority_groups"})


def _differing(current: Config, wanted: Config) -> tuple[str, ...]:
    keys = {*wanted, *(key for key in ("republish", "persist_mode", "filter_subjects") if key in current)}
    return tuple(sorted(key for key in keys if not _same(key, current, wanted)))


def _same(key: str, current: Config, wanted: Config) -> bool:
    is_now, shall_be = (config.get(key, _DEFAULTS.get(key)) for config in (current, wanted))
    if key == "metadata":
        return bool((is_now or {}).get(SCOPE) == wanted["metadata"][SCOPE])
    if key == "deny_delete" and is_now:
        return True  # it cannot be lifted, and a stream that was made with it holds more, not less
    if key == "republish" and is_now and shall_be:
        return (is_now.get("src"), is_now.get("dest")) == (shall_be["src"], shall_be["dest"])
    if key in _UNORDERED:
        return sorted(is_now or ()) == sorted(shall_be or ())
    return bool(is_now == shall_be)


def _merged(current: Config, wanted: Config) -> Config:
    merged = {**current, **wanted, "metadata": {**(current.get("metadata") or {}), **wanted["metadata"]}}
    if "republish" not in wanted:
        merged.pop("republish", None)
    if current.get("deny_delete"):
        merged["deny_delete"] = True
    return merged


def _one_filter_form(config: Config) -> Config:
    if "filter_subject" not in config:
        return config
    rest: Config = {key: value for key, value in config.items() if key != "filter_subject"}
    return {**rest, "filter_subjects": [config["filter_subject"]]}


def _refuse_loss(name: str, info: Config, wanted: Config, differing: Iterable[str], at: datetime) -> None:
    current, state = info["config"], info["state"]
    reasons = [reason for key in differing if (reason := _loss(key, current.get(key), wanted.get(key), state, at))]
    if reasons:
        raise DestructiveDrift(f"stream {name}: {'; '.join(reasons)}")


def _loss(key: str, is_now: Any, shall_be: Any, state: Config, at: datetime) -> str | None:
    """Why this change of a stream would lose something; None if it would not."""
    if key in _LOSSES:
        return _LOSSES[key](is_now, shall_be)
    match key:
        case "max_bytes" if 0 <= shall_be < state["bytes"]:
            return f"max_bytes {shall_be} is less than the {state['bytes']} bytes it holds"
        case "max_age" if shall_be and state["messages"] and _older(state["first_ts"], shall_be, at):
            return f"max_age {shall_be / _NS:.0f} s would delete messages since {state['first_ts']}"
        case "max_msgs_per_subject" if shall_be > 0 and state["messages"] and not 0 < is_now <= shall_be:
            return f"max_msgs_per_subject {is_now} → {shall_be} could delete messages"
        case _:
            return None


def _fixed(what: str) -> Callable[[Any, Any], str | None]:
    return lambda is_now, shall_be: f"{what} {is_now or 'default'} → {shall_be or 'default'} needs a new stream"


def _shrinks(is_now: list[str] | None, shall_be: list[str]) -> str | None:
    lost = [subject for subject in is_now or () if not any(_covers(wider, subject) for wider in shall_be)]
    return f"subjects {', '.join(lost[:3])} would be given up" if lost else None


_LOSSES: dict[str, Callable[[Any, Any], str | None]] = {
    "subjects": _shrinks,
    "storage": _fixed("storage"),
    "retention": _fixed("retention"),
    "persist_mode": _fixed("persist_mode"),
    "discard": lambda _, shall_be: "discard new → old would forget what it holds" if shall_be == "old" else None,
    "deny_purge": lambda is_now, _: "deny_purge cannot be lifted" if is_now else None,
    "allow_msg_ttl": lambda is_now, _: "allow_msg_ttl cannot be lifted" if is_now else None,
    "num_replicas": lambda is_now, shall_be: f"replicas {is_now} → {shall_be}" if shall_be < (is_now or 1) else None,
}


def _covers(wider: str, subject: str) -> bool:
    wide, narrow = wider.split("."), subject.split(".")
    for place, word in enumerate(wide):
        if word == ">":
            return len(narrow) > place
        if place >= len(narrow) or narrow[place] == ">" or word not in {narrow[place], "*"}:
            return False
    return len(wide) == len(narrow)


def _older(first_ts: str, max_age_ns: int, at: datetime) -> bool:
    first = datetime.fromisoformat(first_ts[:19] + "+00:00")
    return first < at - timedelta(seconds=max_age_ns / _NS)


def _refuse_lost_place(name: str, current: Config, wanted: Config, differing: Iterable[str]) -> None:
    if "ack_policy" in differing:
        raise DestructiveDrift(f"consumer {name}: ack_policy {current['ack_policy']} → {wanted['ack_policy']}")
    if "filter_subjects" not in differing:
        return
    before, after = (_one_filter_form(config).get("filter_subjects") or [">"] for config in (current, wanted))
    if _shrinks(before, after):
        raise DestructiveDrift(f"consumer {name}: would no longer see all of {', '.join(before[:3])}")
