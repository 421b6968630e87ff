"""The command gateway's knobs. From `RUNLANE_COMMAND_GATEWAY_…` variables."""

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from runlane.hosting.settings import AccessSettings, CommonSettings
from runlane_contracts.streams import MAX_COMMIT_BYTES


class CommandGatewaySettings(BaseSettings):
    """Frozen; the unit is in the name."""

    model_config = SettingsConfigDict(env_prefix="RUNLANE_COMMAND_GATEWAY_", frozen=True, extra="ignore")

    common: CommonSettings = Field(default_factory=CommonSettings, description="What all services share.")
    access: AccessSettings = Field(default_factory=AccessSettings, description="Whose keys are let in.")

    http_host: str = Field(default="127.0.0.1", description="Where it listens.")
    http_port: int = Field(default=8421, ge=0, le=65_535, description="Its port; 0 takes a free one.")
    max_body_bytes: int = Field(
        default=MAX_COMMIT_BYTES, ge=1024, description="Largest request body; a larger one is `payload_too_large`."
    )
    start_wait_s: float = Field(
        default=5.0, ge=0, le=60, description="How long a start waits for `run.created` when the client says nothing."
    )
    max_wait_s: float = Field(default=60.0, ge=0, le=300, description="The longest `Prefer: wait` that is honoured.")
    outcome_poll_s: float = Field(
        default=0.25, gt=0, le=10, description="How often the ledger is read while a wake-up may have been lost."
    )
    max_open_runs: int = Field(default=10_000, ge=1, description="Runs whose lifecycle is kept in memory.")
    max_kept_facts: int = Field(
        default=1_000_000, ge=1000, description="Facts whose ids are kept in memory, over all runs, to know repeats."
    )
    previews_per_s: float = Field(default=2_000.0, gt=0, description="Preview fragments per second and tenant.")
    previews_burst: float = Field(default=4_000.0, gt=0, description="Preview fragments a tenant may send at once.")
