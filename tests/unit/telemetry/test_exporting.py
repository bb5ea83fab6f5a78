"""Metrics as they are exported: all of the one table, with what `stats()` says; the dashboard."""

import json
import os
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import timerstore
from tests.support.bench import NOW, Bench, small
from tests.support.inside import inside
from timerstore import ConfigError
from timerstore._engine.base.metrics import COUNTERS, DISTRIBUTIONS, GAUGES, Distribution
from timerstore.telemetry import metric_families
from timerstore.telemetry.metric_families import FAMILIES, OTHER_TOPICS, TOPICS_MAX, metrics_page

prometheus_client = pytest.importorskip("prometheus_client")
from prometheus_client import parser  # noqa: E402

from timerstore.telemetry import prometheus  # noqa: E402


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "store")
    yield made
    made.close()


def scraped(registry: Any) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = prometheus_client.generate_latest(registry).decode()
    found = parser.text_string_to_metric_families(text)
    return {
        (one.name, tuple(sorted(one.labels.items()))): one.value
        for family in found
        for one in family.samples
    }


def some_work(bench: Bench) -> None:
    bench.store.put_many("a", [b"x"] * 5, deliver_ms=NOW + 1000)
    bench.store.put("b", b"x", level=1)
    bench.store.put("b", b"x", delay=90)
    bench.turn()
    bench.turn(1004)
    bench.turn(60)


# ---------------------------------------------------------------- distributions


def test_lateness_is_that_of_each_message(bench: Bench) -> None:
    some_work(bench)
    told = bench.store.stats()["lateness_ms"]
    assert sum(count for bound, count in told.items() if bound != "sum") == 6
    assert {bound: n for bound, n in told.items() if n} == {5: 6, "sum": 24}


def test_what_rolls_or_was_cancelled_is_not_late(bench: Bench) -> None:
    far = bench.store.put("a", b"x", delay=600)
    gone = bench.store.put("a", b"x", delay=1)
    bench.turn()
    bench.store.cancel(gone)
    for _ in range(20):
        bench.turn(10_000)
    assert sum(bench.store.stats()["lateness_ms"].values()) == 0
    assert bench.store.explain(far).state == "waiting"


def test_syncs_and_checkpoints_are_counted(bench: Bench) -> None:
    before = bench.store.stats()
    bench.store.put("a", b"x", flush="sync")
    bench.store.flush()
    after = bench.store.stats()
    for name in ("sync_ms", "checkpoint_ms"):
        grown = {k: after[name][k] - before[name][k] for k in after[name] if k != "sum"}
        assert sum(grown.values()) >= 1


@pytest.mark.parametrize("values", [[], [1], [2, 2], [0, 1, 2, 5, 6, 10, 11], [11, 11], [-3, 10]])
def test_a_value_lies_at_or_below_its_bound(values: list[int]) -> None:
    one, many = Distribution((1, 5, 10)), Distribution((1, 5, 10))
    many.add(np.array(values, np.int64))
    for value in values:
        one.add_one(value)
    wanted = {
        1: sum(v <= 1 for v in values),
        5: sum(1 < v <= 5 for v in values),
        10: sum(5 < v <= 10 for v in values),
        None: sum(v > 10 for v in values),
        "sum": sum(values),
    }
    assert many.counts() == one.counts() == wanted


def test_disk_and_memory_follow_what_there_is(bench: Bench) -> None:
    before = bench.store.stats()
    bench.store.put_many("a", [bytes(100)] * 100, delay=60)
    bench.turn()
    after = bench.store.stats()
    grown = after["disk_bytes"] - before["disk_bytes"]
    assert grown == after["log_end_bytes"] - before["log_end_bytes"] + (52 + 20) * 100
    assert 0 <= after["disk_used_percent"] <= 100
    bench.store.histogram()
    counted = bench.store.stats()["memory_bytes"]
    assert counted == after["memory_bytes"] + inside(bench.store).calendar.bytes
    bench.store.pace("a", 1)
    bench.turn(60_000)
    assert bench.store.stats()["memory_bytes"] == counted + 99 * 64


# ---------------------------------------------------------------- the table


def test_every_name_is_exported_once_and_no_other() -> None:
    stats = [family.stat for family in FAMILIES]
    assert sorted(stats) == sorted([*COUNTERS, *GAUGES, *DISTRIBUTIONS])
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)


def test_the_guide_has_the_table() -> None:
    guide = resources.files("timerstore").joinpath("docs/metrics.md").read_text("utf-8")
    assert guide == metrics_page()


def test_only_the_largest_topics_have_series_of_their_own() -> None:
    by_topic = {f"t{k:04}": k + 1 for k in range(TOPICS_MAX + 3)}
    found = list(metric_families.topics_of(by_topic))
    assert len(found) == TOPICS_MAX + 1
    assert found[0] == (f"t{TOPICS_MAX + 2:04}", TOPICS_MAX + 3)
    assert found[-1] == (OTHER_TOPICS, 1 + 2 + 3)
    assert (
        len(list(metric_families.topics_of(dict(list(by_topic.items())[:TOPICS_MAX]))))
        == TOPICS_MAX
    )


