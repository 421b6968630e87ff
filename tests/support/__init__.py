"""What tests share: builders of facts and a real nats-server."""
