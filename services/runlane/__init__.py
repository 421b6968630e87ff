"""Runlane: the durable event backbone for fleets of AI agents."""
