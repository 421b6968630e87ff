"""The write boundary: authorize, validate, deduplicate, accept."""
