"""Archives finished runs, and erases what must be forgotten."""
