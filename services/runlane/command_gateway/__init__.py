"""The write boundary: authenticates, validates, deduplicates, accepts; and writes for producers that speak HTTP."""
