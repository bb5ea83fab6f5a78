"""Prometheus: a store's metrics for a scraper. Needs `timerstore[prometheus]`.

    from timerstore.telemetry import prometheus
    prometheus.register(store, "orders")        # on prometheus_client's registry
    with prometheus.serve(store, "orders", port=9500):   # or a page of its own, on loopback
        ...

A dashboard for Grafana: `prometheus.dashboard()`, or
`python -m timerstore.telemetry.prometheus dashboard`.
"""

from timerstore.telemetry.prometheus.collector import (
    Served,
    StoreCollector,
    register,
    serve,
    unregister,
)
from timerstore.telemetry.prometheus.grafana import dashboard

__all__ = ["Served", "StoreCollector", "dashboard", "register", "serve", "unregister"]
