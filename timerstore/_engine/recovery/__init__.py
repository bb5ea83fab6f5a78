"""Open a store: go on from a checkpoint, or rebuild everything from the commit log."""
