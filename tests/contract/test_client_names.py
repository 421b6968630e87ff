"""The SDK's public names are a promise: a change here comes with a line in the changelog."""

from importlib import import_module

import runlane.client

PINNED = (
    "ActionOutcome AlreadyRan Applied BackoffPolicy CheckpointRefused CheckpointStore Client CommandFactory "
    "Connection ContractViolation CursorStore Declined Effect End Executed Fact FileCheckpointStore FileCursorStore "
    "Held Hello HttpTransport Intent LeaseLost MemoryCheckpointStore MemoryCursorStore NatsPools NatsTransport "
    "NonDeterministic NotExecuted Preview PreviewEntry PreviewGap PreviewOverlay ReadOutcome Reconcile Redactor "
    "Refused RequestRefused ResetRequired Resumed RunActions RunCancelled RunContext RunReader RunState RunTerminal "
    "RunWriter RunlaneError SnapshotFrame SnapshotGiven SqliteCheckpointStore Synced TokenRedactor ToolCallFailed "
    "ToolInProgress Unknown UnknownCall Unreachable WebSocketTransport Worker"
)


def test_the_public_names_are_the_pinned_ones():
    assert " ".join(runlane.client.__all__) == PINNED


def test_each_name_is_there_says_what_it_is_and_comes_from_its_home():
    for name in runlane.client.__all__:
        value = getattr(runlane.client, name)
        assert value is getattr(import_module(runlane.client._HOME[name]), name)
    assert set(runlane.client._HOME) == set(runlane.client.__all__)
