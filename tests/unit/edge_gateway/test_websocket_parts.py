"""Messages that are larger than a client takes."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, strategies as st

from runlane.edge_gateway.memory_view import MemoryView
from runlane.edge_gateway.websocket.frames import in_parts, text_frame, text_of
from runlane_contracts import events
from runlane_contracts.codec import decode_json, encode
from runlane_contracts.subjects import RunAddress
from runlane_contracts.websocket import LEAST_MESSAGE_BYTES
from support.runs import Story
from support.websocket import RpcError, WsClient, door

RUN = RunAddress("acme", "run_1")


@given(st.lists(st.text() | st.sampled_from(['"', "\\", "é", "\U0001f389"]).map(lambda one: one * 3000), max_size=8))
def test_parts_are_the_message_and_none_is_too_large(texts: list[str]) -> None:
    message = encode(texts)
    parts = [text_of(frame) for frame in in_parts(message, LEAST_MESSAGE_BYTES)]
    assert all(len(part) <= LEAST_MESSAGE_BYTES for part in parts)
    told = [decode_json(part)["params"] for part in parts]
    assert [one["part"] for one in told] == list(range(1, len(parts) + 1))
    assert {one["parts"] for one in told} == {len(parts)}
    assert "".join(one["text"] for one in told).encode() == message


@given(st.integers(0, 70_000))
def test_the_message_in_a_frame_is_found_whatever_its_size(size: int) -> None:
    assert text_of(text_frame(b"x" * size)) == b"x" * size


async def joined(client: WsClient, method: str) -> list[dict[str, Any]]:
    """The messages up to the first of this method, as a client puts them together."""
    found: list[dict[str, Any]] = []
    text = ""
    async with asyncio.timeout(20):
        while not found or found[-1].get("method") != method:
            message = decode_json(str(await client.socket.recv()))
            if message.get("method") == "message/part":
                text += message["params"]["text"]
                if message["params"]["part"] < message["params"]["parts"]:
                    continue
                message, text = decode_json(text), ""
            assert not text, "nothing comes between parts"
            found.append(message)
    return found


async def test_a_client_with_a_small_bound_gets_everything_in_parts_that_it_takes() -> None:
    """Take `Outlet.write`'s parts out: the client's library closes the connection with 1009."""
    large = '"é\\\n' * 20_000
    story = Story().then(events.RunCreated(agent="a"), events.RunStarted())
    story.then(events.MessageCompleted(message_id="m1", role="assistant", content=large), events.RunCompleted())
    view = MemoryView()
    view.store(RUN, story.facts)
    async with door(view) as gateway, gateway.connect(max_size=LEAST_MESSAGE_BYTES) as client:
        told = await client.call(
            "initialize", protocol_version=1, capabilities={"max_message_bytes": LEAST_MESSAGE_BYTES}
        )
        assert told["capabilities"] == {"max_message_bytes": LEAST_MESSAGE_BYTES}
        await client.send({"jsonrpc": "2.0", "id": 7, "method": "run/watch", "params": {"run_id": "run_1"}})
        messages = await joined(client, "run/end")
        (snapshot,) = [one["params"] for one in messages if one.get("method") == "run/snapshot"]
        assert snapshot["state"]["items"]["message:m1"]["content"] == large
        watch = {"run_id": "run_1", "from": "start"}
        await client.send({"jsonrpc": "2.0", "id": 8, "method": "run/watch", "params": watch})
        messages = await joined(client, "run/end")
        facts = [one["params"]["fact"] for one in messages if one.get("method") == "run/fact"]
        assert [one["sequence"] for one in facts] == [1, 2, 3, 4]
        assert facts[2]["payload"]["content"] == large


async def test_a_bound_that_is_none_is_refused_and_other_capabilities_are_not_ours() -> None:
    async with door() as gateway, gateway.connect() as client:
        for nonsense in (0, -1, LEAST_MESSAGE_BYTES - 1, 1e6, "4096", True, [], {}):
            with pytest.raises(RpcError, match="max_message_bytes") as refused:
                await client.call("initialize", protocol_version=1, capabilities={"max_message_bytes": nonsense})
            assert refused.value.code == "invalid_request"
        told = await client.call(
            "initialize", protocol_version=1, capabilities={"colours": 16, "max_message_bytes": None}
        )
        assert "capabilities" not in told
