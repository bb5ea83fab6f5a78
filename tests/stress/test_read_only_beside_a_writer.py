"""Read a store from another process while its owner puts, cancels, delivers, applies retention, and
is killed.
"""

import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support.bench import small
from timerstore import GoneError, Message, PullStatus, ReadOnlyStore

pytestmark = pytest.mark.more

_CONTEXT = multiprocessing.get_context("spawn")


def write(root: Path, stop: Any, retention_ms: int) -> None:
    config = small(
        checkpoint_interval_ms=20,
        commit_log_segment_bytes=256 * 1024,
        flush_interval_ms=20,
        retention_ms=retention_ms,
    )
    number = 0
    with timerstore.open(root, config) as store:
        store.put("t", b"waits for ever", delay=86_400, keys=("stays",))
        store.flush()
        while not stop.is_set():
            bodies = [b"%08d" % n + bytes(500) for n in range(number, number + 20)]
            store.put_many("t", bodies, flush="sync")
            receipts = [store.put("d", b"later", delay=0.2 + n / 20) for n in range(5)]
            store.cancel(receipts[0])
            number += 20
            (root.parent / "put").write_text(str(number))


@contextmanager
def writing(root: Path, retention_ms: int = 0) -> Iterator[Any]:
    """Run a process that owns the store. It must end without an error, unless it was killed."""
    stop = _CONTEXT.Event()
    writer = _CONTEXT.Process(target=write, args=(root, stop, retention_ms))
    writer.start()
    try:
        while not (root.parent / "put").exists():
            assert writer.is_alive()
            time.sleep(0.01)
        yield writer
        assert writer.is_alive() or writer.exitcode == -signal.SIGKILL
    finally:
        stop.set()
        writer.join(60)
    assert writer.exitcode in (0, -signal.SIGKILL)


def numbers(messages: tuple[Message, ...]) -> list[int]:
    return [int(message.body[:8]) for message in messages]


def look(store: ReadOnlyStore, offset: int) -> int:
    """Read new messages, and return the next offsets."""
    got = store.pull("t", 0, offset, max_count=1000)
    if got.status is PullStatus.OFFSET_TOO_SMALL:
        return got.next_offset
    assert numbers(got.messages) == list(range(offset, got.next_offset))
    pending = list(store.pending())
    assert "t" in {one.topic for one in pending}
    assert [one.due_ms for one in pending] == sorted(one.due_ms for one in pending)
    assert len({one.timer_id for one in pending}) == len(pending)
    [stays] = store.query("t", "stays")
    assert stays.waits
    delivered = [message.message_id for message in store.follow("d")]
    assert len(delivered) == len(set(delivered))
    assert all(message.store_ms >= message.due_ms for message in got.messages)
    stats = store.stats()
    assert stats["open_in"] not in (None, os.getpid())
    assert stats["pending_messages"] >= 1
    assert store.explain(pending[0]).state in ("pending", "delivered", "cancelled")
    assert store.histogram(0, 4_000_000_000_000, "day").counts.sum() >= 1
    return got.next_offset


@pytest.mark.parametrize("retention_ms", [0, 1000])
def test_read_only_store_returns_each_message_once_during_writes(
    tmp_path: Path, retention_ms: int
) -> None:
    root = tmp_path / "s"
    with writing(root, retention_ms), timerstore.open(root, read_only=True) as store:
        end, offset, rounds = time.monotonic() + 6, 0, 0
        while time.monotonic() < end or rounds < 4 or offset <= 100:
            try:
                following = look(store, offset)
            except GoneError:  # a reader that is slower than retention repeats the call
                assert retention_ms
                continue
            assert following >= offset
            offset, rounds = following, rounds + 1
        if retention_ms:  # and so short that a slow verify misses files on both of its passes
            assert store.stats()["log_begin_bytes"] > 0
        else:
            assert store.verify().clean
    with timerstore.open(root, read_only=True) as store:
        assert store.verify().clean


