"""Seals who did what into a hash chain per tenant, signs it from time to time, and exports it."""
