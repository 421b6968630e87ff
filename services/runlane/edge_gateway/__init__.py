"""The clients' door: history and state as JSON, watching over SSE, and the way to the command gateway."""
