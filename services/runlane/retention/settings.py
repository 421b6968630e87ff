"""Every knob of retention. From `RUNLANE_RETENTION_…` variables; what all services share from `RUNLANE_…`."""

from typing import Self

from pydantic import AliasChoices, Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from runlane.hosting.settings import CommonSettings
from runlane.retention.policy import Policy, policy_of


class RetentionSettings(BaseSettings):
    """Frozen; checked at start."""

    model_config = SettingsConfigDict(
        env_prefix="RUNLANE_RETENTION_", frozen=True, extra="ignore", populate_by_name=True
    )

    common: CommonSettings = Field(default_factory=CommonSettings, description="What all services share.")
    read_store_url: str = Field(
        default="sqlite:///.runlane/read.sqlite",
        validation_alias=AliasChoices("RUNLANE_RETENTION_READ_STORE_URL", "RUNLANE_READ_STORE_URL", "read_store_url"),
        description="Where the projector keeps states: which runs are over, and since when.",
    )
    object_store_url: str = Field(
        default=".runlane/objects",
        validation_alias=AliasChoices(
            "RUNLANE_RETENTION_OBJECT_STORE_URL", "RUNLANE_OBJECT_STORE_URL", "object_store_url"
        ),
        description="Where archives and content go: a folder, or a URL such as s3://bucket/prefix.",
    )
    classes: str = Field(
        default="default=30d",
        description="How long a finished run stays in the log, by class: name=age, separated by commas; an age is a "
        "number and s, m, h, d or w, or never.",
    )
    tenants: str = Field(default="", description="Which tenant falls in which class: tenant=class, by commas.")
    every_s: float = Field(
        default=0.0, ge=0, le=7 * 86_400, description="How often it compacts by itself; 0: only when asked."
    )
    overwrite: bool = Field(
        default=True,
        description="Overwrite what is archived, message by message, when it is taken out. Off, it is purged: much "
        "faster, but a later erasure finds nothing to overwrite. An erasure always overwrites what is there.",
    )
    max_runs: int = Field(default=10_000, ge=1, description="Runs compacted in one go, at most.")
    wait_s: float = Field(
        default=20.0, gt=0, le=600,
        description="How long one run waits for the view and for consumers that have not read it yet.",
    )  # fmt: skip

    @model_validator(mode="after")
    def _can_be_read(self) -> Self:
        policy_of(self.classes, self.tenants)
        return self

    @property
    def policy(self) -> Policy:
        """The classes."""
        return policy_of(self.classes, self.tenants)
