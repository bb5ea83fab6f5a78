"""Kill a child that deletes topics. The topic is whole, or gone if its deletion had begun."""

import multiprocessing
import signal
import time
from pathlib import Path
from random import Random

import pytest

import timerstore
from tests.crash import deletion_child
from tests.crash.deletion_child import CONFIG, GROUP, PUTS, TOPIC
from timerstore._engine.base.failpoints import DELETION_NAMES


@pytest.fixture(scope="module")
def context() -> multiprocessing.context.BaseContext:
    """Return a context whose children are forks of a server that has imported everything."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["tests.crash.deletion_child"])
    return found


def kill(
    root: Path, context: multiprocessing.context.BaseContext, point: str | None, after_s: float
) -> str:
    """Run a child until it is killed; return its last note."""
    process = context.Process(target=deletion_child.run, args=(str(root), point))  # type: ignore[attr-defined]
    process.start()
    if point is None:
        time.sleep(after_s)
        process.kill()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    notes = root.parent / "notes"
    return notes.read_text().splitlines()[-1] if notes.exists() else ""


def check(root: Path, note: str) -> str:
    """Open the store, check the topic, and return what it is."""
    with timerstore.open(root, CONFIG) as store:
        kept = store.stats()["pending_by_topic"].get("kept", 0)
        if TOPIC not in store.topics():
            assert note in ("deleting", "deleted", "filling", ""), "gone before its deletion began"
            assert not [one for one in store.pending() if TOPIC in one.topic]
            assert not store.query(TOPIC, "k", max_count=100)
            assert store.committed(TOPIC, GROUP) == {}
            found = "gone"
        else:
            assert note in ("filling", "filled", "deleting"), f"it came back after {note!r}"
            if note != "filling":
                assert len(store.query(TOPIC, "k", max_count=100)) == PUTS
            time.sleep(0.02)
            got = store.receive(TOPIC, GROUP, max_count=100)
            assert b"brief" not in [one.body for one in got]
            found = "whole"
            assert store.delete_topic(TOPIC)
        assert store.put(TOPIC, b"new").queue_offset == 0
        assert store.delete_topic(TOPIC)
        assert store.verify().clean
        assert store.stats()["pending_by_topic"].get("kept", 0) == kept
    return found


@pytest.mark.parametrize("point", DELETION_NAMES)
def test_kill_at_every_step_leaves_topic_deleted(
    point: str, tmp_path: Path, context: multiprocessing.context.BaseContext
) -> None:
    root = tmp_path / "store"
    assert kill(root, context, point, 0) == "deleting"
    assert check(root, "deleting") == "gone"


def test_kill_at_random_leaves_topic_whole_or_deleted(
    tmp_path: Path, context: multiprocessing.context.BaseContext
) -> None:
    root, random = tmp_path / "store", Random(7)
    for _ in range(8):
        check(root, kill(root, context, None, random.uniform(0.15, 0.6)))
