"""A checkpoint is loaded whole or refused with a reason, whatever became of it."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from runlane.client import (
    CheckpointRefused,
    CheckpointStore,
    FileCheckpointStore,
    MemoryCheckpointStore,
    RunState,
    SqliteCheckpointStore,
)
from runlane.client.checkpoint import PendingCommand, RunCheckpoint, opened, part_of_commands, part_of_run
from support.runs import a_short_run

Make = Callable[[Path], CheckpointStore]
STORES = {
    "file": lambda folder: FileCheckpointStore(folder / "deep" / "kept"),
    "sqlite": lambda folder: SqliteCheckpointStore(folder / "deep" / "kept"),
}


OPEN = """
import asyncio, sys
from runlane.client.checkpoint_stores import FileCheckpointStore as file, SqliteCheckpointStore as sqlite
asyncio.run({other}(sys.argv[1]).open())
"""


def parts() -> dict[str, bytes]:
    state = RunState("run_1")
    for fact in a_short_run().facts[:7]:
        state.apply(fact)
    return dict(
        [
            part_of_run(RunCheckpoint(run_id="run_1", cursor="c7", state=state.data, input={"text": "wörd\n"})),
            part_of_run(RunCheckpoint(run_id="run_2", input=[1.5, None])),
            part_of_commands((PendingCommand(run_id="run_1", type="run.pause", payload={}, idempotency_key="k"),)),
        ]
    )


def test_what_was_kept_is_what_comes_back():
    checkpoint = opened(parts())
    assert {run_id: run.cursor for run_id, run in checkpoint.runs.items()} == {"run_1": "c7", "run_2": None}
    assert checkpoint.runs["run_1"].state["through_sequence"] == 7
    assert checkpoint.runs["run_1"].input == {"text": "wörd\n"}
    assert [one.idempotency_key for one in checkpoint.pending] == ["k"]


def test_no_byte_can_be_changed_without_a_refusal():
    """Take the hash out of `checkpoint._unsealed` to see this fail."""
    name, raw = "run/run_2", parts()["run/run_2"]
    for at in range(len(raw)):
        for flip in (0x01, 0x20):
            damaged = raw[:at] + bytes([raw[at] ^ flip]) + raw[at + 1 :]
            with pytest.raises(CheckpointRefused):
                opened(parts() | {name: damaged})
        with pytest.raises(CheckpointRefused):
            opened(parts() | {name: raw[:at]})


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (lambda all_: {"run/run_9": all_["run/run_1"]}, "run_1"),
        (lambda all_: {"odd": all_["run/run_1"]}, "no part"),
        (lambda all_: {"commands": all_["run/run_1"]}, "commands"),
        (lambda all_: {"commands": all_["commands"].replace(b'_version":1', b'_version":2')}, "version 2"),
        (lambda _all: {"run/run_1": b""}, "damaged"),
    ],
)  # fmt: skip
def test_what_does_not_belong_there_is_refused_by_name(changed, reason):
    with pytest.raises(CheckpointRefused, match=reason):
        opened(parts() | changed(parts()))


def test_a_state_of_another_reducer_is_refused():
    odd = part_of_run(RunCheckpoint(run_id="run_1", state={"through_sequence": 1}, reducer_version=99))
    with pytest.raises(CheckpointRefused, match="version 99"):
        opened(dict([odd]))


@pytest.mark.parametrize("make", STORES.values(), ids=STORES)
async def test_a_store_gives_back_what_was_saved_last(tmp_path: Path, make: Make):
    store = make(tmp_path)
    assert await store.open() == {}
    await store.save(parts())
    await store.save({"run/run_2": None, "commands": part_of_commands(())[1]})
    await store.close()
    again = make(tmp_path)
    found = await again.open()
    assert found == {"run/run_1": parts()["run/run_1"], "commands": part_of_commands(())[1]}
    await again.close()


@pytest.mark.parametrize("make", STORES.values(), ids=STORES)
async def test_one_process_writes_and_another_is_refused(tmp_path: Path, make: Make):
    store = make(tmp_path)
    await store.open()
    await store.save(parts())
    with pytest.raises(CheckpointRefused, match="another process"):
        await make(tmp_path).open()
    other = "file" if make is STORES["file"] else "sqlite"
    said = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", OPEN.format(other=other), str(tmp_path / "deep" / "kept")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "another process writes it" in said.stderr
    await store.close()
    after = make(tmp_path)
    assert await after.open() == parts()
    await after.close()


async def test_memory_has_one_writer_too():
    store = MemoryCheckpointStore()
    await store.open()
    with pytest.raises(CheckpointRefused):
        await store.open()
    await store.save({"a": b"1"})
    await store.close()
    assert await store.open() == {"a": b"1"}


@pytest.mark.parametrize("make", STORES.values(), ids=STORES)
async def test_a_file_that_is_none_of_ours_is_refused_and_can_be_set_aside(tmp_path: Path, make: Make):
    path = tmp_path / "deep" / "kept"
    path.parent.mkdir()
    for number in (1, 2):
        path.write_bytes(b"not at all what it should be " * 40)
        store = make(tmp_path)
        with pytest.raises(CheckpointRefused, match="damaged"):
            await store.open()
        aside = Path(await store.set_aside())
        assert aside.exists()
        assert ("-2" in aside.name) == (number == 2)
        assert await store.open() == {}
        await store.close()
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("make", STORES.values(), ids=STORES)
async def test_nothing_is_saved_into_a_store_that_is_not_open(tmp_path: Path, make: Make):
    with pytest.raises(CheckpointRefused, match="not open"):
        await make(tmp_path).save(parts())
