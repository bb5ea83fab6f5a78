"""A real S3 API for tests: a server in a process of its own, and a proxy that fails requests."""
