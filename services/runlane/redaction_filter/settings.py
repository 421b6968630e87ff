"""Every knob of the redaction filter. From `RUNLANE_REDACTION_FILTER_…` variables; what all share from `RUNLANE_…`."""

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from runlane.hosting.settings import CommonSettings
from runlane_contracts.streams import MIB


class RedactionFilterSettings(BaseSettings):
    """Frozen; checked at start."""

    model_config = SettingsConfigDict(env_prefix="RUNLANE_REDACTION_FILTER_", frozen=True, extra="ignore")

    common: CommonSettings = Field(default_factory=CommonSettings, description="What all services share.")
    batch_messages: int = Field(default=256, ge=1, le=4096, description="Log messages derived at a time, at most.")
    batch_bytes: int = Field(default=4 * MIB, ge=MIB, le=64 * MIB, description="And their size.")
    start_wait_s: float = Field(
        default=1.0, ge=0, le=60, description="How long starting waits to become the active one before it stands by."
    )
    preview_inbox_bytes: int = Field(
        default=16 * MIB, ge=64 * 1024, le=1024 * MIB, description="Raw previews that wait; the oldest give way."
    )
    preview_state_bytes: int = Field(
        default=16 * MIB, ge=64 * 1024, le=1024 * MIB,
        description="Text kept of unfinished previews, to find secrets split over fragments.",
    )  # fmt: skip
    preview_states: int = Field(default=20_000, ge=1, le=1_000_000, description="Of how many previews.")
