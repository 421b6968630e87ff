"""Where counting goes on: after a restart, a power cut, a stream that was made anew, a broken checkpoint."""

import random
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
import zstandard

from runlane.kernel.delivery import Delivery
from runlane.kernel.errors import Retryable
from runlane.metrics_aggregator.aggregator import Aggregator
from runlane.metrics_aggregator.checkpoint import PART_BYTES, Checkpoint, CheckpointStore
from runlane.metrics_aggregator.labels import Limits
from runlane.metrics_aggregator.runs import OpenRun
from runlane_contracts.telemetry import Metric
from support.signals import whole_run


class Bucket:
    """Of a store: what was put, and how often it fails."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.fails = False
        self.puts = 0

    async def get(self, key):
        return SimpleNamespace(value=self.kept[key]) if key in self.kept else None

    async def put(self, key, value):
        self.puts += 1
        if self.fails:
            raise Retryable("no broker")
        self.kept[key] = value
        return self.puts


class Stream:
    """The signals, as far as they are looked at."""

    def __init__(self, *stories, epoch="e1") -> None:
        self.epoch = epoch
        bodies = [body for story in stories for body in story.bodies]
        self.deliveries = [
            Delivery("rl.signal.acme.x.y", body, {}, "RL_SIGNAL", seq, seq, 1, 0, 0, "")
            for seq, body in enumerate(bodies, 1)
        ]

    def forget_epoch(self, _stream):
        pass

    async def stream_state(self, _stream):
        return SimpleNamespace(epoch=self.epoch, last_seq=len(self.deliveries))


class NoDurations:
    def record(self, metric, seconds, labels):
        pass


def aggregator(bucket, stream):
    return Aggregator(
        store=CheckpointStore(bucket), direct=stream, stream="RL_SIGNAL", durations=NoDurations(), limits=Limits(),
        max_open_runs=100, now=lambda: datetime(2026, 1, 2, tzinfo=UTC), outbox=None, is_active=lambda: True,
    )  # fmt: skip


async def read(one, stream):
    done = await one.on_active()
    rest = stream.deliveries[done:]
    if rest:
        await one.handle(rest)
    return one


def ended(one):
    return sum(value for value, _ in one.rollup.of(Metric.RUNS_ENDED))


async def test_counting_goes_on_where_it_was_written_down():
    bucket, stream = Bucket(), Stream(whole_run("r1"))
    first = await read(aggregator(bucket, stream), stream)
    await first.checkpoint()
    more = Stream(whole_run("r1"), whole_run("r2"))
    second = aggregator(bucket, more)
    assert await second.on_active() == 16
    assert not second.is_shown, "it has yet to read what is there"
    await second.handle(more.deliveries[16:])
    assert second.is_shown
    assert ended(second) == 2


async def test_what_a_power_cut_took_from_the_signals_is_not_counted_again_when_it_comes_back():
    """Taken out: passing over what is counted in `handle`; then r2 is counted twice."""
    bucket, whole = Bucket(), Stream(whole_run("r1"), whole_run("r2"))
    first = await read(aggregator(bucket, whole), whole)
    await first.checkpoint()
    cut = Stream(whole_run("r1"))
    second = aggregator(bucket, cut)
    assert await second.on_active() == 16
    await second.handle(whole.deliveries[16:])
    assert ended(second) == 2


async def test_signals_that_were_made_anew_are_counted_from_the_first():
    bucket, stream = Bucket(), Stream(whole_run("r1"))
    await (await read(aggregator(bucket, stream), stream)).checkpoint()
    anew = Stream(whole_run("r9"), epoch="e2")
    assert ended(await read(aggregator(bucket, anew), anew)) == 1


async def test_a_checkpoint_that_was_cut_off_leaves_the_one_before():
    """Taken out: the two generations; then the parts of the second one are under the first one's head."""
    bucket, stream = Bucket(), Stream(whole_run("r1"), whole_run("r2"))
    one = aggregator(bucket, stream)
    await one.on_active()
    await one.handle(stream.deliveries[:16])
    await one.checkpoint()
    before = dict(bucket.kept)
    await one.handle(stream.deliveries[16:])
    await one.checkpoint()
    after = bucket.kept
    # All but the head arrived.
    bucket.kept = {**after, "head": before["head"]}
    again = aggregator(bucket, stream)
    assert await again.on_active() == 16
    assert ended(again) == 1


@pytest.mark.parametrize("broken", [b"\xff", zstandard.compress(b"\x91\x01"), b""])
async def test_a_checkpoint_that_cannot_be_read_is_none(broken):
    bucket, stream = Bucket(), Stream(whole_run("r1"))
    await (await read(aggregator(bucket, stream), stream)).checkpoint()
    bucket.kept["checkpoint.0.0"] = broken
    assert await aggregator(bucket, stream).on_active() == 0


async def test_a_checkpoint_that_fails_is_tried_again_and_says_so():
    bucket, stream = Bucket(), Stream(whole_run("r1"))
    one = await read(aggregator(bucket, stream), stream)
    bucket.fails = True
    await one.checkpoint()
    assert one.progress.trouble == "no broker"
    bucket.fails = False
    await one.checkpoint()
    assert (one.progress.trouble, one.progress.saved_seq) == ("", 16)
    puts = bucket.puts
    await one.checkpoint()
    assert bucket.puts == puts, "nothing was counted since"


async def test_many_open_runs_are_written_in_parts_and_read_back():
    chance = random.Random(7)
    runs = [OpenRun("acme", f"r{n}", agent=chance.randbytes(400).hex()) for n in range(4_000)]
    packed = CheckpointStore.packed(CheckpointStore.encoded(Checkpoint(epoch="e", signal_seq=7, runs=runs)))
    assert len(packed) > PART_BYTES
    bucket = Bucket()
    await CheckpointStore(bucket).save(packed, 7)
    found = await CheckpointStore(bucket).load()
    assert found is not None
    assert found.runs == runs
