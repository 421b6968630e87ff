"""What the machine asks about the schema of a question: does a value fit it, can any, is the answer a secret."""

from typing import Any

from runlane.kernel.schemas import Fits, Misfit, Uncheckable, check, why_unanswerable

__all__ = ["Fits", "Misfit", "Uncheckable", "check", "is_secret", "why_unanswerable"]


def is_secret(schema: Any) -> bool:
    """Whether any part of the schema is write-only or a password: then the whole answer is kept out of views."""
    if isinstance(schema, dict):
        if schema.get("writeOnly") is True or schema.get("format") == "password":
            return True
        return any(is_secret(part) for part in schema.values())
    return isinstance(schema, list) and any(is_secret(part) for part in schema)
