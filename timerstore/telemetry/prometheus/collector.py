"""A Prometheus collector that reads `stats()` at each scrape.

Thread safety: any thread; a scrape runs on the thread that makes it.
Invariants: a store that is closed, or belongs to a parent process, has no series and fails no
scrape.
Raises: ConfigError for invalid arguments, for a port that is in use, and if prometheus_client is
not installed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from timerstore._engine.base.message_fields import is_utf8
from timerstore._engine.base.owner import Closing, NotCopyable, close_at_exit, forked_error
from timerstore.errors import ClosedError, ConfigError, ForkedError, TimerStoreError, cannot_listen
from timerstore.telemetry.metric_families import (
    FAMILIES,
    Family,
    HasStats,
    buckets_of,
    has_ended,
    labelled,
    shards_of,
)

try:
    import prometheus_client
    from prometheus_client import core, registry
except ImportError as error:
    raise ConfigError(
        "prometheus: wanted prometheus_client; pip install '.[prometheus]' in a checkout"
    ) from error

_METRICS: dict[str, Any] = {
    "counter": core.CounterMetricFamily,
    "gauge": core.GaugeMetricFamily,
    "histogram": core.HistogramMetricFamily,
}


class StoreCollector(NotCopyable, registry.Collector):
    """The metrics of one store."""

    def __init__(self, store: HasStats, name: str = "") -> None:
        self._store = store
        self._name = name

    @property
    def has_ended(self) -> bool:
        """Whether the store was closed, so that another one may use its name."""
        return has_ended(self._store.stats)

    def collect(self) -> Iterable[core.Metric]:
        """Yield every family with its samples."""
        try:
            stats = self._store.stats()
        except (ClosedError, ForkedError):
            return
        shards = shards_of(stats)
        for family in FAMILIES:
            labels = ["store", "shard", *family.labels]
            metric = _METRICS[family.kind](family.name, family.help, labels=labels)
            for shard, value in shards:
                _add(metric, family, [self._name, shard], value[family.stat])
            yield metric

    def describe(self) -> Iterable[core.Metric]:
        """Return the families without samples. A registry uses them to find names in use."""
        return [_METRICS[one.kind](one.name, one.help) for one in FAMILIES]


def _add(metric: Any, family: Family, labels: list[str], value: Any) -> None:
    if family.kind == "histogram":
        metric.add_metric(labels, buckets_of(value), value["sum"])
    elif family.labels:
        for more, count in labelled(family, value):
            metric.add_metric([*labels, *more], count)
    else:
        metric.add_metric(labels, value)


class _Stores(NotCopyable, registry.Collector):
    """Several stores in one registry: each family appears once, with the samples of all stores."""

    def __init__(self) -> None:
        self.collectors: dict[str, StoreCollector] = {}

    def collect(self) -> Iterable[core.Metric]:
        """Return every family once, with the samples of each store."""
        merged: dict[str, core.Metric] = {}
        for one in list(self.collectors.values()):
            for metric in one.collect():
                merged.setdefault(metric.name, metric)
                if merged[metric.name] is not metric:
                    merged[metric.name].samples.extend(metric.samples)
        return merged.values()

    def describe(self) -> Iterable[core.Metric]:
        """Return the families without samples."""
        return [_METRICS[one.kind](one.name, one.help) for one in FAMILIES]


def _problems(named: Iterable[tuple[Any, Any]]) -> list[str]:
    """Return the problems that would make each scrape fail."""
    stores = list(named)
    problems = [
        f"name: wanted text, got {name!a}" for name, _ in stores
        if not isinstance(name, str) or not is_utf8(name)
    ]  # fmt: skip
    problems += [
        f"store: wanted an open store, got {type(one).__name__}" for _, one in stores
        if not callable(getattr(one, "stats", None))
    ]  # fmt: skip
    return problems


def _problems_of_place(host: Any, port: Any) -> list[str]:
    problems = []
    if not isinstance(host, str) or not host:
        problems.append(f"host: wanted a name or an address, got {host!r}")
    if type(port) is not int or not 0 <= port <= 65_535:
        problems.append(f"port: wanted 0 (a free one) to 65535, got {port!r}")
    return problems


_of_registries: WeakKeyDictionary[registry.CollectorRegistry, _Stores] = WeakKeyDictionary()


def register(
    store: HasStats, name: str = "", *, on: registry.CollectorRegistry | None = None
) -> StoreCollector:
    """Add a store to a registry, which then scrapes it.

    The store replaces a closed store with the same name.

    name: the value of the label `store`.

    on: the registry; by default that of the process.

    Raises:
        ConfigError: an open store has the name, or an argument is invalid.
    """
    if problems := _problems([(name, store)]):
        raise ConfigError(problems)
    registry_ = prometheus_client.REGISTRY if on is None else on
    stores = _of_registries.get(registry_)
    if stores is None:
        stores = _Stores()
        registry_.register(stores)
        _of_registries[registry_] = stores
    before = stores.collectors.get(name)
    if before is not None and not before.has_ended:
        raise ConfigError(
            f"name: a store named {name!r} is registered already, and open; wanted another name, "
            "or that store closed, or its name unregistered"
        )
    made = stores.collectors[name] = StoreCollector(store, name)
    return made


def unregister(name: str = "", *, on: registry.CollectorRegistry | None = None) -> None:
    """Remove a store from a registry. Do nothing if no store has the name."""
    registry_ = prometheus_client.REGISTRY if on is None else on
    stores = _of_registries.get(registry_)
    if stores is not None:
        stores.collectors.pop(name, None)


class MetricsServer(Closing):
    """A metrics page that is being served. `close` ends it."""

    def __init__(self, server: Any, thread: Any) -> None:
        self._server = server
        self._thread = thread
        self._pid = os.getpid()
        close_at_exit(self)

    @property
    def port(self) -> int:
        """The port."""
        return int(self._server.server_port)

    @property
    def url(self) -> str:
        """The address of the metrics page."""
        host = self._server.server_address[0]
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/metrics"

    def close(self) -> None:
        """Stop serving.

        Raises:
            ForkedError: in a forked child, which has no thread that serves.
        """
        if os.getpid() != self._pid:
            raise forked_error(f"port {self.port}", self._pid)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve(
    stores: HasStats | Mapping[str, HasStats],
    name: str = "",
    *,
    port: int = 0,
    host: str = "127.0.0.1",
) -> MetricsServer:
    """Serve the metrics of a store, or of several stores by name, at `/metrics`, and their health
    at `/health`: 200, or 503 with the reason if a store has failed, is closing or is closed.

    port: 0 means a free port.

    host: the address to listen on; by default loopback.

    Raises:
        ConfigError: an argument is invalid, or the port is in use.
    """
    named = stores.items() if isinstance(stores, Mapping) else [(name, stores)]
    if problems := [*_problems(named), *_problems_of_place(host, port)]:
        raise ConfigError(problems)
    found = dict(named)
    own = registry.CollectorRegistry()
    all_of = _Stores()
    all_of.collectors = {label: StoreCollector(one, label) for label, one in found.items()}
    own.register(all_of)
    try:
        server, thread = prometheus_client.start_http_server(port, addr=host, registry=own)
    except (OSError, ValueError) as error:
        raise cannot_listen(host, port, error) from error
    server.set_app(_with_health(server.get_app(), found))
    return MetricsServer(server, thread)


def _with_health(metrics: Any, stores: Mapping[str, HasStats]) -> Any:
    """Return a WSGI application that answers /health, and passes other requests on."""

    def application(environ: dict[str, Any], start_response: Any) -> Any:
        if environ.get("PATH_INFO") != "/health":
            return metrics(environ, start_response)
        problems = [text for name, one in stores.items() if (text := _problem_of(name, one))]
        status = "503 Service Unavailable" if problems else "200 OK"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return ["".join(f"{one}\n" for one in problems or ["ok"]).encode("utf-8", "replace")]

    return application


def _problem_of(name: str, store: HasStats) -> str | None:
    try:
        getattr(store, "_check_alive", store.stats)()
    except TimerStoreError as error:
        return f"{name}: {error}" if name else str(error)
    return None
