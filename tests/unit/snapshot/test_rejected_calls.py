"""A read-only store changes nothing, and rejects calls that would."""

import os
import signal
import threading
from pathlib import Path

import pytest

import timerstore
import timerstore.aio
from tests.support.bench import Bench, small
from tests.support.inside import read_only_lock, view_of
from tests.support.reader_and_owner import fill, same, trace
from timerstore import (
    ClosedError,
    ConfigError,
    ForkedError,
    ReadOnlyError,
    ReadOnlyStore,
    ReentrantCallError,
    TimerStore,
)
from timerstore._engine.snapshot.snapshot_calls import UNSUPPORTED
from timerstore._engine.storage.disk import Disk, ReadOnlyDisk
from timerstore.api import StoreApi

CHANGES = {
    "put": lambda s: s.put("t", b""),
    "put_many": lambda s: s.put_many("t", [b""]),
    "put_every": lambda s: s.put_every("t", b"", every=5),
    "cancel_every": lambda s: s.cancel_every("each"),
    "delete_topic": lambda s: s.delete_topic("t"),
    "ingest": lambda s: s.ingest("source", 1, []),
    "cancel": lambda s: s.cancel("handle"),
    "cancel_many": lambda s: s.cancel_many([]),
    "reschedule": lambda s: s.reschedule("handle", delay=1),
    "pace": lambda s: s.pace("t", 1),
    "consumer": lambda s: s.consumer("t", "g"),
    "receive": lambda s: s.receive("t", "g"),
    "begin_receive": lambda s: s.begin_receive("t", "g"),
    "lease_consumer": lambda s: s.lease_consumer("t", "g"),
    "ack": lambda s: s.ack("receipt"),
    "ack_many": lambda s: s.ack_many([]),
    "nack": lambda s: s.nack("receipt"),
    "extend": lambda s: s.extend("receipt"),
    "bury": lambda s: s.bury("receipt"),
    "requeue": lambda s: s.requeue("g"),
    "flush": lambda s: s.flush(),
    "backup": lambda s: s.backup("folder"),
    "services": lambda s: s.services(),
    "begin_pull": lambda s: s.begin_pull("t", 0, 0),
    "begin_pull_batch": lambda s: s.begin_pull_batch("t", 0, 0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_read_only_store_rejects_calls_that_change_it(bench: Bench, name: str) -> None:
    before = trace(bench.root)
    with timerstore.open(bench.root, bench.config, read_only=True) as one:
        with pytest.raises(ReadOnlyError, match=rf"{name}: .*read-only.*{bench.root}"):
            CHANGES[name](one)
        assert trace(bench.root) == before
    with pytest.raises(ClosedError):
        CHANGES[name](one)


def test_read_only_store_has_every_call_of_a_store() -> None:
    calls = {name for name in vars(TimerStore) if not name.startswith("_")}
    assert calls <= {name for name in dir(ReadOnlyStore) if not name.startswith("_")}


def test_read_only_store_puts_nothing_when_owner_is_idle(bench: Bench, read: ReadOnlyStore) -> None:
    before = trace(bench.root)
    same(read, bench.store)
    read.verify()
    read.close()
    assert trace(bench.root) == before


def test_read_only_store_leaves_closed_store_unchanged(bench: Bench) -> None:
    fill(bench)
    told = [list(bench.store.pending()), bench.out("t"), bench.store.query("u", "lev")]
    bench.close()
    before = trace(bench.root)
    with timerstore.open(bench.root, bench.config, clock=bench.clock, read_only=True) as one:
        assert [
            list(one.pending()),
            list(one.pull("t", 0, 0).messages),
            one.query("u", "lev"),
        ] == told
        assert one.stats()["open_in"] is None
        assert one.verify().clean
    assert trace(bench.root) == before
    bench.open()


def test_read_only_store_reads_folder_without_write_permission(bench: Bench) -> None:
    fill(bench)
    bench.close()
    paths = [bench.root, *bench.root.rglob("*")]
    above = [path for path in bench.root.parents if len(path.parts) > 2]
    modes = {path: path.stat().st_mode for path in [*paths, *above]}
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    for path in above:  # for root there is nothing that cannot be written to: the child is another
        path.chmod(modes[path] | 0o055)
    try:
        child = os.fork()
        if not child:
            status = 1
            try:
                if os.geteuid() == 0:
                    os.setgid(65534)
                    os.setuid(65534)
                assert not os.access(bench.root, os.W_OK)
                with timerstore.open(bench.root, bench.config, read_only=True) as one:
                    assert len(one.pull("t", 0, 0).messages) == 4
                    assert one.query("t", "k1")
                    assert list(one.pending())
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
    bench.open()


def test_read_only_open_makes_no_store(tmp_path: Path) -> None:
    for path, match in (
        (tmp_path / "none", "is no directory"),
        (tmp_path, "holds no store"),
    ):
        with pytest.raises(ConfigError, match=match):
            timerstore.open(path, read_only=True)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match="read_only"):
        timerstore.open(tmp_path, read_only=1)  # type: ignore[call-overload]


def test_read_only_open_rejects_backup_and_shards(bench: Bench, tmp_path: Path) -> None:
    bench.store.put("t", b"x")
    bench.store.backup(tmp_path / "backup")
    with pytest.raises(ConfigError, match="backup"):
        timerstore.open(tmp_path / "backup", read_only=True)
    timerstore.open_shards(tmp_path / "shards", 2, small(), ingest_every=None).close()
    with pytest.raises(ConfigError, match="open_shards"):
        timerstore.open(tmp_path / "shards", read_only=True)


def test_read_only_open_reads_one_shard(tmp_path: Path) -> None:
    config = small()
    with timerstore.open_shards(tmp_path / "s", 2, config, ingest_every=None) as shards:
        shards.put("t", b"x", keys="k")
        folders = [store.path for store in shards.stores]
        for store in shards.stores:
            store.flush()
        found = []
        for folder in folders:
            with timerstore.open(folder, config, read_only=True) as one:
                found += [message.body for message in one.follow("t")]
        assert found == [b"x"]
    with pytest.raises(ConfigError, match="one by one"):
        timerstore.open_shards(tmp_path / "s", read_only=True)
    with pytest.raises(ConfigError, match=r"timerstore\.open\("):
        timerstore.aio.open(folders[0], read_only=True)


def test_forked_child_must_open_its_own_store(bench: Bench, read: ReadOnlyStore) -> None:
    child = os.fork()
    if not child:
        status = 1
        try:
            with pytest.raises(ForkedError):
                read.topics()
            with pytest.raises(ForkedError):
                read.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def test_forked_child_does_not_wait_for_lock_of_parent(read: ReadOnlyStore) -> None:
    pending = read.pending()
    next(pending)
    is_held, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        with read_only_lock(read):
            is_held.set()
            is_over.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    is_held.wait()
    child = os.fork()
    if not child:
        signal.alarm(10)  # ends it where it hangs
        status = 1
        try:
            with pytest.raises(ForkedError):
                next(pending)
            status = 0
        finally:
            os._exit(status)
    is_over.set()
    holder.join()
    assert os.waitpid(child, 0)[1] == 0


def test_close_raises_when_same_thread_is_in_a_call(
    read: ReadOnlyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(view_of(read), "advance", read.close)  # as by a signal handler
        with pytest.raises(ReentrantCallError, match="during another call"):
            read.topics()
    assert read.topics()
    read.close()
    read.close()


def test_read_only_store_follows_no_link_in_store(bench: Bench, tmp_path: Path) -> None:
    fill(bench)
    bench.close()
    queues = bench.root / "consumequeue"
    queues.rename(tmp_path / "elsewhere")
    queues.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(timerstore.FailedError, match="link"):
        timerstore.open(bench.root, bench.config, read_only=True)
    queues.unlink()
    (tmp_path / "elsewhere").rename(queues)
    bench.open()


def test_read_only_disk_rejects_every_write(tmp_path: Path) -> None:
    disk, path = ReadOnlyDisk(), tmp_path / "file"
    path.write_bytes(b"as it was")
    (tmp_path / "empty").mkdir()
    before = trace(tmp_path)
    with pytest.raises(ReadOnlyError):
        disk.open(tmp_path / "new", create=True)
    file = disk.open(path, read_only=False)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(file.fd, b"x", 0)
    assert file.read(0, 9) == b"as it was"
    for ask in (
        lambda: disk.make_directory(tmp_path / "new"),
        lambda: disk.unlink(path),
        lambda: disk.rename(path, tmp_path / "new"),
        lambda: disk.sync_directory(tmp_path),
        lambda: disk.sync_name(tmp_path),
        lambda: disk.read_created(tmp_path / "file"),
        lambda: disk.write_small(path, b"x"),
        lambda: disk.create_small(tmp_path / "new", b"x"),
        lambda: disk.link(path, tmp_path / "new"),
        lambda: disk.locked(path, alone=True),
        lambda: disk.remove_empty(tmp_path / "empty"),
        lambda: disk.remove_tree(tmp_path / "empty"),
    ):
        with pytest.raises(ReadOnlyError):
            ask()
    assert trace(tmp_path) == before
    reads = {
        "anchor", "exists", "is_directory", "check_no_link", "file_bytes", "identities", "identity",
        "list", "used_percent", "modified_ms", "read_small", "small_bytes_max", "add_cache",
            "spared",
    }  # fmt: skip
    everything = {name for name in vars(Disk) if not name.startswith("_")}
    assert everything - reads <= set(vars(ReadOnlyDisk))


def test_every_rejected_call_has_a_reason() -> None:
    calls = {name.removeprefix("_do_") for name in vars(StoreApi) if name.startswith("_do_")}
    assert len(calls) > 30
    for name in calls - UNSUPPORTED.keys():
        assert getattr(ReadOnlyStore, f"_do_{name}") is not getattr(StoreApi, f"_do_{name}"), name
    for name in UNSUPPORTED.keys() & calls:
        assert getattr(ReadOnlyStore, name) is not getattr(StoreApi, name), name
    assert all(UNSUPPORTED.values())
