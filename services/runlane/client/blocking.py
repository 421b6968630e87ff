"""How code without asyncio uses the SDK: one event loop in a thread of its own, and callers that wait for it.

`sync.py` is made of this by `tests/support/sync_client.py`, class by class; nothing of the SDK is written twice.
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast

A = TypeVar("A")
T = TypeVar("T")

MAX_THREADS = 1024
"""Agents and effects that run at a time in one process; each has a thread while it runs."""


class _LoopThread:
    """An event loop that runs until the process ends."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="runlane-call"))
        self.thread = threading.Thread(target=self.loop.run_forever, name="runlane-loop", daemon=True)
        self.thread.start()


_starting = threading.Lock()
_started: _LoopThread | None = None


def _loop_thread() -> _LoopThread:
    global _started  # noqa: PLW0603 - one loop per process; a forked child makes its own
    with _starting:
        if _started is None or _started.pid != os.getpid():
            _started = _LoopThread()
        return _started


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Run it on the loop and return or raise what it does. Interrupted, it is cancelled.

    Raises:
        RuntimeError: called on the loop's own thread, which would wait for itself.
    """
    runner = _loop_thread()
    if threading.current_thread() is runner.thread:
        work.close()
        raise RuntimeError("runlane.client.sync was called from a callback on its own loop")
    future: Future[T] = asyncio.run_coroutine_threadsafe(work, runner.loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def on_loop(call: Callable[[], T]) -> T:
    """Call something on the loop that does not wait."""

    async def work() -> T:
        return call()

    return wait_for(work())


class Held(Generic[T]):
    """An async context manager that is entered and left in one task, as those with tasks of their own must be."""

    def __init__(self, manager: AbstractAsyncContextManager[T, bool | None]) -> None:
        self._manager = manager
        self._leave: asyncio.Future[BaseException | None]
        self._task: asyncio.Task[bool]

    def enter(self) -> T:
        """Enter it; what it gives."""
        return wait_for(self._enter())

    def exit(self, exc: BaseException | None) -> bool:
        """Leave it with what its block raised, if anything. True: that is not to be raised again."""
        return wait_for(self._exit(exc))

    async def _enter(self) -> T:
        loop = asyncio.get_running_loop()
        entered: asyncio.Future[T] = loop.create_future()
        self._leave = loop.create_future()
        self._task = loop.create_task(self._hold(entered))
        both: list[asyncio.Future[Any]] = [entered, self._task]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not entered.done():
            await self._task  # raises why it could not be entered
        return entered.result()

    async def _exit(self, exc: BaseException | None) -> bool:
        if not self._leave.done():
            self._leave.set_result(exc)
        return await self._task

    async def _hold(self, entered: "asyncio.Future[T]") -> bool:
        raised: BaseException | None = None
        try:
            async with self._manager as value:
                entered.set_result(value)
                raised = await self._leave
                if raised is not None:
                    raise raised  # noqa: TRY301 - it is the block's, not ours
        except BaseException as exc:
            if exc is raised:
                return False  # the caller raises it, with the traceback of its own block
            raise
        return raised is not None


def each(items: AsyncIterator[T]) -> Generator[T, None, None]:
    """Every item, each asked for when the caller asks; all of them in one task."""
    turns = on_loop(lambda: _Turns(items))
    try:
        while True:
            try:
                item = wait_for(turns.next())
            except _Over:
                return
            yield item
    finally:
        wait_for(turns.end())


class _Over(Exception):
    """Nothing more comes."""


class _Turns(Generic[T]):
    """Asks an async iterator for one item at a time, always from the same task."""

    def __init__(self, items: AsyncIterator[T]) -> None:
        self._items = items
        self._asks: asyncio.Queue[asyncio.Future[T]] = asyncio.Queue()
        self._task = asyncio.get_running_loop().create_task(self._answer())

    async def next(self) -> T:
        asked: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._asks.put_nowait(asked)
        return await asked

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if (close := getattr(self._items, "aclose", None)) is not None:
            await close()

    async def _answer(self) -> None:
        while True:
            asked = await self._asks.get()
            try:
                item = await anext(self._items)
            except asyncio.CancelledError:
                asked.cancel()
                raise
            except Exception as exc:  # noqa: BLE001 - whatever it is, the caller gets it
                if not asked.cancelled():  # it was interrupted, and will end
                    asked.set_exception(_Over() if isinstance(exc, StopAsyncIteration) else exc)
            else:
                if not asked.cancelled():
                    asked.set_result(item)


class Blocking(Generic[A]):
    """One object of the SDK, used from any thread but its loop's. `of` is that object."""

    of: A
    _held: Held[Any] | None = None

    @classmethod
    def around(cls, of: A) -> Self:
        """The blocking twin of an object."""
        twin = cls.__new__(cls)
        twin.of = of
        return twin

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "of":
            raise AttributeError(name)
        return getattr(self.of, name)


class BlockingContext(Blocking[A]):
    """One that is entered and left."""

    def __enter__(self) -> Self:
        self._held = Held(cast("AbstractAsyncContextManager[Any, bool | None]", self.of))
        self._held.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> bool:
        assert self._held is not None  # noqa: S101 - entered before
        return self._held.exit(exc)


class BlockingIterator(BlockingContext[A], Generic[A, T]):
    """One that is iterated over."""

    _items: Generator[T, None, None] | None = None

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if self._items is None:
            self._items = each(cast("AsyncIterator[T]", self.of))
        return next(self._items)


def plain(value: Any) -> Any:
    """What the async side is given for something of this side, or for several."""
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value.of if isinstance(value, Blocking) else value


def in_thread(function: Callable[..., T], around: type[Blocking[Any]]) -> Callable[..., Awaitable[T]]:
    """An async function that runs a blocking one in a thread, its first argument wrapped.

    Cancelled, it does not wait for the thread: what that calls next is refused, for the lease is gone or the run over.
    """

    async def run(of: Any, *more: Any) -> T:
        return await asyncio.to_thread(function, around.around(of), *more)

    return run
