"""Shared parts of the engine: C extension, services, signals, metrics, validation, fail points."""
