"""Owners: a copy of one would own the same descriptors, and close them under it."""

import copy
import gc
import os
import pickle
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import timerstore
import timerstore.aio
from tests.support.bench import Bench
from tests.support.owners import Found, classes, owners
from timerstore import dashboard
from timerstore._engine.base import native
from timerstore._engine.base.owner import NotCopyable
from timerstore.telemetry import opentelemetry, prometheus

COPIES: dict[str, Callable[[Any], object]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{f"pickle {n}": partial(pickle.dumps, protocol=n) for n in range(6)},
}
# It owns a lock of its own and nothing else; worlds of the simulator are pickled with it.
EXEMPT = {"timerstore.testing.ManualClock"}
WITHOUT_PYSPARK = "timerstore.spark"
FOUND = [one for one in owners() if one.where not in EXEMPT]


def class_of(found: Found) -> type[Any]:
    if found.module.startswith(WITHOUT_PYSPARK):
        pytest.importorskip("pyspark")
    named: type[Any] = getattr(import_module(found.module), found.name)
    return named


def assert_refuses(one: object, name: str) -> None:
    """Check that neither the object nor a holder of it can be copied."""

    @dataclass
    class Holder:
        held: object

    for how, copied in COPIES.items():
        with pytest.raises(TypeError, match=rf"\b{name}\b"):
            copied(one)
        if how != "copy":  # a shallow copy of a holder holds the same object
            with pytest.raises(TypeError, match=rf"\b{name}\b"):
                copied([one])
    with pytest.raises(TypeError, match=rf"\b{name}\b"):
        asdict(Holder(one))


@pytest.mark.more
def test_owners_are_found() -> None:
    """The search finds known owners, and not some classes that may be copied."""
    found = {one.name for one in owners()}
    assert found >= {
        *("AsyncConsumer", "AsyncTimerStore", "CommitLog", "Consumer", "Directory", "Disk"),
        *("File", "GuardedMap", "Instruments", "Planner", "ReadOnlyStore", "Segments"),
        *("MetricsServer", "Served", "Service", "ShardConsumer", "ShardedStore", "Staging"),
        "TimerStore",
    }
    assert {one.name for one in classes()} - found >= {
        *("Message", "PutReceipt", "StoreConfig", "LeasedMessage", "ShardReceipt", "RowBatch")
    }


@pytest.mark.parametrize("found", FOUND, ids=lambda one: one.where)
def test_owner_cannot_be_copied_and_is_harmless_without_init(found: Found) -> None:
    cls = class_of(found)
    if not issubclass(cls, tuple):
        assert issubclass(cls, NotCopyable), (
            f"{found.where}: wanted timerstore._engine.base.owner.NotCopyable as a base"
        )
        return  # abstract without init; its subclasses test it
    made = cls.__new__(cls) if not issubclass(cls, tuple) else tuple.__new__(cls)
    for copied in COPIES.values():
        with pytest.raises(TypeError, match=found.name):
            copied(made)
    del made
    gc.collect()  # an error of its finalizer would fail this test


@pytest.mark.parametrize("name", ["Lock", "AppendLock", "NativeGroupCommit", "Putter"])
def test_owner_in_c_cannot_be_copied_and_is_harmless_without_init(name: str) -> None:
    cls = getattr(native, name)
    one = cls.__new__(cls)
    for copied in COPIES.values():
        with pytest.raises(TypeError, match=cls.__name__):
            copied(one)


@pytest.mark.parametrize("name", ["put", "put_many"])
def test_putter_without_init_raises(name: str) -> None:
    putter = native.Putter.__new__(native.Putter)
    with pytest.raises(ReferenceError, match="without a store"):
        getattr(putter, name)("t", b"x")
    with pytest.raises(ReferenceError):
        getattr(putter, name)("t", [b"x"])
    assert putter.begin_put("t", b"x") is None
    assert putter.begin_put_many("t", [b"x"]) is None


def test_map_cannot_be_copied(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 4096)
    memory = timerstore._engine.storage.disk.Disk().open(tmp_path / "file").map_read(4096)
    assert_refuses(memory, "GuardedMap")


def test_public_owners_cannot_be_copied_and_their_store_continues(
    bench: Bench, tmp_path: Path
) -> None:
    store = bench.store
    store.put("t", b"x", delay=0.001)
    consumer, waiting = store.consumer("t", "g", wait=0), store.begin_pull("t", 0, 0, wait=1)
    async_store = timerstore.aio.AsyncTimerStore(store, None)  # type: ignore[arg-type]
    with (
        timerstore.open_shards(tmp_path / "shards", 2) as shards,
        timerstore.open(bench.root, bench.config, read_only=True) as reads,
        dashboard.start(store) as page,
        prometheus.serve(store) as scraped,
        consumer,
    ):
        public = [
            *(store, shards, reads, async_store, consumer, shards.consumer("t", "g")),
            *(store.lease_consumer("t", "h"), shards.lease_consumer("t", "h"), waiting),
            *(async_store.lease_consumer("t", "h"), timerstore.aio.open(tmp_path / "not")),
            *(timerstore.DelayQueue(), bench.stepper, *store.services().values()),
            *(page, scraped, prometheus.StoreCollector(store), opentelemetry.instrument(store)),
        ]
        for one in public:
            assert_refuses(one, type(one).__name__)
        for held in (store.put, store.close, consumer.poll, partial(store.pull, "t", 0), [[store]]):
            with pytest.raises(TypeError, match="owns files"):
                copy.deepcopy(held)
        with pytest.raises(TypeError, match="share this one"):
            copy.copy(store)
        gc.collect()
        _take_low_descriptors(tmp_path / "mine")
    bench.turn(1000)
    assert bench.bodies() == [b"x"]
    bench.reopen()
    assert not list((tmp_path / "mine").iterdir())
    bench.close()


def _take_low_descriptors(folder: Path) -> None:
    """Take the lowest free numbers, where a store with a lost descriptor would write."""
    folder.mkdir()
    opened = [os.open(folder, os.O_RDONLY | os.O_DIRECTORY) for _ in range(8)]
    for fd in opened:
        os.set_inheritable(fd, False)


def test_values_and_configurations_can_be_copied(bench: Bench) -> None:
    receipt = bench.store.put("t", b"x", keys="k", delay=1)
    bench.turn(2000)
    values = [
        receipt,
        bench.store.config,
        *bench.out(),
        bench.store.stats(),
        *bench.store.receive("t", "g"),
    ]
    for value in values:
        assert copy.copy(value) == value
        assert copy.deepcopy(value) == value
        assert pickle.loads(pickle.dumps(value)) == value
    bench.close()
