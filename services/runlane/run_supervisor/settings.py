"""The run supervisor's knobs. From `RUNLANE_RUN_SUPERVISOR_…` variables."""

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from runlane.hosting.settings import CommonSettings


class RunSupervisorSettings(BaseSettings):
    """Frozen; the unit is in the name."""

    model_config = SettingsConfigDict(env_prefix="RUNLANE_RUN_SUPERVISOR_", frozen=True, extra="ignore")

    common: CommonSettings = Field(default_factory=CommonSettings, description="What all services share.")

    command_concurrency: int = Field(
        default=32, ge=1, le=512, description="Runs whose commands are applied at the same time; one at a time each."
    )
    command_expiry_s: float = Field(
        default=86_400.0,
        gt=0,
        le=172_800,
        description="A command that could not be applied for so long expires without effect.",
    )
    timer_concurrency: int = Field(default=32, ge=1, le=512, description="Runs that are looked at at the same time.")
    start_timeout_s: float = Field(
        default=15.0, gt=0, le=300, description="How long the moments and leases may take to be known at the start."
    )
    drain_s: float = Field(
        default=5.0, gt=0, le=60, description="How long a stopping supervisor may take for what it has in hand."
    )
    max_open_runs: int = Field(default=10_000, ge=1, description="Runs whose lifecycle is kept in memory.")
    max_kept_facts: int = Field(
        default=1_000_000, ge=1000, description="Facts whose ids are kept in memory, over all runs."
    )
