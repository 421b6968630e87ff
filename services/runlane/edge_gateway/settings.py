"""The edge gateway's knobs. From `RUNLANE_EDGE_…` variables; what all services share from `RUNLANE_…`."""

from typing import Self

from pydantic import AliasChoices, Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from runlane.edge_gateway.crowd import CrowdLimits
from runlane.edge_gateway.hub import HubLimits
from runlane.edge_gateway.lanes import LaneBytes
from runlane.edge_gateway.pressure import PressureLimits
from runlane.edge_gateway.watcher import WatchLimits
from runlane.edge_gateway.websocket.limits import SocketLimits
from runlane.hosting.http_server import MAX_MESSAGE_BYTES
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
    previews_bytes: int = Field(
        default=64 * MIB, ge=MIB, description="And over all runs; beyond it each keeps an eighth of its own bound."
    )
    coalesce_high_bytes: int = Field(
        default=64 * 1024,
        ge=1024,
        description="Waiting previews of one reader from which they are coalesced longer.",
    )
    coalesce_low_bytes: int = Field(
        default=8 * 1024, ge=0, description="Waiting previews of one reader down to which that goes on."
    )
    coalesce_s: float = Field(
        default=0.25, gt=0, le=10, description="How long the previews of a reader that is too slow for them gather."
    )
    lane_low_bytes: int = Field(
        default=4 * 1024, ge=0, description="Unsent bytes of a connection at which it is open to every lane again."
    )
    lane_previews_bytes: int = Field(
        default=16 * 1024, ge=1024, description="Unsent bytes of a connection at which it is closed to previews."
    )
    lane_status_bytes: int = Field(default=24 * 1024, ge=1024, description="The same for status (`latest_value`).")
    lane_facts_bytes: int = Field(default=32 * 1024, ge=1024, description="The same for facts.")
    lane_critical_bytes: int = Field(
        default=48 * 1024,
        ge=1024,
        description="The same for facts up to an approval, input, run fact or failure.",
    )
    send_buffer_bytes: int = Field(
        default=256 * 1024, ge=0, description="What the system may buffer beyond that per connection; 0: as it pleases."
    )
    history_readers: int = Field(default=32, ge=1, description="Pages of history that are read at a time.")
    history_bytes: int = Field(
        default=32 * MIB, ge=MIB, description="What readers hold of history together; beyond it pages are 64 KiB."
    )
    linger_s: float = Field(default=10.0, ge=0, le=3600, description="A run stays open so long after its last watcher.")
    sweep_s: float = Field(
        default=5.0, gt=0, le=600, description="How often it is checked that no live message was missed."
    )
    heartbeat_s: float = Field(default=12.0, gt=0, le=300, description="Longest silence on an open watch.")
    stall_s: float = Field(default=30.0, gt=0, le=3600, description="A client that takes nothing so long is closed.")
    lifetime_s: float = Field(
        default=0.0, ge=0, description="Longest watch, each up to a fifth shorter; then `end: lifetime`. 0: no bound."
    )
    goodbye_s: float = Field(default=5.0, gt=0, le=60, description="How long a client may take to hear `end`.")
    returns_per_s: float = Field(
        default=500.0, gt=0, description="How fast those who are told `end: shutdown` are asked to come back, in all."
    )
    reauthorize_s: float = Field(default=1.0, gt=0, description="How often an open watch's credentials are checked.")
    max_sockets: int = Field(default=10_000, ge=1, description="Open WebSockets; more are `overloaded`.")
    max_tenant_sockets: int = Field(
        default=2_000, ge=1, description="Open WebSockets of one tenant; more are `quota_exceeded`."
    )
    socket_subscriptions: int = Field(default=32, ge=1, le=1000, description="Watches on one WebSocket.")
    socket_credit: int = Field(
        default=1_000, ge=1, le=100_000, description="Facts of a watch that may be unacknowledged on a WebSocket."
    )
    socket_message_bytes: int = Field(
        default=MAX_MESSAGE_BYTES, ge=1024, le=MAX_MESSAGE_BYTES, description="Largest message of a WebSocket client."
    )
    allowed_origins: str = Field(
        default="",
        description="Pages of other hosts that may open a WebSocket, such as https://ops.example, by commas.",
    )
    expiry_warning_s: float = Field(
        default=60.0, gt=0, description="How long before its token expires a WebSocket client is warned."
    )
    fresh_wait_s: float = Field(
        default=0.25, ge=0, le=5, description="How long a read without `min_sequence` waits for what the log held."
    )
    lists_wait_s: float = Field(
        default=2.0, ge=0, le=30, description="How long a list waits for what the log held, before it says `behind`."
    )
    max_poll_s: float = Field(
        default=30.0,
        gt=0,
        le=300,
        description="Longest `wait_s` of `GET …/events`; proxies cut what is silent longer.",
    )
    visible_wait_s: float = Field(
        default=5.0, gt=0, le=60, description="How long a read waits for the view before `not_yet_visible`."
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        lanes = (
            self.lane_low_bytes, self.lane_previews_bytes, self.lane_status_bytes, self.lane_facts_bytes,
            self.lane_critical_bytes,
        )  # fmt: skip
        if list(lanes) != sorted(lanes):
            raise ValueError("lane_…_bytes: low, previews, status, facts and critical must not decrease")
        if self.coalesce_low_bytes > self.coalesce_high_bytes:
            raise ValueError("coalesce_low_bytes is above coalesce_high_bytes")
        return self

    @property
    def hub_limits(self) -> HubLimits:
        """Bounds of the hubs."""
        return HubLimits(
            ring_bytes=self.ring_bytes,
            preview_bytes=self.preview_bytes,
            total_preview_bytes=self.previews_bytes,
            total_ring_bytes=self.rings_bytes,
            history_readers=self.history_readers,
            history_bytes=self.history_bytes,
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
            goodbye_s=self.goodbye_s,
            lanes=self.lanes,
            pressure=PressureLimits(
                high_bytes=self.coalesce_high_bytes, low_bytes=self.coalesce_low_bytes, coalesce_s=self.coalesce_s
            ),
        )

    @property
    def lanes(self) -> LaneBytes:
        """Bounds of what is unsent on one connection."""
        return LaneBytes(
            low=self.lane_low_bytes,
            previews=self.lane_previews_bytes,
            status=self.lane_status_bytes,
            facts=self.lane_facts_bytes,
            critical=self.lane_critical_bytes,
            kernel=self.send_buffer_bytes,
        )

    @property
    def socket_limits(self) -> SocketLimits:
        """Bounds of each WebSocket and of all."""
        return SocketLimits(
            lanes=self.watch_limits.lanes,
            max_connections=self.max_sockets,
            max_connections_per_tenant=self.max_tenant_sockets,
            max_message_bytes=self.socket_message_bytes,
            max_subscriptions=self.socket_subscriptions,
            credit=self.socket_credit,
            heartbeat_s=self.heartbeat_s,
            stall_s=self.stall_s,
            lifetime_s=self.lifetime_s,
            expiry_warning_s=self.expiry_warning_s,
        )

    @property
    def origins(self) -> frozenset[str]:
        """Pages of other hosts that may open a WebSocket."""
        return frozenset(one.strip().rstrip("/").lower() for one in self.allowed_origins.split(",") if one.strip())

    @property
    def crowd_limits(self) -> CrowdLimits:
        """How many may follow."""
        return CrowdLimits(
            total=self.max_watchers,
            of_tenant=self.max_tenant_watchers,
            reauthorize_s=self.reauthorize_s,
            goodbye_s=self.goodbye_s,
            returns_per_s=self.returns_per_s,
        )
