"""Every knob of the metrics aggregator, from `RUNLANE_METRICS_AGGREGATOR_…`; what all share, from `RUNLANE_…`."""

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from runlane.hosting.settings import CommonSettings
from runlane_contracts.ids import is_tenant


class MetricsAggregatorSettings(BaseSettings):
    """Frozen; checked at start."""

    model_config = SettingsConfigDict(
        env_prefix="RUNLANE_METRICS_AGGREGATOR_", frozen=True, extra="ignore", populate_by_name=True
    )

    common: CommonSettings = Field(default_factory=CommonSettings, description="What all services share.")
    broker_password: SecretStr | None = Field(
        default=None,
        description="Password of the user `broker_monitor`, who may ask the servers how they are. Unset: they are not.",
    )
    broker_interval_s: float = Field(
        default=10.0, ge=1, le=600, description="How often the broker is asked for its streams, consumers and servers."
    )
    batch_messages: int = Field(default=512, ge=1, le=2048, description="Signals counted at once, at most.")
    checkpoint_s: float = Field(
        default=10.0, ge=0.5, le=300, description="How often what was counted is written down, if anything was."
    )
    max_open_runs: int = Field(
        default=50_000, ge=10, description="Unfinished runs followed at once; the one seen longest ago is given up."
    )
    max_tenants: int = Field(default=100, ge=1, description="Tenants with a label of their own.")
    max_agents: int = Field(default=200, ge=1, description="Agents with a label of their own, over all tenants.")
    max_agents_per_tenant: int = Field(default=20, ge=1, description="And of one tenant.")
    max_tools: int = Field(default=100, ge=1, description="Tools with a label of their own.")
    max_pools: int = Field(default=50, ge=1, description="Pools with a label of their own.")
    max_waiting_spans: int = Field(
        default=20_000, ge=100, description="Spans that wait for the collector; beyond it the oldest are dropped."
    )
    content_tenants: str = Field(
        default="",
        description="Tenants whose spans show content (messages, arguments, results), by name, separated by commas. "
        "As people may see it: masked, from the view. Empty: no span shows any.",
    )
    content_password: SecretStr | None = Field(
        default=None,
        description="Password of the user `content_reader`, who may read the view. Unset: no span shows content.",
    )
    content_max_chars: int = Field(
        default=8192, ge=64, le=262_144, description="Of one message, arguments or result on a span; the rest is cut."
    )
    max_span_age_s: float = Field(
        default=3600.0, gt=0, description="Spans that ended longer ago (the service was away) are not sent any more."
    )

    @field_validator("content_tenants")
    @classmethod
    def _names_tenants(cls, value: str) -> str:
        wrong = [one for one in _names_in(value) if not is_tenant(one)]
        if wrong:
            raise ValueError(f"{wrong[0]!r} is no tenant; each is named, there is no word for all")
        return value

    @property
    def content_of(self) -> frozenset[str]:
        """The tenants whose spans show content."""
        return frozenset(_names_in(self.content_tenants))


def _names_in(text: str) -> list[str]:
    return [name for one in text.split(",") if (name := one.strip())]
