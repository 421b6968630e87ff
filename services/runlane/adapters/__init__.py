"""Bridges from agent frameworks: each a pure mapping (foreign message → facts and previews) and a thin driver."""
