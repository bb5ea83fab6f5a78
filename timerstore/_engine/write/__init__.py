"""Put messages: one, many, all or none, deduplicated, replacing one another, limited per slot."""
