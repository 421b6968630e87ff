"""A run as a client holds it."""

import pytest

from runlane.client.errors import ContractViolation
from runlane.client.state import RunState
from support.runs import a_short_run


@pytest.mark.parametrize("type_", ["run.teleported", "approval.forwarded", "input.guessed", "log.rotated"])
def test_a_client_stops_at_a_type_it_must_understand_and_does_not(type_: str) -> None:
    story = a_short_run().raw(type_)
    state = RunState("run_1", "acme")
    for fact in story.facts[:-1]:
        state.apply(fact)
    before = state.checksum()
    with pytest.raises(ContractViolation):
        state.apply(story.facts[-1])
    assert state.checksum() == before


def test_a_client_goes_on_after_any_other_type_it_does_not_know() -> None:
    story = a_short_run().raw("holo.projected", event_id="evt_9")
    state = RunState("run_1", "acme")
    for fact in story.facts:
        state.apply(fact)
    assert "other:evt_9" in state.data["items"]
