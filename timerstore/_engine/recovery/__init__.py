"""Open a store: continue from a checkpoint, or rebuild everything from the commit log."""
