"""Every knob of the audit sink. From `RUNLANE_AUDIT_SINK_…` variables; what all services share from `RUNLANE_…`."""

from pathlib import Path

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from runlane.hosting.settings import CommonSettings
from runlane_contracts.streams import MIB


class AuditSinkSettings(BaseSettings):
    """Frozen; checked at start."""

    model_config = SettingsConfigDict(env_prefix="RUNLANE_AUDIT_SINK_", frozen=True, extra="ignore")

    common: CommonSettings = Field(default_factory=CommonSettings, description="What all services share.")
    signing_key: SecretStr = Field(
        default=SecretStr(""),
        validate_default=True,
        description="The Ed25519 seed that signs checkpoints: 32 bytes in hex. Required.",
    )
    checkpoint_records: int = Field(
        default=1000, ge=1, le=1_000_000, description="A tenant's chain is signed after so many records."
    )
    checkpoint_s: float = Field(
        default=60.0, gt=0, le=86_400, description="And when a record has waited for a signature so long."
    )
    batch_messages: int = Field(
        default=256, ge=1, le=4096, description="Messages of a source sealed at a time, at most."
    )
    batch_bytes: int = Field(default=4 * MIB, ge=MIB, le=64 * MIB, description="And their size.")

    broker_logs: tuple[Path, ...] = Field(
        default=(),
        description="Log files of brokers, a JSON list: what they refused is recorded. With `logtime_utc: true`.",
    )

    @field_validator("signing_key")
    @classmethod
    def _is_a_seed(cls, value: SecretStr) -> SecretStr:
        text = value.get_secret_value()
        if len(text) != 64 or not all(digit in "0123456789abcdef" for digit in text):
            raise ValueError("32 bytes in lower-case hex, such as `openssl rand -hex 32` makes")
        return value

    @property
    def seed(self) -> bytes:
        """The key's seed."""
        return bytes.fromhex(self.signing_key.get_secret_value())
