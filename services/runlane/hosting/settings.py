"""What every service is told. Frozen, described, bounded; the unit is in the name. From `RUNLANE_…` variables."""

import os
import socket
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from runlane.kernel.errors import Permanent
from runlane_contracts.cursor import CursorKeys
from runlane_contracts.streams import GIB, MIB, Layout


class SettingsInvalid(Permanent):
    """What they say cannot be, or names a file that cannot be read. Starting again does not help."""


class CommonSettings(BaseSettings):
    """Shared by all services; a service's own settings add to it under their own prefix."""

    model_config = SettingsConfigDict(env_prefix="RUNLANE_", frozen=True, extra="ignore", populate_by_name=True)

    nats_url: str = Field(
        default="nats://127.0.0.1:4222", description="Where the broker is; several, separated by commas."
    )
    nats_user: str | None = Field(
        default=None, description="Broker user. Unset: the service's own name when there is a password, else nobody."
    )
    nats_password: SecretStr | None = Field(default=None, description="Password of the broker user.")

    subject_root: str = Field(
        default="rl",
        pattern=r"^[a-z][a-z0-9]{0,15}$",
        description="First token of every subject; part of stream names.",
    )
    log_streams: int = Field(
        default=1, ge=1, le=256, description="Over how many LOG (and VIEW) streams the runs are spread."
    )
    supervisor_partitions: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Over how many durables the commands are spread; running supervisors share them.",
    )
    stream_replicas: Annotated[Literal[1, 3, 5], BeforeValidator(int)] = Field(  # a variable is text
        default=1, description="Broker nodes that hold each message."
    )
    stream_max_bytes: int = Field(
        default=8 * GIB,
        ge=16 * MIB,
        description="Bound of one LOG or VIEW stream; the other streams take a share of it.",
    )

    instance: str = Field(
        default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}",
        description="Name of this process among those of its service, in logs, pings and connections.",
    )
    health_host: str = Field(
        default="127.0.0.1", description="Where a service without HTTP of its own shows its health."
    )
    health_port: int = Field(default=0, ge=-1, le=65_535, description="Its port; 0 takes a free one, -1 shows nothing.")
    metrics_token: SecretStr | None = Field(
        default=None,
        description="Bearer token that whoever reads /metrics has to show. Unset: a health port asks for none, and the "
        "port of clients answers on the machine itself only.",
    )
    drain_deadline_s: float = Field(
        default=10.0, gt=0, le=300, description="How long a stopping service may take to finish what it has begun."
    )

    log_format: Literal["text", "json"] = Field(
        default="text", description="Lines on stderr: for people, or one JSON object each."
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="Least level that is shown."
    )
    telemetry_endpoint: str | None = Field(
        default=None,
        description="OTLP/HTTP collector, such as http://127.0.0.1:4318. Unset: no traces, metrics by /metrics only.",
    )
    telemetry_interval_s: float = Field(
        default=15.0, ge=1, le=600, description="How often metrics are sent to the collector."
    )
    telemetry_sample_ratio: float = Field(default=1.0, ge=0, le=1, description="Share of new traces that are recorded.")

    @property
    def layout(self) -> Layout:
        """The streams and subjects these settings speak of."""
        return Layout(
            root=self.subject_root,
            log_streams=self.log_streams,
            supervisor_partitions=self.supervisor_partitions,
            replicas=self.stream_replicas,
            max_bytes=self.stream_max_bytes,
        )

    def broker_user(self, service: str) -> str | None:
        """As whom a service connects."""
        if self.nats_user is not None:
            return self.nats_user
        return service if self.nats_password is not None else None

    @property
    def scraper_token(self) -> str | None:
        """What scrapers show, in clear."""
        return None if self.metrics_token is None else self.metrics_token.get_secret_value()

    @property
    def broker_password(self) -> str | None:
        """The password in clear, for the connection."""
        return None if self.nats_password is None else self.nats_password.get_secret_value()


class AccessSettings(BaseSettings):
    """Of those that face clients: whose keys are let in, and with which keys cursors are signed."""

    model_config = SettingsConfigDict(env_prefix="RUNLANE_", frozen=True, extra="ignore")

    api_keys: SecretStr | None = Field(
        default=None, description="API keys in clear, tenant:key or tenant/subject:key, separated by commas."
    )
    api_keys_file: Path | None = Field(
        default=None,
        description="JSON list of {tenant_id, subject, sha256, rights, expires_at}: keys by their hash. "
        "A change counts within a second.",
    )
    jwt_jwks_file: Path | None = Field(
        default=None, description="Key set that JSON Web Tokens are checked with. A change counts within a second."
    )
    jwt_jwks_url: str | None = Field(
        default=None, description="The same, fetched: where the issuer serves its keys. https, or http on loopback."
    )
    jwt_jwks_refresh_s: float = Field(
        default=300.0, ge=1, le=86_400, description="How often that is fetched, besides when a token names a new key."
    )
    jwt_secret: SecretStr | None = Field(
        default=None, description="Instead of a key set: the secret of tokens signed with an HMAC, 32 bytes or more."
    )
    jwt_algorithms: str | None = Field(
        default=None,
        description="All that are accepted, separated by commas. Unset: RS256,ES256,EdDSA; with a secret HS256.",
    )
    jwt_issuer: str | None = Field(default=None, description="Tokens are accepted of this issuer (`iss`) only.")
    jwt_audience: str | None = Field(default=None, description="And only when meant for this audience (`aud`).")
    jwt_revoked_file: Path | None = Field(
        default=None,
        description="JSON list of {jti} or {subject, tenant_id?, before?}: tokens that are revoked before their time. "
        "A change counts within a second.",
    )
    jwt_leeway_s: float = Field(
        default=10.0, ge=0, le=300, description="By how much the issuer's clock and ours may differ."
    )
    jwt_tenant_claim: str = Field(
        default="tenant_id", min_length=1, description="Claim that names the tenant; dots lead into an object."
    )
    jwt_subject_claim: str = Field(
        default="sub", min_length=1, description="Claim that names who comes: the actor of what they do."
    )
    jwt_rights_claim: str = Field(
        default="scope", min_length=1, description="Claim with the rights: a list, or words with spaces between."
    )
    jwt_rights_prefix: str = Field(
        default="runlane:", description="Before `view`, `operate` and `produce` in that claim; other words are ignored."
    )
    jwt_default_rights: str = Field(
        default="", description="Rights of tokens without that claim, separated by commas. None: they may do nothing."
    )
    cursor_keys: SecretStr | None = Field(
        default=None,
        description="Keys that sign cursors, id:hex of at least 16 bytes, separated by commas. The first one signs.",
    )

    def signing_keys(self) -> CursorKeys:
        """The cursor keys.

        Raises:
            ValueError: none are given, or they are too short or misspelt.
        """
        text = "" if self.cursor_keys is None else self.cursor_keys.get_secret_value()
        pairs = [entry.strip().partition(":") for entry in text.split(",") if entry.strip()]
        if not pairs:
            raise ValueError("RUNLANE_CURSOR_KEYS is not set")
        return CursorKeys(current=pairs[0][0], keys={name: bytes.fromhex(key) for name, _, key in pairs})
