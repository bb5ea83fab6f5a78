"""The engine, private to this package. docs/architecture.md describes it."""