# ---------------------------------------------------------------- Prometheus


def test_a_scrape_has_what_stats_says(bench: Bench) -> None:
    some_work(bench)
    registry = prometheus_client.CollectorRegistry()
    prometheus.register(bench.store, "orders", on=registry)
    found = scraped(registry)
    stats = bench.store.stats()
    labels = (("shard", ""), ("store", "orders"))
    for family in FAMILIES:
        if family.kind != "histogram" and not family.labels:
            assert found[family.name, labels] == stats[family.stat], family.name
    assert found["timerstore_pending_by_topic", (*labels[:1], labels[1], ("topic", "b"))] == 1
    assert found["timerstore_lateness_ms_count", labels] == 6
    assert found["timerstore_lateness_ms_sum", labels] == 24
    assert found["timerstore_lateness_ms_bucket", (("le", "2.0"), *labels)] == 0
    assert found["timerstore_lateness_ms_bucket", (("le", "5.0"), *labels)] == 6
    assert found["timerstore_lateness_ms_bucket", (("le", "+Inf"), *labels)] == 6


def test_two_stores_and_one_that_is_closed(bench: Bench, tmp_path: Path) -> None:
    registry = prometheus_client.CollectorRegistry()
    other = Bench(tmp_path / "other")
    prometheus.register(bench.store, "a", on=registry)
    prometheus.register(other.store, "b", on=registry)
    with pytest.raises(ConfigError, match="a store named 'b' is registered already"):
        prometheus.register(other.store, "b", on=registry)

    def stores() -> set[str]:
        return {dict(labels)["store"] for _, labels in scraped(registry)}

    assert stores() == {"a", "b"}
    other.close()
    assert stores() == {"a"}
    prometheus.unregister("b", on=registry)
    prometheus.unregister("b", on=registry)
    reopened = Bench(tmp_path / "other")
    prometheus.register(reopened.store, "b", on=registry)
    assert stores() == {"a", "b"}
    reopened.close()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_scrapes_what_is_its_own(bench: Bench) -> None:
    """The store's ForkedError failed the whole scrape."""
    registry = prometheus_client.CollectorRegistry()
    prometheus.register(bench.store, "a", on=registry)
    prometheus_client.Gauge("own", "of the program", registry=registry).set(5)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = int(scraped(registry) != {("own", ()): 5.0})
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(scraped(registry)) > 1


def test_a_page_on_loopback(bench: Bench) -> None:
    with prometheus.serve({"orders": bench.store}) as served:
        url = f"http://127.0.0.1:{served.port}/metrics"
        with urllib.request.urlopen(url, timeout=30) as answer:
            text = answer.read().decode()
    assert 'timerstore_pending_messages{shard="",store="orders"} 0.0' in text


class _Broken:
    """No store, and no number of a port."""


@pytest.mark.parametrize("name", [5, None, b"orders", "\ud800"])
def test_a_name_that_no_scrape_could_write(bench: Bench, name: Any) -> None:
    registry = prometheus_client.CollectorRegistry()
    prometheus.register(bench.store, "orders", on=registry)
    with pytest.raises(ConfigError, match="name: wanted text, got"):
        prometheus.register(bench.store, name, on=registry)
    assert scraped(registry)
    with pytest.raises(ConfigError, match="name: wanted text, got"):
        prometheus.serve({name: bench.store})
    with pytest.raises(ConfigError, match="name: wanted text, got"):
        prometheus.serve(bench.store, name)


@pytest.mark.parametrize("store", [5, None, _Broken()])
def test_what_is_no_store(store: Any) -> None:
    with pytest.raises(ConfigError, match="store: wanted an open store, got"):
        prometheus.register(store, "x", on=prometheus_client.CollectorRegistry())
    with pytest.raises(ConfigError, match="store: wanted an open store, got"):
        prometheus.serve({"x": store})


