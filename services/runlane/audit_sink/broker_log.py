"""What the broker itself refused: found in its log, since nats-server says it nowhere else, and put into the intake.

Of a violated permission nats-server tells the client and its log; of a failed login also `$SYS`. So the sink follows
the log, over its rotations, and remembers beside it how far it is: each refusal is stored before the place is moved,
and stored again under the same id when the sink died in between.
"""

import asyncio
import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from runlane.kernel.errors import KernelError
from runlane.kernel.publisher import WindowedPublisher
from runlane_contracts.audit import PLATFORM, Refusal, Target
from runlane_contracts.codec import encode, timestamp
from runlane_contracts.envelope import Actor
from runlane_contracts.headers import COMMIT_ID
from runlane_contracts.problems import Code
from runlane_contracts.subjects import Subjects
from runlane_contracts.telemetry import LogEvent

log = logging.getLogger(__name__)

BROKER = "broker"
Show = Callable[[list[str]], None]
READ_BYTES = 1024 * 1024
MAX_DIFFERENT = 256
"""Of one read; who is refused more is counted."""
_HEAD_BYTES = 64
_EVERY_S = 0.5
_RETRY_S = 1.0

_QUOTED = r'"(?:[^"\\]|\\.)*"'  # nats-server escapes what a client chose
_BEGIN = rf"^\[\d+\] (?P<time>\d{{4}}/\d\d/\d\d \d\d:\d\d:\d\d(?:\.\d+)?) \[ERR\] \S+ - \w+:\d+(?: - {_QUOTED})*?"
_VIOLATION = re.compile(
    rf'{_BEGIN} - "(?:[^"\\]|\\.)*?/user:(?P<user>(?:[^"\\]|\\.)*)" - (?P<what>Publish|Subscription) Violation'
    rf" - \w+ (?P<subject>{_QUOTED})"
)
_LOGIN = re.compile(rf"{_BEGIN} - (?i:authentication error)(?: - User (?P<user>{_QUOTED}))?")
_ACTIONS = {"Publish": "publish", "Subscription": "subscribe"}


class Refused(NamedTuple):
    """One line of the log."""

    time: str
    user: str
    action: str
    subject: str
    code: Code


class Place(Struct, frozen=True):
    """How far a log is read: which file, up to which byte, and how it begins, since inodes are used again.

    `until`: what lies before that byte is being stored. Read again after a crash, exactly that gives the same messages.
    """

    inode: int = 0
    offset: int = 0
    head: str = ""
    until: int = 0


class Read(NamedTuple):
    """Whole lines, where they begin, and where they end."""

    lines: list[str]
    begin: Place
    end: Place


def refused_in(line: str) -> Refused | None:
    """What a line of nats-server's log says was refused; its times are taken as UTC."""
    found = _VIOLATION.match(line)
    if found is not None:
        return Refused(_time(found), found["user"], _ACTIONS[found["what"]], found["subject"][1:-1], Code.FORBIDDEN)
    found = _LOGIN.match(line)
    if found is not None:
        return Refused(_time(found), (found["user"] or '""')[1:-1], "connect", "", Code.UNAUTHENTICATED)
    return None


def _time(found: "re.Match[str]") -> str:
    whole, _, part = found["time"].partition(".")
    return timestamp(datetime.strptime(f"{whole}.{part or '0'}", "%Y/%m/%d %H:%M:%S.%f").replace(tzinfo=UTC))


def _is_begun_by(place: Place, begin: bytes) -> bool:
    return len(begin) >= min(place.offset, _HEAD_BYTES) and begin.hex().startswith(place.head)


