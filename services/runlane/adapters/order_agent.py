"""The agent of `runlane demo --crash`: it takes an order, and what it does to the world ends up in a book.

The book is a file of JSON lines, one for each time that an effect ran. It stands for the world: a warehouse, a bank, a
mail server. So it shows what no log can: what really happened, and how often.
"""

import asyncio
import os
from pathlib import Path
from typing import Any

from runlane.client import Executed, NotExecuted, RunContext, ToolInProgress, UnknownCall
from runlane_contracts.codec import decode_json, encode

ORDER = {"order": 17, "item": "espresso machine", "amount": 249, "currency": "EUR"}
STALLED_S = 120.0


class Book:
    """What really happened."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def entries(self) -> list[dict[str, Any]]:
        """Every execution, in order."""
        if not self._path.exists():
            return []
        return [decode_json(line) for line in self._path.read_bytes().splitlines() if line.endswith(b"}")]

    def find(self, operation_id: str) -> dict[str, Any] | None:
        """The first execution of an operation."""
        return next((one for one in self.entries() if one["operation_id"] == operation_id), None)

    def write(self, entry: dict[str, Any]) -> None:
        """One more execution; in the file when this returns."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, encode(entry) + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class OrderDesk:
    """The agent and its effects. In `stalls_in` the effect happens, and its answer never comes."""

    def __init__(self, book: Book, worker_id: str, *, stalls_in: str = "") -> None:
        self._book = book
        self._worker_id = worker_id
        self._stalls_in = stalls_in

    async def agent(self, ctx: RunContext) -> dict[str, Any]:
        """Reserve, ask, charge, confirm. It knows nothing of crashes."""
        order = ctx.input
        await ctx.call("reserve_stock", {"item": order["item"]}, self.effect, side_effect="idempotent")
        bill = {"amount": order["amount"], "currency": order["currency"]}
        answer = await ctx.approval("charge the customer's card", data=bill)
        if answer.decision != "approved":
            return {"order": order["order"], "charged": False}
        receipt = await ctx.call("charge_card", bill, self.effect, side_effect="unsafe")
        await ctx.call("send_receipt", receipt, self.effect, side_effect="idempotent")
        return {"order": order["order"], "charged": True, "receipt": receipt}

    async def effect(self, call: ToolInProgress) -> dict[str, Any]:
        """Do it, and write it in the book."""
        self._book.write({"did": call.name, "operation_id": call.operation_id, "by": self._worker_id})
        if call.name == self._stalls_in:
            await asyncio.sleep(STALLED_S)
        return _receipt(call.operation_id)

    async def reconcile(self, _ctx: RunContext, call: UnknownCall) -> Executed | NotExecuted:
        """The bank can tell whether it knows an operation; here the book can."""
        found = self._book.find(call.operation_id)
        return NotExecuted("it is not in the book") if found is None else Executed(_receipt(call.operation_id))


def _receipt(operation_id: str) -> dict[str, Any]:
    return {"number": operation_id[-6:]}
