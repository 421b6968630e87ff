"""`runlane demo --crash`: a worker is killed in the middle of a tool call, and another goes on."""

import asyncio
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from runlane.adapters.order_agent import ORDER, Book
from runlane.cli.crash_worker import TTL_S
from runlane.cli.failures import Failure
from runlane.cli.output import emit
from runlane.client import Applied, Fact, HttpTransport, RunActions, RunReader
from runlane.client.transports.ports import NewRun
from runlane.kernel.clock import new_id
from runlane_contracts.codec import decode_json

FATAL_CALL = "charge_card"
WITHIN_S = 60.0


class CrashDemo:
    """The show: one run, two workers, one kill."""

    def __init__(
        self, transport: HttpTransport, url: str, token: str, *, watch: Callable[[str], str], as_json: bool
    ) -> None:
        self._transport = transport
        self._environment = {**os.environ, "RUNLANE_URL": url, "RUNLANE_TOKEN": token}
        self._json = as_json
        self._run_id = new_id("run")
        self._watch = watch(self._run_id)  # what to type to look at it
        self._pool = f"demo-{self._run_id}"
        self._names: dict[str, str] = {}

    async def show(self) -> None:
        """Play it. Raises Failure if anything happened twice, or not at all."""
        with tempfile.TemporaryDirectory(prefix="runlane-demo-") as directory:
            book = Book(path := Path(directory) / "book.jsonl")
            try:
                async with asyncio.timeout(WITHIN_S):
                    output = await self._play(book, path)
            except TimeoutError as exc:
                raise Failure("timeout", f"the run did not end within {WITHIN_S:.0f} s: {self._watch}") from exc
            self._sum_up(book, output)

    async def _play(self, book: Book, path: Path) -> Any:
        first = await self._hire("worker-a", path, stalls_in=FATAL_CALL)
        second: asyncio.subprocess.Process | None = None
        try:
            new = NewRun(
                agent="order-desk", run_id=self._run_id, idempotency_key=self._run_id, input=ORDER, pool=self._pool
            )
            await self._transport.start_run(new)
            self._tell(f"An order comes in: run {self._run_id} waits for a worker.", started=self._run_id)
            following = asyncio.ensure_future(self._follow())
            try:
                await self._until_charged(book, first, following)
                first.kill()
                await first.wait()
                self._tell(
                    f"kill -9 {first.pid}: worker-a is dead. The card was charged; the log cannot know.",
                    killed=first.pid,
                )
                second = await self._hire("worker-b", path)
                self._tell(f"worker-b is hired. The dead one's lease runs out within {TTL_S:.0f} s.", hired="worker-b")
                return await following
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
        finally:
            for process in (first, second):
                if process is not None and process.returncode is None:
                    process.terminate()
                    await process.wait()

    async def _hire(self, name: str, book: Path, *, stalls_in: str = "") -> asyncio.subprocess.Process:
        worker_id = f"{name}-{self._run_id[-6:]}"
        self._names[worker_id] = name
        more = [stalls_in] if stalls_in else []
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "runlane.cli.crash_worker", self._pool, worker_id, str(book), *more,
            env=self._environment, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip

    @staticmethod
    async def _until_charged(book: Book, worker: asyncio.subprocess.Process, following: "asyncio.Future[Any]") -> None:
        while not any(entry["did"] == FATAL_CALL for entry in book.entries()):
            if following.done():
                raise Failure("failed", f"the run ended before it came to the crash: {following.result()}")
            if worker.returncode is not None:
                raise Failure("failed", "the first worker ended by itself")
            await asyncio.sleep(0.02)

    async def _follow(self) -> Any:
        output: Any = None
        async with RunReader(self._transport, self._run_id, from_="start", previews=False) as reader:
            async for item in reader:
                if not isinstance(item, Fact):
                    continue
                payload = decode_json(item.payload)
                if (text := self._words(item.type, payload)) is not None:
                    self._tell(text, fact=item.type, sequence=item.sequence)
                if item.type == "approval.requested":
                    await self._approve(payload)
                output = payload.get("output") if item.type == "run.completed" else output
        return output

    async def _approve(self, asked: dict[str, Any]) -> None:
        actions = RunActions(self._transport, self._run_id)
        outcome = await actions.resolve_approval(
            asked["approval_id"], "approved", expected_version=asked["version"], action_digest=asked["action_digest"]
        )
        outcome = await actions.settled(outcome)
        if not isinstance(outcome, Applied):
            raise Failure("failed", f"the approval was not taken: {outcome}")

    def _words(self, type_: str, payload: dict[str, Any]) -> str | None:
        name = self._call_name(payload)
        match type_:
            case "run.leased":
                attempt = payload.get("attempt", 1)
                again = " It begins anew, and is answered from the log." if attempt > 1 else ""
                return f"{self._worker(payload['worker_id'])} takes the run (attempt {attempt}).{again}"
            case "run.lease_lost":
                return "Its lease ran out, unconfirmed: the run has no owner."
            case "run.completed":
                return "The run is completed."
            case "run.failed":
                return f"The run failed: {payload['error']}"
            case _ if type_.startswith("approval."):
                decision = payload.get("decision")
                return "  it asks: may I charge the card?" if decision is None else f"  a person says: {decision}"
            case _:
                return _call_words(type_, name, payload, self._worker(payload.get("by", "")))

    def _call_name(self, payload: dict[str, Any]) -> str:
        id_ = payload.get("tool_call_id", "")
        if "name" in payload:
            self._names[id_] = str(payload["name"])
        return str(self._names.get(id_, id_))

    def _worker(self, worker_id: str) -> str:
        return self._names.get(worker_id, worker_id)

    def _sum_up(self, book: Book, output: Any) -> None:
        entries = book.entries()
        times = Counter(entry["did"] for entry in entries)
        if not self._json:
            click.echo("\nWhat really happened, from the book of the world:\n")
        for entry in entries:
            by = self._worker(entry["by"])
            self._tell(f"  {entry['did']:<14} operation …{entry['operation_id'][-6:]}  by {by}", executed=entry)
        wrong = sorted(did for did in ("reserve_stock", FATAL_CALL, "send_receipt") if times[did] != 1)
        if wrong or not isinstance(output, dict) or not output.get("charged"):
            raise Failure("failed", f"not everything happened once: {dict(times)}")
        if not self._json:
            click.echo()
        self._tell(
            f"Each once. One worker died in the middle, and nobody was charged twice: {self._watch}",
            run_id=self._run_id, each_once=True,
        )  # fmt: skip

    def _tell(self, text: str, **data: Any) -> None:
        if self._json:
            emit({"text": text.strip(), **data})
        else:
            click.echo(text)


def _call_words(type_: str, name: str, payload: dict[str, Any], by: str) -> str | None:
    match type_:
        case "tool.requested":
            return f"  it means to {name} ({payload.get('side_effect', 'none')})"
        case "tool.completed":
            return f"  {name}: done"
        case "tool.outcome_unknown":
            return f"  {name} was cut short. Did it happen? The log says: outcome unknown. It is not run again."
        case "tool.reconciled":
            return f"  {by} asks the bank, by the operation's id: {name} was {payload['outcome'].replace('_', ' ')}."
        case _:
            return None