class BrokerLog:
    """Follows the log of one broker. `show` is given each line as it is read, also while nothing can be stored."""

    def __init__(
        self, path: Path, publisher: WindowedPublisher, subjects: Subjects, *, show: Show | None = None
    ) -> None:
        self._path, self._publisher, self._show = path, publisher, show
        self._shown: tuple[int, int] = (0, 0)
        self._subject = subjects.intake(PLATFORM, BROKER)
        self._place_path = path.with_name(path.name + ".audited")
        self.noted = 0
        self.trouble = ""
        """Why they wait, while they do."""

    async def follow(self) -> None:
        """For ever."""
        place = self._known_place()
        while True:
            read = self._read(place)
            if read is None:
                await asyncio.sleep(_EVERY_S)
                continue
            self._show_once(read)
            found = list(refusals_of(read.lines))
            if found:
                self._keep_place(read.begin)
            try:
                await self._store(found, read.begin)
            except KernelError as exc:
                self._say(str(exc))
                place = read.begin
                await asyncio.sleep(_RETRY_S)
                continue
            self._say("")
            place = read.end
            self._keep_place(place)

    def _show_once(self, read: Read) -> None:
        """Not again when the same lines are tried again."""
        if self._show is not None and self._shown != (read.end.inode, read.end.offset):
            self._show(read.lines)
            self._shown = (read.end.inode, read.end.offset)

    def _say(self, trouble: str) -> None:
        """Once that they wait, and once that they do no longer."""
        if trouble and not self.trouble:
            log.warning("refusals of the broker wait: %s", trouble, extra={"event": LogEvent.REFUSALS_WAIT})
        elif self.trouble and not trouble:
            log.info("refusals of the broker are recorded again", extra={"event": LogEvent.AUDIT_RESUMED})
        self.trouble = trouble

    # --- the log --------------------------------------------------------------------------------------------

    def _read(self, place: Place) -> Read | None:
        """The next lines; None: there are none yet, or they cannot be read."""
        try:
            path = self._file_of(place)
            with path.open("rb") as file:
                stat, begin = os.fstat(file.fileno()), file.read(_HEAD_BYTES)
                inode, is_same = stat.st_ino, stat.st_ino == place.inode and _is_begun_by(place, begin)
                offset = place.offset if is_same and stat.st_size >= place.offset else 0
                file.seek(offset)
                data = file.read(place.until - offset if offset < place.until and is_same else READ_BYTES)
            whole = data[: data.rfind(b"\n") + 1]
            if not data and path != self._path:
                return Read([], place, self._next_file(inode))
        except OSError as exc:
            log.debug("%s cannot be read: %s", self._path.name, exc)
            return None
        if not whole and len(data) < READ_BYTES:
            return None
        taken = whole or data  # a line that long is none of ours
        ends = offset + len(taken)
        lines = taken.decode(errors="replace").splitlines()
        return Read(lines, Place(inode, offset, begin[:offset].hex(), ends), Place(inode, ends, begin[:ends].hex()))

    def _file_of(self, place: Place) -> Path:
        """The file of a place: the log, or what it was renamed to; the log too when that is gone."""
        for path in (self._path, *self._renamed()):
            if place.inode and path.stat().st_ino == place.inode:
                return path
        return self._path

    def _next_file(self, inode: int) -> Place:
        """After the end of a renamed log: the beginning of the one that was begun then."""
        inodes = [path.stat().st_ino for path in (*self._renamed(), self._path)]
        return Place(inodes[min(inodes.index(inode) + 1, len(inodes) - 1)] if inode in inodes else 0)

    def _renamed(self) -> list[Path]:
        """The log's former files, oldest first: their names end in when that was."""
        names = (path for path in self._path.parent.glob(f"{self._path.name}.*") if path != self._place_path)
        return sorted(path for path in names if path.name.removeprefix(self._path.name + ".")[:1].isdigit())

    # --- storing --------------------------------------------------------------------------------------------

    async def _store(self, refusals: list[Refusal], begin: Place) -> None:
        messages = []
        for number, refusal in enumerate(refusals):
            body = encode(refusal)
            headers = {COMMIT_ID: _id_of(begin, number, body)}
            messages.append(await self._publisher.send(self._subject, body, headers))
        for message in messages:
            await message
        self.noted += len(messages)

    def _known_place(self) -> Place:
        try:
            return msgspec.json.decode(self._place_path.read_bytes(), type=Place)
        except (OSError, msgspec.MsgspecError):
            return Place()

    def _keep_place(self, place: Place) -> None:
        part = self._place_path.with_suffix(".part")
        try:
            part.write_bytes(msgspec.json.encode(place))
            part.replace(self._place_path)
        except OSError as exc:
            # After a restart the log is read from its beginning: refusals may be recorded twice, none is lost.
            log.warning("%s: %s", self._place_path.name, exc, extra={"event": LogEvent.ACCESS_UNREADABLE})


def refusals_of(lines: list[str]) -> Iterator[Refusal]:
    """What is stored of some lines: the same refusal of the same user once, with its count."""
    counted: dict[tuple[str, str, str, Code], list[str]] = {}
    dropped: list[str] = []
    for line in lines:
        found = refused_in(line)
        if found is None:
            continue
        kind = (found.user, found.action, found.subject, found.code)
        if kind in counted or len(counted) < MAX_DIFFERENT:
            counted.setdefault(kind, []).append(found.time)
        else:
            dropped.append(found.time)
    for (user, action, subject, code), times in counted.items():
        target = Target(kind="subject", id=subject) if subject else Target(kind=BROKER, id="-")
        yield _refusal(times, Actor(kind="service", id=user or "unknown"), action, target, code.value)
    if dropped:
        nobody = Actor(kind="service", id="unknown")
        yield _refusal(dropped, nobody, "refusals", Target(kind=BROKER, id="-"), "dropped")


def _refusal(times: list[str], actor: Actor, action: str, target: Target, outcome: str) -> Refusal:
    return Refusal(
        tenant_id=PLATFORM, time=times[0], service=BROKER, actor=actor, action=action, target=target, outcome=outcome,
        count=len(times),
    )  # fmt: skip


def _id_of(begin: Place, number: int, body: bytes) -> str:
    name = f"{begin.inode}:{begin.offset}:{begin.until}:{number}:".encode()
    return "brk_" + hashlib.sha256(name + body).hexdigest()[:32]