def test_read_only_store_returns_a_new_message_soon_in_a_long_poll(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with writing(root), timerstore.open(root, read_only=True) as store:
        seen = 0
        for message in store.follow("t", wait=5.0):
            assert int(message.body[:8]) == seen
            seen += 1
            if seen == 1000:
                break
        assert seen == 1000


def test_read_only_store_returns_all_acknowledged_messages_after_a_kill(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with writing(root) as writer, timerstore.open(root, read_only=True) as before:
        time.sleep(0.5)
        os.kill(writer.pid, signal.SIGKILL)
        writer.join(30)
        acknowledged = int((tmp_path / "put").read_text() or 0)
        with timerstore.open(root, read_only=True) as store:
            for one in (before, store):
                found = [int(message.body[:8]) for message in one.follow("t")]
                assert found == list(range(len(found)))
                assert len(found) >= acknowledged
                assert one.stats()["open_in"] is None
            waits = {one.message_id for one in store.pending()}
            # The next owner recovers the store, and no message disappears.
            with timerstore.open(root, threads=False) as owner:
                assert len(list(owner.pull_batch("t", 0, 0, max_count=10**6))) >= len(found)
                # The last cancels may have been in the staging file only.
                for one in waits - {one.message_id for one in owner.pending()}:
                    assert owner.explain(one, topic="d").state == "cancelled"
            after = [int(message.body[:8]) for message in store.follow("t")]
            assert after[: len(found)] == found


def open_and_close(root: Path, stop: Any) -> None:
    config = small(commit_log_segment_bytes=64 * 1024)
    number = 0
    while not stop.is_set():
        with timerstore.open(root, config) as store:
            for _ in range(50):
                store.put("t", b"%08d" % number + bytes(100))
                store.put("d", b"waits", delay=86_400, keys=("w",))
                number += 1
        if number % 200 == 0:  # all derived files are rebuilt from the log
            (root / "timerstore" / "watermark").unlink()
            shutil.rmtree(root / "consumequeue")
        (root.parent / "put").write_text(str(number))


def test_read_only_store_raises_no_error_while_owners_rebuild_the_store(tmp_path: Path) -> None:
    root = tmp_path / "s"
    stop = _CONTEXT.Event()
    owner = _CONTEXT.Process(target=open_and_close, args=(root, stop))
    owner.start()
    try:
        while not (tmp_path / "put").exists():
            time.sleep(0.01)
        end, seen, rounds = time.monotonic() + 8, 0, 0
        with timerstore.open(root, read_only=True) as kept:
            while time.monotonic() < end or rounds < 6 or seen <= 400:
                with timerstore.open(root, read_only=True) as anew:
                    for store in (kept, anew):
                        found = numbers(tuple(store.follow("t")))
                        assert found == list(range(len(found)))
                        if store is kept:
                            assert len(found) >= seen
                            seen = len(found)
                        waits = list(store.pending())
                        now = sum(1 for _ in store.follow("t"))
                        assert len(found) - 100 <= len(waits) <= now + 100
                        assert len({one.timer_id for one in waits}) == len(waits)
                        assert len(store.query("d", "w", max_count=10)) == min(10, len(waits))
                rounds += 1
    finally:
        stop.set()
        owner.join(60)
    assert owner.exitcode == 0


def test_read_only_store_serves_many_threads_in_the_process_of_its_owner(tmp_path: Path) -> None:
    config = small(checkpoint_interval_ms=20, retention_ms=1000, commit_log_segment_bytes=64 * 1024)
    failed: list[BaseException] = []
    with (
        timerstore.open(tmp_path / "s", config) as owner,
        timerstore.open(tmp_path / "s", config, read_only=True) as store,
    ):
        owner.put("t", b"at once")
        owner.put("t", b"first", keys=("k",), delay=86_400)
        owner.flush()
        stop = threading.Event()

        def calling(call: Callable[[], object]) -> None:
            try:
                while not stop.is_set():
                    call()
            except BaseException as error:  # noqa: BLE001 - the test reports it
                failed.append(error)

        calls: list[Callable[[], object]] = [
            lambda: (owner.put_many("t", [bytes(300)] * 20), owner.flush()),
            lambda: store.pull("t", 0, store.pull("t", 0, 10**9).max_offset, wait=0.2),
            lambda: list(store.pending()),
            lambda: store.query("t", "k"),
            lambda: list(store.follow("t", {0: store.pull("t", 0, 10**9).max_offset})),
            store.stats,
        ]
        threads = [threading.Thread(target=calling, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        end = time.monotonic() + 20
        while time.monotonic() < end and not (failed or store.stats()["log_begin_bytes"]):
            time.sleep(0.5)
        time.sleep(1)
        stop.set()
        for thread in threads:
            thread.join(60)
        assert not failed, failed
        assert store.stats()["log_begin_bytes"] > 0
