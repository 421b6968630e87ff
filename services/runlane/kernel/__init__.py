"""JetStream done right: append, read, tail, consume, lease, preview. Imports nats-py and msgspec only."""
