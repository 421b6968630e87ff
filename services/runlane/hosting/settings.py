"""What every service is told. Frozen, described, bounded; the unit is in the name. From `RUNLANE_…` variables."""

import os
import socket
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from runlane_contracts.streams import GIB, MIB, Layout


class CommonSettings(BaseSettings):
    """Shared by all services; a service's own settings add to it under their own prefix."""

    model_config = SettingsConfigDict(env_prefix="RUNLANE_", frozen=True, extra="ignore", populate_by_name=True)

    nats_url: str = Field("nats://127.0.0.1:4222", description="Where the broker is; several, separated by commas.")
    nats_user: str | None = Field(
        None, description="Broker user. Unset: the service's own name when there is a password, else nobody."
    )
    nats_password: SecretStr | None = Field(None, description="Password of the broker user.")

    subject_root: str = Field(
        "rl", pattern=r"^[a-z][a-z0-9]{0,15}$", description="First token of every subject; part of stream names."
    )
    log_streams: int = Field(1, ge=1, le=256, description="Over how many LOG (and VIEW) streams the runs are spread.")
    stream_replicas: Literal[1, 3, 5] = Field(1, description="Broker nodes that hold each message.")
    stream_max_bytes: int = Field(
        8 * GIB, ge=16 * MIB, description="Bound of one LOG or VIEW stream; the other streams take a share of it."
    )

    instance: str = Field(
        default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}",
        description="Name of this process among those of its service, in logs, pings and connections.",
    )
    health_host: str = Field("127.0.0.1", description="Where a service without HTTP of its own shows its health.")
    health_port: int = Field(0, ge=-1, le=65_535, description="Its port; 0 takes a free one, -1 shows nothing.")
    drain_deadline_s: float = Field(
        10.0, gt=0, le=300, description="How long a stopping service may take to finish what it has begun."
    )

    log_format: Literal["text", "json"] = Field(
        "text", description="Lines on stderr: for people, or one JSON object each."
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="Least level that is shown.")
    telemetry_endpoint: str | None = Field(
        None,
        description="OTLP/HTTP collector, such as http://127.0.0.1:4318. Unset: no traces, metrics by /metrics only.",
    )
    telemetry_interval_s: float = Field(15.0, ge=1, le=600, description="How often metrics are sent to the collector.")
    telemetry_sample_ratio: float = Field(1.0, ge=0, le=1, description="Share of new traces that are recorded.")

    @property
    def layout(self) -> Layout:
        """The streams and subjects these settings speak of."""
        return Layout(
            root=self.subject_root,
            log_streams=self.log_streams,
            replicas=self.stream_replicas,
            max_bytes=self.stream_max_bytes,
        )

    def broker_user(self, service: str) -> str | None:
        """As whom a service connects."""
        if self.nats_user is not None:
            return self.nats_user
        return service if self.nats_password is not None else None

    @property
    def broker_password(self) -> str | None:
        """The password in clear, for the connection."""
        return None if self.nats_password is None else self.nats_password.get_secret_value()
