"""The engine: private. Nothing outside timerstore imports it; docs/architecture.md describes it."""
