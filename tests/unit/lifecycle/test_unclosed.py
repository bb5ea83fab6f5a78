"""Stores that are dropped without a close: a ResourceWarning, and as after a kill."""

import asyncio
import gc
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import timerstore
import timerstore.aio
from tests.support.bench import NOW, small
from tests.support.inside import store_of
from tests.support.programs import run_program
from timerstore import ConfigError, LockedError
from timerstore.testing import ManualClock

OPENERS: dict[str, Callable[[Path], Any]] = {
    "store": lambda path: timerstore.open(path, small()),
    "store_by_hand": lambda path: timerstore.open(
        path, small(), clock=ManualClock(NOW), threads=False
    ),
    "store_on_a_turned_clock": lambda path: timerstore.open(path, small(), clock=CLOCK),
    "shards": lambda path: timerstore.open_shards(path, 2, small()),
    "shards_without_ingest": lambda path: timerstore.open_shards(
        path, 2, small(), ingest_every=None
    ),
    "read_only": lambda path: timerstore.open(path, read_only=True),
    "async": lambda path: asyncio.run(_opened(path)),
}
CLOCK = ManualClock(NOW)  # it outlives the store


async def _opened(path: Path) -> timerstore.aio.AsyncTimerStore:
    return await timerstore.aio.open(path, small())


def drop(make: Callable[[], Any]) -> "weakref.ref[Any]":
    """Make a store, and drop it."""
    store = make()
    made = weakref.ref(getattr(store, "blocking", store))
    del store
    end_s = time.monotonic() + 60
    while gc.collect() >= 0 and made() is not None and time.monotonic() < end_s:
        time.sleep(0)  # its ingest may be checking
    return made


def wait_for_services() -> None:
    """Wait until the services of dropped stores have ended and are collected."""
    for thread in threading.enumerate():
        if thread.name.startswith("timerstore-"):
            thread.join(60)
            assert not thread.is_alive(), thread.name
    gc.collect()


@pytest.mark.parametrize("how", OPENERS)
def test_dropped_store_warns_with_its_path_and_ends_its_services(tmp_path: Path, how: str) -> None:
    path = tmp_path / "s"
    if how == "read_only":
        timerstore.open(path, small()).close()
    with pytest.warns(ResourceWarning, match=f"unclosed .*Store of {path}: close it") as caught:
        dropped = drop(lambda: OPENERS[how](path))
    assert dropped() is None, "something keeps it alive"
    assert len(caught) == 1
    wait_for_services()
    OPENERS[how](path).close() if how != "async" else timerstore.open(path).close()


def test_acknowledged_messages_survive_a_dropped_store(tmp_path: Path) -> None:
    def make() -> Any:
        store = timerstore.open(tmp_path / "s", small(flush="async"))
        store.put("t", b"x")
        store.put("t", b"y", delay=0.001)
        return store

    with pytest.warns(ResourceWarning):
        drop(make)
    wait_for_services()
    with timerstore.open(tmp_path / "s") as store, store.consumer("t", "g") as consumer:
        found: list[bytes] = []
        while len(found) < 2 and (got := consumer.poll(wait=60)):
            found += [one.body for one in got]
        assert sorted(found) == [b"x", b"y"]
        assert store.verify().clean


def test_consumer_keeps_its_store_alive(tmp_path: Path) -> None:
    consumer = timerstore.open(tmp_path / "s", small(), threads=False).consumer("t", "g", wait=0)
    gc.collect()
    assert list(consumer) == []
    with pytest.raises(LockedError):
        timerstore.open(tmp_path / "s")
    store_of(consumer).close()


@pytest.mark.parametrize("how", OPENERS)
def test_closed_store_does_not_warn(tmp_path: Path, how: str) -> None:
    def make() -> Any:
        store = OPENERS[how](tmp_path / "s")
        if how == "async":
            asyncio.run(store.close())
        else:
            store.close()
        return store

    if how == "read_only":
        timerstore.open(tmp_path / "s", small()).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert drop(make)() is None


def test_store_that_failed_to_open_does_not_warn(tmp_path: Path) -> None:
    held = timerstore.open(tmp_path / "held", small(), threads=False)
    with pytest.raises(ConfigError):
        timerstore.open("")
    with pytest.raises(LockedError):
        timerstore.open(tmp_path / "held")
    held.close()
    gc.collect()


def test_forked_child_does_not_warn_or_unlock_the_store_of_its_parent(tmp_path: Path) -> None:
    program = """
import gc, os, sys, timerstore
store = timerstore.open(sys.argv[1])
child = os.fork()
if child == 0:
    del store
    gc.collect()
    os._exit(0)
os.waitpid(child, 0)
child = os.fork()
if child == 0:
    try:
        timerstore.open(sys.argv[1])
    except timerstore.LockedError:
        os._exit(5)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
store.close()
"""
    quiet = ("-W", "error::ResourceWarning", "-W", "ignore::DeprecationWarning")
    ended = run_program(program, tmp_path / "s", options=quiet)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "5\n", "")


@pytest.mark.parametrize("kind", OPENERS)
def test_closed_store_is_freed_by_one_collection(kind: str, tmp_path: Path) -> None:
    """A finalizer that made the store's dictionary kept all of it until the next collection."""
    if kind == "read_only":
        timerstore.open(tmp_path / "store", small()).close()
    gc.collect()
    gc.disable()
    try:
        store = OPENERS[kind](tmp_path / "store")
        owner = type(getattr(store, "blocking", store))
        if kind == "async":
            asyncio.run(store.close())
        else:
            store.close()
        del store
        gc.collect()  # a weak reference would be dead in any case
        alive = [repr(one) for one in gc.get_objects() if type(one) is owner]
        assert not [one for one in alive if str(tmp_path) in one]
    finally:
        gc.enable()
