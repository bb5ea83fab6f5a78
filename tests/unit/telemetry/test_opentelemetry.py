"""Metrics exported to OpenTelemetry."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.bench import Bench, small
from tests.support.exported_work import some_work
from timerstore import ConfigError
from timerstore._engine.base.metrics import SERVER_CALL_COUNTERS
from timerstore.telemetry.metric_families import FAMILIES

prometheus_client = pytest.importorskip("prometheus_client")


def test_opentelemetry_equals_prometheus(bench: Bench) -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from timerstore.telemetry import opentelemetry

    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    seconds = [0.0]
    made = opentelemetry.instrument(
        bench.store, "orders", meter_provider=provider, monotonic_s=lambda: seconds[0]
    )

    def collected() -> dict[str, list[Any]]:
        data = reader.get_metrics_data()
        if data is None:
            return {}
        (scope,) = data.resource_metrics[0].scope_metrics
        return {one.name: list(one.data.data_points) for one in scope.metrics}

    some_work(bench)
    found = collected()
    named = {f"timerstore.{family.stat}" for family in FAMILIES}
    assert set(found) == named - {f"timerstore.{stat}" for stat in SERVER_CALL_COUNTERS}
    stats = bench.store.stats()
    for family in FAMILIES:
        if family.kind != "histogram" and not family.labels:
            (point,) = found[f"timerstore.{family.stat}"]
            assert point.value == stats[family.stat]
            assert dict(point.attributes) == {"store": "orders", "shard": ""}
    (ready,) = found["timerstore.group_ready_messages"]
    assert ready.value == 3
    assert dict(ready.attributes) == {"store": "orders", "shard": "", "topic": "a", "group": "g"}
    late = {p.attributes["le"]: p.value for p in found["timerstore.lateness_ms"]}
    assert (late["2.0"], late["5.0"], late["+Inf"]) == (0, 6, 6)
    bench.store.put("a", b"x")
    assert collected()["timerstore.put_messages"][0].value == stats["put_messages"]  # still fresh
    seconds[0] = 1.0
    assert collected()["timerstore.put_messages"][0].value == stats["put_messages"] + 1
    made.close()
    assert not any(collected().values())
    provider.shutdown()


def test_closed_store_is_not_observed(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk")
    from timerstore.telemetry import opentelemetry

    bench = Bench(tmp_path / "store", replace(small()))
    made = opentelemetry.Instruments(bench.store, "", lambda: 0.0)
    bench.close()
    assert made.observe(FAMILIES[0]) == []


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_forked_child_observes_nothing(bench: Bench) -> None:
    pytest.importorskip("opentelemetry.sdk")
    from timerstore.telemetry import opentelemetry

    made = opentelemetry.Instruments(bench.store, "", lambda: 0.0)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = int(made.observe(FAMILIES[0]) != [])
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert made.observe(FAMILIES[0])


def test_reopened_store_is_instrumented_again(bench: Bench, tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from timerstore.telemetry import opentelemetry

    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)

    def instrument(store: Any, name: str) -> Any:
        return opentelemetry.instrument(
            store, name, meter_provider=provider, monotonic_s=lambda: 0.0
        )

    def put_counts() -> dict[str, int]:
        data = reader.get_metrics_data()
        if data is None:
            return {}
        (scope,) = data.resource_metrics[0].scope_metrics
        (found,) = [one for one in scope.metrics if one.name == "timerstore.put_messages"]
        return {one.attributes["store"]: one.value for one in found.data.data_points}

    instrument(bench.store, "orders")
    bench.reopen()
    bench.store.put("t", b"x")
    made = instrument(bench.store, "orders")
    other = Bench(tmp_path / "other")
    with pytest.raises(ConfigError, match="'orders' has instruments already, and is open"):
        instrument(other.store, "orders")
    instrument(other.store, "other")
    assert put_counts() == {"orders": 1, "other": 0}
    made.close()
    instrument(other.store, "orders")
    assert put_counts() == {"orders": 0, "other": 0}
    other.close()
