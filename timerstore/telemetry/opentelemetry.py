"""Export a store's metrics to an OpenTelemetry meter. Needs `timerstore[otel]`.

    from timerstore.telemetry import opentelemetry
    instruments = opentelemetry.instrument(store, "orders")   # on the meter provider that is set
    ...
    instruments.close()                                       # before the store is closed

Counters and gauges are observed when a reader collects. All observations of one second share one
call of `stats()`. A histogram is exported as a counter with the attribute `le`, because
OpenTelemetry has no observable histogram. Names are those of Prometheus with dots:
`timerstore.lateness_ms`.

Thread safety: observations run on the reader's thread.
Raises: ConfigError if the OpenTelemetry API is not installed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from timerstore._engine.base.owner import NotCopyable
from timerstore.errors import ClosedError, ConfigError, ForkedError
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
    from opentelemetry import metrics
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
except ImportError as error:
    raise ConfigError(
        "otel: wanted opentelemetry-api; pip install '.[otel]' in a checkout"
    ) from error

_FRESH_S = 1.0


class Instruments(NotCopyable):
    """The instruments of one store. After `close` they observe nothing."""

    def __init__(self, store: HasStats, name: str, monotonic_s: Callable[[], float]) -> None:
        self._store: HasStats | None = store
        self._name = name
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._stats: dict[str, Any] | None = None
        self._read_s = 0.0

    def observe(self, family: Family) -> list[Observation]:
        """Return the present values of a family."""
        stats = self._fresh()
        if stats is None:
            return []
        found: list[Observation] = []
        for shard, value in shards_of(stats):
            attributes = {"store": self._name, "shard": shard}
            found.extend(_observed(family, value[family.stat], attributes))
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

    @property
    def has_ended(self) -> bool:
        """Whether these instruments or their store were closed, so that another store may use the
        name.
        """
        store = self._store
        return store is None or has_ended(store.stats)

    def close(self) -> None:
        """Release the store."""
        with self._lock:
            self._store, self._stats = None, None


def _observed(family: Family, value: Any, attributes: Mapping[str, str]) -> Iterator[Observation]:
    if family.kind == "histogram":
        for bound, count in buckets_of(value):
            yield Observation(count, {**attributes, "le": bound})
    elif family.labels:
        for labels, count in labelled(family, value):
            yield Observation(
                count, {**attributes, **dict(zip(family.labels, labels, strict=True))}
            )
    else:
        yield Observation(value, attributes)


class _Meter(NotCopyable):
    """The instruments of one meter provider. It has one instrument for each name, which all stores
    share.
    """

    def __init__(self, provider: MeterProvider | None) -> None:
        self._lock = threading.Lock()
        self._made: dict[str, Instruments] = {}
        meter = metrics.get_meter("timerstore", meter_provider=provider)
        for family in FAMILIES:

            def observe(_: CallbackOptions, family: Family = family) -> Iterable[Observation]:
                return [found for one in list(self._made.values()) for found in one.observe(family)]

            make = (
                meter.create_observable_gauge
                if family.kind == "gauge"
                else meter.create_observable_counter
            )
            make(f"timerstore.{family.stat}", callbacks=[observe], description=family.help)

    def add(self, name: str, made: Instruments) -> None:
        """Observe one more store. Raise ConfigError if an open store has the name."""
        with self._lock:
            before = self._made.get(name)
            if before is not None and not before.has_ended:
                raise ConfigError(
                    f"name: a store named {name!r} has instruments already, and is open; wanted "
                    "another name, or that store closed, or its instruments"
                )
            self._made[name] = made


_lock = threading.Lock()
_of_providers: WeakKeyDictionary[MeterProvider, _Meter] = WeakKeyDictionary()
_of_process: list[_Meter] = []  # of the provider that is set for the process, now or later


def instrument(
    store: HasStats,
    name: str = "",
    *,
    meter_provider: MeterProvider | None = None,
    monotonic_s: Callable[[], float] = time.monotonic,
) -> Instruments:
    """Create the instruments of a store.

    They replace those of a closed store with the same name.

    name: the value of the attribute `store`.

    meter_provider: by default the one that is set for the process.

    Raises:
        ConfigError: an open store has the name.
    """
    made = Instruments(store, name, monotonic_s)
    with _lock:
        if meter_provider is None or meter_provider is metrics.get_meter_provider():
            if not _of_process:
                _of_process.append(_Meter(None))
            meter = _of_process[0]
        elif (known := _of_providers.get(meter_provider)) is not None:
            meter = known
        else:
            meter = _of_providers[meter_provider] = _Meter(meter_provider)
    meter.add(name, made)
    return made
