"""How the SDK reaches Runlane: one port per role in `ports`, one file per way (`http`, `nats`)."""
