"""Folds the VIEW streams into the read store, and folds them again when asked."""
