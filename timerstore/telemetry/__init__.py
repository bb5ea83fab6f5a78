"""Export a store's metrics: Prometheus and OpenTelemetry, and the names that both use."""
