"""The counters of a server in `stats()` and in the metrics of its store."""

from dataclasses import fields
from pathlib import Path

import pytest

import timerstore.net
from tests.support.bench import Bench
from tests.support.served_bench import ServedBench
from timerstore import ClosedError, MessageError
from timerstore._engine.base.metrics import SERVER_COUNTERS, SERVER_GAUGES
from timerstore.net.remote_store import RemoteStore
from timerstore.net.server_counters import ServerCounters
from timerstore.net.server_limits import ServerLimits


def test_counters_of_a_server_are_the_described_ones() -> None:
    described = {*SERVER_COUNTERS, *SERVER_GAUGES}
    assert {one.name for one in fields(ServerCounters)} == described
    assert len(described) == len(SERVER_COUNTERS) + len(SERVER_GAUGES)


def test_prometheus_shows_the_server_of_a_store(tmp_path: Path) -> None:
    prometheus_client = pytest.importorskip("prometheus_client")
    from prometheus_client import parser

    from timerstore.telemetry import prometheus

    registry = prometheus_client.CollectorRegistry()
    limits = ServerLimits(connections_max=1)
    served = ServedBench(Bench(tmp_path / "store"), tmp_path / "x.sock", limits=limits)
    prometheus.register(served.bench.store, "orders", on=registry)
    remote = served.connect()
    remote.put("t", b"x")
    with pytest.raises(MessageError):
        remote.put("t", b"x", delay=-1)
    assert served.raw().reply()[2] == "UnavailableError"
    text = prometheus_client.generate_latest(registry).decode()
    found = {one.name: one for one in parser.text_string_to_metric_families(text)}
    stats = served.server.stats()
    for name, told in (SERVER_COUNTERS | SERVER_GAUGES).items():
        family = found[f"timerstore_{name}"]
        assert family.type == ("counter" if name in SERVER_COUNTERS else "gauge")
        assert family.documentation == told
        assert [one.value for one in family.samples] == [stats[name]], name
    assert stats["net_connections"] == stats["net_accepted_connections"] == 1
    assert stats["net_rejected_connections"] == stats["net_failed_requests"] == 1
    assert stats["net_requests"] == 2
    assert stats["net_received_bytes"] > 100
    assert stats["net_sent_bytes"] > 100
    served.close()


def test_stats_add_the_servers_of_a_store(
    served: ServedBench, remote: RemoteStore, tmp_path: Path
) -> None:
    store = served.bench.store
    remote.put("t", b"x")
    with timerstore.net.serve(store, socket=tmp_path / "y.sock") as second:
        with timerstore.connect(second.urls[0]) as other:
            other.put("t", b"y")
            assert other.stats()["net_connections"] == 2
            assert other.stats()["net_requests"] == 4, "the running call is one of them"
        assert store.stats()["net_requests"] == 4
    assert store.stats()["net_requests"] == 1
    served.server.close()
    assert not any(store.stats()[name] for name in (*SERVER_COUNTERS, *SERVER_GAUGES))


def test_serve_rejects_a_closed_store_and_leaves_no_socket(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store")
    bench.close()
    with pytest.raises(ClosedError):
        timerstore.net.serve(bench.store, socket=tmp_path / "x.sock")
    assert not (tmp_path / "x.sock").exists()