@pytest.mark.parametrize(
    ("given", "match"),
    [
        *(({"port": port}, "port: wanted 0 .* to 65535, got") for port in (-1, 65_536, True, "80")),
        ({"host": 5}, "host: wanted a name or an address, got 5"),
        ({"host": ""}, "host: wanted a name or an address, got ''"),
        ({"host": "no-such-host.invalid"}, "port: cannot listen on no-such-host.invalid port 0"),
        ({"host": "x" * 70}, "port: cannot listen on xxx"),
        ({"host": "a..b"}, "port: cannot listen on"),
        ({"host": "a\0b"}, "port: cannot listen on"),
    ],
)
def test_a_page_that_cannot_be_there(bench: Bench, given: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        prometheus.serve(bench.store, **given)


def test_all_that_is_wrong_with_a_page_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        prometheus.serve(5, 5, port=-1, host="")  # type: ignore[arg-type]
    assert len(caught.value.problems) == 4


def test_a_port_in_use(bench: Bench) -> None:
    with (
        prometheus.serve(bench.store) as served,
        pytest.raises(ConfigError, match=f"on 127.0.0.1 port {served.port} .*in use"),
    ):
        prometheus.serve(bench.store, port=served.port)


def test_shards_have_a_series_each(tmp_path: Path) -> None:
    import timerstore

    registry = prometheus_client.CollectorRegistry()
    with timerstore.open_shards(tmp_path / "shards", 2, config=small(), threads=False) as store:
        store.put("a", b"x", delay=60)
        prometheus.register(store, on=registry)
        found = scraped(registry)
    pending = {
        dict(labels)["shard"]: value
        for (name, labels), value in found.items()
        if name == "timerstore_pending_messages"
    }
    assert sorted(pending) == ["0", "1"]
    assert sum(pending.values()) == 1


# ---------------------------------------------------------------- the dashboard


def test_the_dashboard_names_only_metrics_of_the_table() -> None:
    dashboard = json.loads(prometheus.dashboard())
    known = {
        name
        for family in FAMILIES
        for name in (
            [f"{family.name}_{part}" for part in ("bucket", "sum", "count")]
            if family.kind == "histogram"
            else [family.name]
        )
    }
    panels = dashboard["panels"]
    assert len(panels) >= 10
    for panel in panels:
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            named = set(re.findall(r"timerstore_\w+", target["expr"]))
            assert named, target
            assert named <= known, named - known
            for name in named:  # a counter is told by its rate, a gauge as it is
                is_counter = name.endswith(("_total", "_bucket"))
                assert bool(re.search(rf"(rate|increase)\({name}\b", target["expr"])) == is_counter
    for variable in dashboard["templating"]["list"][1:]:
        assert set(re.findall(r"timerstore_\w+", variable["definition"])) <= known
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = {(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels}
    assert len(places) == len(panels)
    assert all(p["gridPos"]["x"] + p["gridPos"]["w"] <= 24 for p in panels)


def test_the_command_writes_both(capsys: pytest.CaptureFixture[str]) -> None:
    from timerstore.telemetry.prometheus.__main__ import main

    assert main(["dashboard"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "timerstore"
    assert main(["metrics"]) == 0
    assert capsys.readouterr().out == metrics_page()
    assert main(["nothing"]) == main([]) == 2


# ---------------------------------------------------------------- OpenTelemetry


def test_opentelemetry_has_the_same(bench: Bench) -> None:
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
    assert set(found) == {f"timerstore.{family.stat}" for family in FAMILIES}
    stats = bench.store.stats()
    for family in FAMILIES:
        if family.kind != "histogram" and not family.labels:
            (point,) = found[f"timerstore.{family.stat}"]
            assert point.value == stats[family.stat]
            assert dict(point.attributes) == {"store": "orders", "shard": ""}
    late = {p.attributes["le"]: p.value for p in found["timerstore.lateness_ms"]}
    assert (late["2.0"], late["5.0"], late["+Inf"]) == (0, 6, 6)
    bench.store.put("a", b"x")
    assert collected()["timerstore.put_messages"][0].value == stats["put_messages"]  # still fresh
    seconds[0] = 1.0
    assert collected()["timerstore.put_messages"][0].value == stats["put_messages"] + 1
    made.close()
    assert not any(collected().values())
    provider.shutdown()


def test_a_closed_store_is_observed_no_more(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk")
    from timerstore.telemetry import opentelemetry

    bench = Bench(tmp_path / "store", replace(small()))
    made = opentelemetry.Instruments(bench.store, "", lambda: 0.0)
    bench.close()
    assert made.observe(FAMILIES[0]) == []


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_observes_nothing(bench: Bench) -> None:
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


def test_a_store_is_registered_again_after_it_was_reopened(bench: Bench, tmp_path: Path) -> None:
    registry = prometheus_client.CollectorRegistry()
    prometheus.register(bench.store, "orders", on=registry)
    bench.store.put("t", b"x")
    bench.reopen()
    prometheus.register(bench.store, "orders", on=registry)
    labels = {"store": "orders", "shard": ""}
    assert registry.get_sample_value("timerstore_put_messages_total", labels) == 0
    bench.store.put("t", b"x")
    assert registry.get_sample_value("timerstore_put_messages_total", labels) == 1
    with pytest.raises(ConfigError, match="'orders' is registered already, and open"):
        prometheus.register(bench.store, "orders", on=registry)
    with timerstore.open_shards(tmp_path / "shards", 2) as shards:
        prometheus.register(shards, "shards", on=registry)
    with timerstore.open_shards(tmp_path / "shards", 2) as shards:
        prometheus.register(shards, "shards", on=registry)


def test_a_store_is_instrumented_again_after_it_was_reopened(bench: Bench, tmp_path: Path) -> None:
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
