"""Every knob of the projector. From `RUNLANE_PROJECTOR_…` variables; what all services share from `RUNLANE_…`."""

from pydantic import AliasChoices, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from runlane.hosting.settings import CommonSettings
from runlane_contracts.streams import MIB


class ProjectorSettings(BaseSettings):
    """Frozen; checked at start."""

    model_config = SettingsConfigDict(
        env_prefix="RUNLANE_PROJECTOR_", frozen=True, extra="ignore", populate_by_name=True
    )

    common: CommonSettings = Field(default_factory=CommonSettings, description="What all services share.")
    read_store_url: str = Field(
        default="sqlite:///.runlane/read.sqlite",
        validation_alias=AliasChoices("RUNLANE_PROJECTOR_READ_STORE_URL", "RUNLANE_READ_STORE_URL", "read_store_url"),
        description="Where states are kept: sqlite:///path or postgresql://user:password@host/name.",
    )
    read_store_timeout_s: float = Field(default=10.0, gt=0, le=300, description="How long one transaction may take.")
    object_store_url: str = Field(
        default=".runlane/objects",
        validation_alias=AliasChoices(
            "RUNLANE_PROJECTOR_OBJECT_STORE_URL", "RUNLANE_OBJECT_STORE_URL", "object_store_url"
        ),
        description="Where archives are: the states of runs whose beginning is no longer in the view.",
    )
    batch_messages: int = Field(
        default=512, ge=1, le=4096, description="View messages folded in one transaction, at most."
    )
    pace_s: float = Field(
        default=0.05, ge=0, le=10, description="Least time between two transactions; what comes meanwhile is one."
    )
    batch_bytes: int = Field(default=8 * MIB, ge=MIB, le=256 * MIB, description="And their size.")
    cache_bytes: int = Field(
        default=64 * MIB, ge=0, description="States of unfinished runs kept in memory, as JSON, about."
    )
    cache_runs: int = Field(default=20_000, ge=1, description="And how many.")
    sweep_every_s: float = Field(default=60.0, gt=0, description="How often what a rebuild replaced is deleted.")
    keep_replaced_s: float = Field(
        default=86_400.0, ge=0, description="How long what a rebuild replaced is kept, for `runlane rebuild --back`."
    )
    rebuild_pause_s: float = Field(
        default=0.0, ge=0, le=10, description="Pause after each page of a rebuild, to leave the machine to others."
    )
