"""The log as people may see it: secrets masked, invalid facts quarantined, content kept from signals."""
