"""Metrics exported to Prometheus, the table of metrics, and the dashboard."""

import json
import os
import re
import urllib.request
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support.bench import Bench, small
from tests.support.exported_work import some_work
from timerstore import ConfigError
from timerstore._engine.base.metrics import (
    COUNTERS,
    DISTRIBUTIONS,
    GAUGES,
    GROUP_GAUGES,
    SERVER_CALL_COUNTERS,
    SERVER_COUNTERS,
    SERVER_GAUGES,
)
from timerstore.telemetry import metric_families
from timerstore.telemetry.metric_families import (
    FAMILIES,
    GROUPS_MAX,
    OTHER_GROUPS,
    OTHER_TOPICS,
    TOPICS_MAX,
    metrics_page,
)

prometheus_client = pytest.importorskip("prometheus_client")
from prometheus_client import parser  # noqa: E402

from timerstore.telemetry import prometheus  # noqa: E402


def scraped(registry: Any) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = prometheus_client.generate_latest(registry).decode()
    found = parser.text_string_to_metric_families(text)
    return {
        (one.name, tuple(sorted(one.labels.items()))): one.value
        for family in found
        for one in family.samples
    }


def test_every_metric_is_exported_once() -> None:
    stats = [family.stat for family in FAMILIES]
    server = [*SERVER_COUNTERS, *SERVER_GAUGES, *SERVER_CALL_COUNTERS]
    assert sorted(stats) == sorted([*COUNTERS, *GAUGES, *GROUP_GAUGES, *DISTRIBUTIONS, *server])
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)


def test_metrics_page_is_current() -> None:
    guide = resources.files("timerstore").joinpath("docs/metrics.md").read_text("utf-8")
    assert guide == metrics_page()


def test_only_largest_topics_have_own_series() -> None:
    by_topic = {f"t{k:04}": k + 1 for k in range(TOPICS_MAX + 3)}
    found = list(metric_families.topics_of(by_topic))
    assert len(found) == TOPICS_MAX + 1
    assert found[0] == (f"t{TOPICS_MAX + 2:04}", TOPICS_MAX + 3)
    assert found[-1] == (OTHER_TOPICS, 1 + 2 + 3)
    assert (
        len(list(metric_families.topics_of(dict(list(by_topic.items())[:TOPICS_MAX]))))
        == TOPICS_MAX
    )


def test_groups_are_limited() -> None:
    many = {f"t{k:04}@g": k for k in range(GROUPS_MAX + 3)}
    found = list(metric_families.groups_of("group_ready_messages", many))
    assert found[:2] == [(("t0000", "g"), 0), (("t0001", "g"), 1)]
    assert found[GROUPS_MAX:] == [(OTHER_GROUPS, 500 + 501 + 502)]
    oldest = list(metric_families.groups_of("group_oldest_ms", many))
    assert oldest[GROUPS_MAX:] == [(OTHER_GROUPS, 502)]
    assert len(list(metric_families.groups_of("group_oldest_ms", {"t@g": 1}))) == 1


def test_scrape_equals_stats(bench: Bench) -> None:
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
    of_group = (("group", "g"), *labels, ("topic", "a"))
    assert found["timerstore_group_ready_messages", of_group] == 3
    assert found["timerstore_group_leased_messages", of_group] == 0
    assert found["timerstore_lateness_ms_count", labels] == 6
    assert found["timerstore_lateness_ms_sum", labels] == 24
    assert found["timerstore_lateness_ms_bucket", (("le", "2.0"), *labels)] == 0
    assert found["timerstore_lateness_ms_bucket", (("le", "5.0"), *labels)] == 6
    assert found["timerstore_lateness_ms_bucket", (("le", "+Inf"), *labels)] == 6


def test_scrape_omits_closed_store(bench: Bench, tmp_path: Path) -> None:
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
def test_forked_child_scrapes_only_its_stores(bench: Bench) -> None:
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


def test_serve_listens_on_loopback(bench: Bench) -> None:
    with prometheus.serve({"orders": bench.store}) as served:
        url = f"http://127.0.0.1:{served.port}/metrics"
        with urllib.request.urlopen(url, timeout=30) as answer:
            text = answer.read().decode()
    assert 'timerstore_pending_messages{shard="",store="orders"} 0.0' in text


class _Broken:
    """The store and the port are invalid."""


@pytest.mark.parametrize("name", [5, None, b"orders", "\ud800"])
def test_register_rejects_invalid_name(bench: Bench, name: Any) -> None:
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
def test_register_rejects_object_without_stats(store: Any) -> None:
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
def test_serve_rejects_invalid_address(bench: Bench, given: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        prometheus.serve(bench.store, **given)


def test_serve_reports_all_problems() -> None:
    with pytest.raises(ConfigError) as caught:
        prometheus.serve(5, 5, port=-1, host="")  # type: ignore[arg-type]
    assert len(caught.value.problems) == 4


def test_serve_rejects_port_in_use(bench: Bench) -> None:
    with (
        prometheus.serve(bench.store) as served,
        pytest.raises(ConfigError, match=f"on 127.0.0.1 port {served.port} .*in use"),
    ):
        prometheus.serve(bench.store, port=served.port)


def test_each_shard_has_own_series(tmp_path: Path) -> None:
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


def test_dashboard_uses_only_known_metrics() -> None:
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
            for name in named:  # counters are shown as rates, gauges as they are
                is_counter = name.endswith(("_total", "_bucket"))
                assert bool(re.search(rf"(rate|increase)\({name}\b", target["expr"])) == is_counter
    for variable in dashboard["templating"]["list"][1:]:
        assert set(re.findall(r"timerstore_\w+", variable["definition"])) <= known
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = {(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels}
    assert len(places) == len(panels)
    assert all(p["gridPos"]["x"] + p["gridPos"]["w"] <= 24 for p in panels)


def test_command_prints_dashboard_and_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    from timerstore.telemetry.prometheus.__main__ import main

    assert main(["dashboard"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "timerstore"
    assert main(["metrics"]) == 0
    assert capsys.readouterr().out == metrics_page()
    assert main(["nothing"]) == main([]) == 2


def test_reopened_store_is_registered_again(bench: Bench, tmp_path: Path) -> None:
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
