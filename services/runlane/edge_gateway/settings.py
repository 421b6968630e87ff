"""The edge gateway's knobs. From `RUNLANE_EDGE_…` variables; what all services share from `RUNLANE_…`."""

from pydantic import AliasChoices, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from runlane.edge_gateway.crowd import CrowdLimits
from runlane.edge_gateway.hub import HubLimits
from runlane.edge_gateway.watcher import WatchLimits
from runlane.hosting.settings import AccessSettings, CommonSettings
from runlane_contracts.streams import MAX_COMMIT_BYTES, MIB


class EdgeGatewaySettings(BaseSettings):
    """Frozen; the unit is in the name."""

    model_config = SettingsConfigDict(env_prefix="RUNLANE_EDGE_", frozen=True, extra="ignore", populate_by_name=True)

    common: CommonSettings = Field(default_factory=CommonSettings, description="What all services share.")
    access: AccessSettings = Field(default_factory=AccessSettings, description="Whose keys are let in.")
    http_host: str = Field(default="127.0.0.1", description="Where it listens.")
    http_port: int = Field(default=8420, ge=0, le=65_535, description="Its port; 0 takes a free one.")
    command_gateway_url: str | None = Field(
        default="http://127.0.0.1:8421",
        description="Where commands and producers are handed on to; none when both serve one port in one process.",
    )
    command_connections: int = Field(default=100, ge=1, le=10_000, description="Connections to the command gateway.")
    max_body_bytes: int = Field(default=MAX_COMMIT_BYTES, ge=1024, description="Largest body that is handed on.")
    read_store_url: str = Field(
        default="sqlite:///.runlane/read.sqlite",
        validation_alias=AliasChoices("RUNLANE_EDGE_READ_STORE_URL", "RUNLANE_READ_STORE_URL", "read_store_url"),
        description="Where the projector keeps states: sqlite:///path or postgresql://user:password@host/name.",
    )
    read_store_timeout_s: float = Field(default=5.0, gt=0, le=300, description="How long one read may take.")
    read_store_readers: int = Field(default=4, ge=1, le=100, description="Connections that read from it.")

    object_store_url: str = Field(
        default=".runlane/objects",
        validation_alias=AliasChoices("RUNLANE_EDGE_OBJECT_STORE_URL", "RUNLANE_OBJECT_STORE_URL", "object_store_url"),
        description="Where archives and content are: a folder, or a URL such as s3://bucket/prefix.",
    )

    max_watchers: int = Field(default=20_000, ge=1, description="Open watches; more are `overloaded`.")
    max_tenant_watchers: int = Field(
        default=10_000, ge=1, description="Open watches of one tenant; more are `quota_exceeded`."
    )
    max_runs: int = Field(default=20_000, ge=1, description="Runs that are watched at a time; more are `overloaded`.")
    ring_bytes: int = Field(default=MIB, ge=0, description="Newest frames kept per watched run.")
    rings_bytes: int = Field(default=128 * MIB, ge=MIB, description="And over all runs.")
    preview_bytes: int = Field(
        default=256 * 1024, ge=4096, description="Newest previews kept per watched run; older ones become a gap."
    )
    history_readers: int = Field(default=32, ge=1, description="Pages of history that are read at a time.")
    linger_s: float = Field(default=10.0, ge=0, le=3600, description="A run stays open so long after its last watcher.")
    sweep_s: float = Field(
        default=5.0, gt=0, le=600, description="How often it is checked that no live message was missed."
    )
    heartbeat_s: float = Field(default=12.0, gt=0, le=300, description="Longest silence on an open watch.")
    stall_s: float = Field(default=30.0, gt=0, le=3600, description="A client that takes nothing so long is closed.")
    lifetime_s: float = Field(default=0.0, ge=0, description="Longest watch; 0: no bound.")
    reauthorize_s: float = Field(default=1.0, gt=0, description="How often an open watch's credentials are checked.")
    fresh_wait_s: float = Field(
        default=0.25, ge=0, le=5, description="How long a read without `min_sequence` waits for what the log held."
    )
    lists_wait_s: float = Field(
        default=2.0, ge=0, le=30, description="How long a list waits for what the log held, before it says `behind`."
    )
    visible_wait_s: float = Field(
        default=5.0, gt=0, le=60, description="How long a read waits for the view before `not_yet_visible`."
    )

    @property
    def hub_limits(self) -> HubLimits:
        """Bounds of the hubs."""
        return HubLimits(
            ring_bytes=self.ring_bytes,
            preview_bytes=self.preview_bytes,
            total_ring_bytes=self.rings_bytes,
            history_readers=self.history_readers,
            linger_s=self.linger_s,
            sweep_s=self.sweep_s,
            max_hubs=self.max_runs,
        )

    @property
    def watch_limits(self) -> WatchLimits:
        """Bounds of each watch."""
        return WatchLimits(
            heartbeat_s=self.heartbeat_s,
            stall_s=self.stall_s,
            lifetime_s=self.lifetime_s,
        )

    @property
    def crowd_limits(self) -> CrowdLimits:
        """How many may follow."""
        return CrowdLimits(
            total=self.max_watchers, of_tenant=self.max_tenant_watchers, reauthorize_s=self.reauthorize_s
        )
