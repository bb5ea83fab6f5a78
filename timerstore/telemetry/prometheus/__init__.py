"""Export a store's metrics to Prometheus. Needs `timerstore[prometheus]`.

    from timerstore.telemetry import prometheus
    prometheus.register(store, "orders")                 # on prometheus_client's registry
    with prometheus.serve(store, "orders", port=9500):   # or on a port of its own, on loopback
        ...

`prometheus.dashboard()` returns a dashboard for Grafana, and `python -m
timerstore.telemetry.prometheus dashboard` prints it.
"""

from timerstore.telemetry.prometheus.collector import (
    MetricsServer,
    StoreCollector,
    register,
    serve,
    unregister,
)
from timerstore.telemetry.prometheus.grafana import dashboard

__all__ = ["MetricsServer", "StoreCollector", "dashboard", "register", "serve", "unregister"]
