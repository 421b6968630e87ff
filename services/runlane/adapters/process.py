"""A child process that speaks JSON lines: one reader per pipe, a bounded queue, one writer, an orderly end.

- stdout is read by one task into a queue bounded in messages; a full queue stops reading, so the child feels it.
- stderr is always drained; the last lines are kept for the error message.
- stdin has one writer: `send` is serialised.
- The end of stdout is not success: the caller decides from the messages and `exit_code`.
- `stop` closes stdin, waits `grace_s`, then terminates, waits again, then kills the whole process group.
"""

import asyncio
import contextlib
import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Self

from runlane_contracts import codec

MAX_LINE_BYTES = 8 * 1024 * 1024
MAX_QUEUED_MESSAGES = 256
KEPT_STDERR_LINES = 40


class NotStarted(Exception):
    """The program could not be started."""


class JsonLineProcess:
    """`async with JsonLineProcess([...]) as process`: messages in, messages out, never an orphan."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        grace_s: float = 5.0,
    ) -> None:
        self.command = tuple(command)
        self.exit_code: int | None = None
        self.bad_lines = 0
        self._cwd, self._env, self._grace_s = cwd, dict(env) if env is not None else None, grace_s
        self._messages: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(MAX_QUEUED_MESSAGES)
        self._stderr: deque[str] = deque(maxlen=KEPT_STDERR_LINES)
        self._sending = asyncio.Lock()
        self._readers: list[asyncio.Task[None]] = []
        self._process: asyncio.subprocess.Process | None = None

    @property
    def last_words(self) -> str:
        """The last lines of stderr."""
        return "\n".join(self._stderr)

    async def __aenter__(self) -> Self:
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self.command, cwd=self._cwd, env=self._env, limit=MAX_LINE_BYTES, start_new_session=True,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
        except OSError as exc:
            raise NotStarted(f"cannot start {self.command[0]!r}: {exc.strerror or exc}") from exc
        assert self._process.stdout is not None  # noqa: S101 - asked for above
        assert self._process.stderr is not None  # noqa: S101
        self._readers = [
            asyncio.create_task(self._read_messages(self._process.stdout)),
            asyncio.create_task(self._drain_stderr(self._process.stderr)),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def messages(self) -> AsyncIterator[dict[str, Any]]:
        """Every message until the child closes its stdout."""
        while (message := await self._messages.get()) is not None:
            yield message

    async def send(self, message: Mapping[str, Any]) -> None:
        """Write one message.

        Raises:
            ConnectionError: the child no longer reads.
        """
        stdin = self._running().stdin
        assert stdin is not None  # noqa: S101
        async with self._sending:
            stdin.write(codec.encode(message) + b"\n")
            await stdin.drain()

    async def close_stdin(self) -> None:
        """Tell the child that nothing more will come."""
        stdin = self._running().stdin
        if stdin is not None and not stdin.is_closing():
            stdin.close()
            with contextlib.suppress(ConnectionError):
                await stdin.wait_closed()

    async def wait(self) -> int:
        """The child's exit code."""
        self.exit_code = await self._running().wait()
        return self.exit_code

    async def stop(self) -> None:
        """End the child, by asking, then by force; returns when it is gone and its pipes are drained."""
        process = self._running()
        await self.close_stdin()
        for attempt in (None, signal.SIGTERM, signal.SIGKILL):
            if attempt is not None:
                _signal_group(process.pid, attempt)
            try:
                self.exit_code = await asyncio.wait_for(process.wait(), self._grace_s)
                break
            except TimeoutError:
                continue
        _signal_group(process.pid, signal.SIGKILL)  # what the child may have left behind
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)

    async def _read_messages(self, stdout: asyncio.StreamReader) -> None:
        while line := await _line(stdout):
            await self._take(line)
        await self._messages.put(None)

    async def _take(self, line: bytes) -> None:
        try:
            message = codec.decode_json(line)
        except ValueError:
            message = None
        if isinstance(message, dict):
            await self._messages.put(message)
        elif line.strip():
            self.bad_lines += 1
            self._stderr.append("stdout: " + line[:200].decode(errors="replace").rstrip())

    async def _drain_stderr(self, stderr: asyncio.StreamReader) -> None:
        while line := await _line(stderr):
            self._stderr.append(line.decode(errors="replace").rstrip())

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise NotStarted("use `async with`")
        return self._process


async def _line(stream: asyncio.StreamReader) -> bytes:
    """One line; a longer one than the limit is skipped with its rest, not fatal."""
    while True:
        try:
            return await stream.readuntil(b"\n")
        except asyncio.IncompleteReadError as exc:
            return exc.partial
        except asyncio.LimitOverrunError as exc:
            await stream.readexactly(exc.consumed)


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
