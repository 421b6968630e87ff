"""Every knob of `follow`, from `RUNLANE_BROKER_LOG_…` variables; what all services share from `RUNLANE_…`."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from runlane.hosting.settings import CommonSettings


class BrokerLogSettings(BaseSettings):
    """Frozen; checked at start."""

    model_config = SettingsConfigDict(env_prefix="RUNLANE_BROKER_LOG_", frozen=True, extra="ignore")

    common: CommonSettings = Field(default_factory=CommonSettings, description="What all services share.")
    path: Path = Field(
        default=Path("/log/server.log"),
        description="The broker's `log_file`, with `logtime_utc: true`, in a folder that may be written to.",
    )
