"""What every part of the engine uses: the C extension, services, metrics, locks, validation."""
