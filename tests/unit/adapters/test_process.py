"""The child process driver: pipes, back-pressure, the end."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from runlane.adapters.process import JsonLineProcess, NotStarted


def python(code: str) -> list[str]:
    return [sys.executable, "-u", "-c", code]


async def test_messages_go_in_and_come_out_in_order() -> None:
    echo = "import sys\nfor line in sys.stdin: sys.stdout.write(line)"
    async with JsonLineProcess(python(echo)) as child:
        for n in range(1000):
            await child.send({"n": n})
            assert (await anext(child.messages()))["n"] == n
        await child.close_stdin()
        assert [m async for m in child.messages()] == []
        assert await child.wait() == 0


async def test_stderr_is_always_drained_and_its_last_lines_kept() -> None:
    noisy = "import sys\nfor n in range(200000): print('noise', n, file=sys.stderr)\nprint('{\"done\": true}')"
    async with JsonLineProcess(python(noisy)) as child:
        assert [m async for m in child.messages()] == [{"done": True}]
        await child.wait()
        await asyncio.sleep(0.05)
        assert child.last_words.endswith("noise 199999")


async def test_what_is_not_json_is_kept_for_the_error_and_skipped() -> None:
    code = "print('hello'); print('[1]'); print('{\"a\": 1}'); print('x' * (17 * 1024 * 1024)); print('{\"b\": 2}')"
    async with JsonLineProcess(python(code)) as child:
        assert [m async for m in child.messages()] == [{"a": 1}, {"b": 2}]
        assert "stdout: hello" in child.last_words
        assert child.bad_lines >= 3


async def test_a_slow_reader_holds_the_child_back() -> None:
    fast = (
        'import sys\nfor n in range(20000): print(\'{"n": %d, "pad": "%s"}\' % (n, \'x\' * 2000))\n'
        "print('end', file=sys.stderr)"
    )
    async with JsonLineProcess(python(fast)) as child:
        await asyncio.sleep(0.5)
        assert "end" not in child.last_words  # it is blocked on its pipe, not buffered by us
        assert len([m async for m in child.messages()]) == 20000


async def test_a_deaf_child_and_what_it_started_are_killed() -> None:
    deaf = (
        "import signal, subprocess, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "sub = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print('{\"sub\": %d}' % sub.pid)\ntime.sleep(60)"
    )
    async with JsonLineProcess(python(deaf), grace_s=0.2) as child:
        sub = (await anext(child.messages()))["sub"]
    assert child.exit_code == -9
    for _ in range(100):
        if not _alive(sub):
            return
        await asyncio.sleep(0.02)
    pytest.fail("the grandchild lives on")


async def test_a_program_that_is_not_there_has_a_clear_error() -> None:
    with pytest.raises(NotStarted, match="cannot start 'no-such-program'"):
        async with JsonLineProcess(["no-such-program"]):
            pass


def _alive(pid: int) -> bool:
    try:
        with Path(f"/proc/{pid}/stat").open() as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
    finally:
        os.sched_yield()
