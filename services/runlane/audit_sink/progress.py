"""How far each source is sealed: the header that every record carries, so that the output is the only progress. Pure.

``RL_LOG_0=abcd2345:12,RL_COMMAND=efgh6723:7+1;open=41``: of the log everything up to 12, of the commands everything
before 7 and the first record of 7. `open`: every record before stream sequence 41 is covered by a signature.
"""

import re
from collections.abc import Mapping

from msgspec import Struct

_TEXT = re.compile(r"^(?:[^=,;]+=[^:,;]+:\d+(?:\+\d+)?(?:,[^=,;]+=[^:,;]+:\d+(?:\+\d+)?)*)?;open=\d+$")


class Reached(Struct, frozen=True, order=True):
    """A place in a source. `part` 0: all up to `seq` is sealed; else that many records of `seq`, and all before it."""

    seq: int = 0
    part: int = 0

    @property
    def done_up_to(self) -> int:
        """The last message that is sealed whole."""
        return self.seq if self.part == 0 else self.seq - 1

    def left_of(self, seq: int, entries: int) -> int:
        """At which of a message's entries to go on; `entries` when it is done."""
        if seq <= self.done_up_to:
            return entries
        return self.part if seq == self.seq else 0


class Place(Struct, frozen=True):
    """How far one incarnation of a source is sealed."""

    epoch: str
    reached: Reached = Reached()


class Progress(Struct, frozen=True):
    """How far all of them are."""

    places: Mapping[str, Place]
    open_seq: int = 1

    def at(self, stream: str, place: Place) -> "Progress":
        """With one source further on."""
        return Progress({**self.places, stream: place}, self.open_seq)

    def text(self) -> str:
        """The header."""
        places = ",".join(
            f"{stream}={place.epoch}:{place.reached.seq}" + (f"+{place.reached.part}" if place.reached.part else "")
            for stream, place in sorted(self.places.items())
        )
        return f"{places};open={self.open_seq}"


NOTHING = Progress({})


def progress_of(text: str) -> Progress:
    """What a header says. Raises ValueError: it is none."""
    if not _TEXT.match(text):
        raise ValueError("not a progress header")
    places, _, open_seq = text.rpartition(";open=")
    found: dict[str, Place] = {}
    for one in filter(None, places.split(",")):
        stream, _, place = one.partition("=")
        epoch, _, reached = place.partition(":")
        seq, _, part = reached.partition("+")
        found[stream] = Place(epoch, Reached(int(seq), int(part or 0)))
    return Progress(found, int(open_seq))
