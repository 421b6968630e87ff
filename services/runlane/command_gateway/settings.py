"""The command gateway's knobs. From `RUNLANE_COMMAND_GATEWAY_…` variables."""

from pydantic import AliasChoices, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from runlane.hosting.settings import AccessSettings, CommonSettings
from runlane_contracts.streams import MAX_COMMIT_BYTES, MIB


class CommandGatewaySettings(BaseSettings):
    """Frozen; the unit is in the name."""

    model_config = SettingsConfigDict(
        env_prefix="RUNLANE_COMMAND_GATEWAY_", frozen=True, extra="ignore", populate_by_name=True
    )

    common: CommonSettings = Field(default_factory=CommonSettings, description="What all services share.")
    access: AccessSettings = Field(default_factory=AccessSettings, description="Whose keys are let in.")

    http_host: str = Field(default="127.0.0.1", description="Where it listens.")
    http_port: int = Field(default=8421, ge=0, le=65_535, description="Its port; 0 takes a free one.")

    max_events_bytes: int = Field(
        default=MAX_COMMIT_BYTES, ge=1024, description="Largest body of an append; a larger one is `payload_too_large`."
    )
    max_command_bytes: int = Field(
        default=MIB, ge=1024, le=MAX_COMMIT_BYTES, description="Largest body of a start or a command."
    )
    max_previews_bytes: int = Field(default=MIB, ge=1024, description="Largest body of a previews request.")

    object_store_url: str = Field(
        default=".runlane/objects",
        validation_alias=AliasChoices(
            "RUNLANE_COMMAND_GATEWAY_OBJECT_STORE_URL", "RUNLANE_OBJECT_STORE_URL", "object_store_url"
        ),
        description="Where content goes: a folder, or a URL such as s3://bucket/prefix.",
    )
    max_content_bytes: int = Field(
        default=64 * MIB, ge=1024, description="Largest content of a producer; larger is `payload_too_large`."
    )
    content_bytes_per_s: float = Field(
        default=16.0 * MIB, gt=0, description="Content bytes a tenant may send a second."
    )
    content_burst_bytes: float = Field(default=256.0 * MIB, gt=0, description="Content bytes it may send at once.")

    start_wait_s: float = Field(
        default=5.0, ge=0, le=60, description="How long a start waits for `run.created` when the client says nothing."
    )
    max_wait_s: float = Field(default=60.0, ge=0, le=300, description="The longest `Prefer: wait` that is honored.")
    outcome_poll_s: float = Field(
        default=0.25, gt=0, le=10, description="How soon the ledger is read in case a wake-up was lost."
    )

    stray_after_s: float = Field(
        default=20.0,
        gt=0,
        le=3600,
        description="A command without an outcome after so long ends as `expired`, if it was never sent.",
    )
    stray_every_s: float = Field(default=5.0, gt=0, le=3600, description="How often the ledger is read for those.")

    max_open_runs: int = Field(default=10_000, ge=1, description="Runs whose lifecycle is kept in memory.")
    max_kept_facts: int = Field(
        default=1_000_000, ge=1000, description="Facts whose ids are kept in memory, over all runs, to know repeats."
    )

    starts_per_s: float = Field(default=500.0, gt=0, description="Runs a tenant may start per second.")
    starts_burst: float = Field(default=2_000.0, ge=1, description="Runs a tenant may start at once.")
    max_starting: int = Field(
        default=1_000, ge=1, description="Starts that may be under way; the next one is told `overloaded`."
    )
    max_starting_of_tenant: int = Field(
        default=500, ge=1, description="Of these, starts of one tenant; the next one is told `quota_exceeded`."
    )
    max_waiting_of_tenant: int = Field(
        default=100_000, ge=1, description="Runs of a tenant that wait for a worker; then no more for pools."
    )
    claims_at_once: int = Field(
        default=8,
        ge=1,
        le=256,
        description="Claims of HTTP workers that are looked at at the same time; while more wait, tenants take turns "
        "by their weight.",
    )
    full_at: float = Field(
        default=0.9, gt=0, le=1, description="Share of a stream's bytes from which on no new runs are let in."
    )
    fullness_every_s: float = Field(default=2.0, gt=0, le=60, description="How often the streams are looked at.")

    preview_bytes_per_s: float = Field(default=4.0 * MIB, gt=0, description="Preview bytes a tenant may send a second.")
    preview_burst_bytes: float = Field(default=16.0 * MIB, gt=0, description="Preview bytes a tenant may send at once.")
