"""OpenTelemetry: a store's metrics on a meter of yours. Needs `timerstore[otel]`.

    from timerstore import otel
    instruments = otel.instrument(store, "orders")   # on the meter provider that is set
    ...
    instruments.close()                              # before the store is

Counters and gauges are observed when a reader collects, at most one `stats()` for all of them in
a second. A histogram becomes a counter with the attribute `le`, as OpenTelemetry has none that can
be observed. Names: as for Prometheus, with dots: `timerstore.lateness_ms`.

Threads:  the reader's.
Fails:    ConfigError without the OpenTelemetry API.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from timerstore.errors import ClosedError, ConfigError, ForkedError
from timerstore.families import FAMILIES, Family, buckets_of, shards_of, topics_of
from timerstore.owner import Owner

try:
    from opentelemetry import metrics
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
except ImportError as error:
    raise ConfigError("otel: wanted opentelemetry-api; pip install 'timerstore[otel]'") from error

_FRESH_S = 1.0


class HasStats(Protocol):
    """A TimerStore or a ShardedStore."""

    def stats(self) -> dict[str, Any]:
        """Give counters and gauges."""
        ...


class Instruments(Owner):
    """The instruments of one store; after `close` they observe nothing."""

    def __init__(self, store: HasStats, name: str, monotonic_s: Callable[[], float]) -> None:
        self._store: HasStats | None = store
        self._name = name
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._stats: dict[str, Any] | None = None
        self._read_s = 0.0

    def observe(self, family: Family) -> list[Observation]:
        """Give what a family has now."""
        stats = self._fresh()
        if stats is None:
            return []
        found: list[Observation] = []
        for shard, told in shards_of(stats):
            attributes = {"store": self._name, "shard": shard}
            found.extend(_observed(family, told[family.stat], attributes))
        return found

    def _fresh(self) -> dict[str, Any] | None:
        with self._lock:
            now_s = self._monotonic_s()
            if self._store is not None and (
                self._stats is None or now_s - self._read_s >= _FRESH_S
            ):
                try:
                    self._stats, self._read_s = self._store.stats(), now_s
                except (ClosedError, ForkedError):
                    self._store, self._stats = None, None
            return self._stats

    def close(self) -> None:
        """Let go of the store."""
        with self._lock:
            self._store, self._stats = None, None


def _observed(family: Family, told: Any, attributes: Mapping[str, str]) -> Iterator[Observation]:
    if family.kind == "histogram":
        for bound, count in buckets_of(told):
            yield Observation(count, {**attributes, "le": bound})
    elif family.labels:
        for topic, count in topics_of(told):
            yield Observation(count, {**attributes, "topic": topic})
    else:
        yield Observation(told, attributes)


def instrument(
    store: HasStats,
    name: str = "",
    *,
    meter_provider: MeterProvider | None = None,
    monotonic_s: Callable[[], float] = time.monotonic,
) -> Instruments:
    """Make a store's instruments; `name` is their attribute `store`."""
    made = Instruments(store, name, monotonic_s)
    meter = metrics.get_meter("timerstore", meter_provider=meter_provider)
    for family in FAMILIES:

        def observe(_: CallbackOptions, family: Family = family) -> Iterable[Observation]:
            return made.observe(family)

        make = (
            meter.create_observable_gauge
            if family.kind == "gauge"
            else meter.create_observable_counter
        )
        make(f"timerstore.{family.stat}", callbacks=[observe], description=family.help)
    return made
