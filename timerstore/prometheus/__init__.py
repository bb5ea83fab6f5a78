"""Prometheus: a store's metrics for a scraper. Needs `timerstore[prometheus]`.

    from timerstore import prometheus
    prometheus.register(store, "orders")        # on prometheus_client's registry
    with prometheus.serve(store, "orders", port=9500):   # or a page of its own, on loopback
        ...

A dashboard for Grafana: `prometheus.dashboard()`, or `python -m timerstore.prometheus dashboard`.
"""

from timerstore.prometheus.collector import Served, StoreCollector, register, serve, unregister
from timerstore.prometheus.dashboard import dashboard

__all__ = ["Served", "StoreCollector", "dashboard", "register", "serve", "unregister"]
