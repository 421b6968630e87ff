"""Where an agent keeps how far it got: an artifact of its run."""

from typing import Final

from runlane_contracts.commands import derived_id
from runlane_contracts.ids import ItemId, RunId

CHECKPOINT_TYPE: Final = "application/vnd.runlane.checkpoint+json"
"""The media type of the artifact that carries a checkpoint."""


def checkpoint_artifact_id(run_id: RunId) -> ItemId:
    """The artifact that carries the checkpoints of a run, where the SDK or the platform writes them."""
    return derived_id("art", run_id, "checkpoint")
