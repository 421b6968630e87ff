"""What hosting a service takes: settings, life cycle, health, telemetry, HTTP plumbing, an embedded broker."""
