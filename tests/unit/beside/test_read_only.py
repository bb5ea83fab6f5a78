"""A store that is opened read-only says what its owner says, and leaves no trace."""

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import timerstore
import timerstore.aio
from tests.support.bench import DAY, NOW, Bench, small
from timerstore import (
    ClosedError,
    ConfigError,
    CorruptError,
    ForkedError,
    MessageError,
    PullStatus,
    ReadOnlyError,
    ReadOnlyStore,
    TimerStore,
)
from timerstore.files.disk import Disk
from timerstore.files.read_only import ReadOnlyDisk

Trace = dict[str, tuple[int, int, int, str]]


def trace(root: Path) -> Trace:
    """Everything in a directory: kind, size, time of change, bytes."""
    found = {}
    for path in [root, *root.rglob("*")]:
        status = path.lstat()
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(root))] = (
            status.st_mode, status.st_size, status.st_mtime_ns, digest,
        )  # fmt: skip
    return found


def fill(bench: Bench) -> dict[str, Any]:
    """Messages of every kind; what they are known by."""
    store = bench.store
    known: dict[str, Any] = {
        "now": [store.put("t", b"now %d" % k, tags=f"g{k % 2}", keys=(f"k{k}",)) for k in range(4)],
        "waits": [store.put("t", b"w%d" % k, delay=60 + k, keys=(f"w{k}",)) for k in range(5)],
        "far": store.put("u", b"far", delay=9 * 60, keys=("far",)),
        "level": store.put("u", b"on a level", level=3, keys=("lev",)),
    }
    store.cancel(known["waits"][0])
    known["moved"] = store.reschedule(known["waits"][1], delay=90)
    known["short"] = store.put("u", b"short", delay=1, keys=("short",))
    bench.turn()
    bench.turn(2000)
    with store.consumer("t", "g", wait=0) as consumer:
        for message in consumer:
            consumer.commit()
            if message.body == b"now 1":
                break
    store.put_every("r", b"again", every=60, name="each")
    bench.turn()
    store.flush()
    return known


def same(one: ReadOnlyStore, other: TimerStore) -> None:
    """Both give the same answers."""
    assert one.topics() == other.topics()
    for topic, count in other.topics().items():
        for queue_id in range(count):
            for offset in (0, 1, 3, 100):
                assert one.pull(topic, queue_id, offset) == other.pull(topic, queue_id, offset)
            tagged = [each.pull(topic, queue_id, 0, tags="g1") for each in (one, other)]
            assert tagged[0] == tagged[1]
            batches = [each.pull_batch(topic, queue_id, 0) for each in (one, other)]
            assert [list(batch) for batch in batches[:1]] == [list(batch) for batch in batches[1:]]
            assert one.offset_at(topic, queue_id, NOW + 1) == other.offset_at(
                topic, queue_id, NOW + 1
            )
    assert list(one.pending()) == list(other.pending())
    assert list(one.pending(topic="u")) == list(other.pending(topic="u"))
    span = {"begin_ms": NOW + 62_000, "end_ms": NOW + 200_000}
    assert list(one.pending(**span)) == list(other.pending(**span))
    for topic in ("t", "u", "r"):
        for key in ("k1", "w0", "w1", "w2", "far", "lev", "short", "none"):
            assert one.query(topic, key) == other.query(topic, key), key
    for by, name in (("minute", None), ("hour", "t"), ("second", "u")):
        counted = [each.histogram(NOW, NOW + DAY // 24, by, name) for each in (one, other)]
        assert [list(each.edges) for each in counted[:1]] == [list(counted[1].edges)]
        assert [list(each.counts) for each in counted[:1]] == [list(counted[1].counts)]
    assert one.committed("t", "g") == other.committed("t", "g") != {}
    assert one.timing_distribution() == other.timing_distribution()
    assert one.congestion() == other.congestion()
    assert one.recurring() == other.recurring() != []
    mine, theirs = one.stats(), other.stats()
    for name in mine.keys() & theirs.keys():
        assert mine[name] == theirs[name], name
    assert {"pending_messages", "pending_by_topic", "log_end_bytes"} <= mine.keys()


@pytest.fixture
def read(bench: Bench) -> Iterator[ReadOnlyStore]:
    """A store with messages, its owner in the same process, read beside it."""
    fill(bench)
    with timerstore.open(bench.root, bench.config, clock=bench.clock, read_only=True) as one:
        yield one


def test_it_says_what_its_owner_says(bench: Bench, read: ReadOnlyStore) -> None:
    same(read, bench.store)
    assert read.verify().clean
    assert read.stats()["open_in"] == os.getpid()


def test_explanations_are_those_of_its_owner(bench: Bench) -> None:
    known = fill(bench)
    with timerstore.open(bench.root, bench.config, clock=bench.clock, read_only=True) as one:
        for name in ("waits", "now"):
            for receipt in known[name]:
                assert one.explain(receipt) == bench.store.explain(receipt)
        for name in ("far", "level", "moved", "short"):
            assert one.explain(known[name]) == bench.store.explain(known[name]), name
        assert one.explain("none", topic="t").state == "unknown"


def test_nothing_is_put_while_its_owner_does_nothing(bench: Bench, read: ReadOnlyStore) -> None:
    before = trace(bench.root)
    same(read, bench.store)
    read.verify()
    read.close()
    assert trace(bench.root) == before


def test_a_closed_store_is_read_and_left_as_it_is(bench: Bench) -> None:
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


def test_a_folder_that_cannot_be_written_to_is_read(bench: Bench) -> None:
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


def _killed(bench: Bench, copy: Path) -> None:
    """What a kill would leave, without `lock`, which nobody holds there."""
    shutil.copytree(bench.root, copy)


def test_what_was_killed_is_read_to_the_end_of_its_log(bench: Bench, tmp_path: Path) -> None:
    fill(bench)
    bench.store.put("t", b"behind the checkpoint", flush="sync")
    waits = bench.store.put("t", b"waits behind it", delay=100, keys=("late",), flush="sync")
    bench.store.cancel(waits)
    bench.store.put("new", b"of a new topic", flush="sync")
    _killed(bench, tmp_path / "killed")
    before = trace(tmp_path / "killed")
    with timerstore.open(
        tmp_path / "killed", bench.config, clock=bench.clock, read_only=True
    ) as one:
        assert one.stats()["log_end_bytes"] > 0
        bodies = [message.body for message in one.pull("t", 0, 0).messages]
        assert bodies[-1] == b"behind the checkpoint"
        assert [message.body for message in one.pull("new", 0, 0).messages] == [b"of a new topic"]
        assert one.query("t", "late") == []
        assert list(one.pending()) == list(bench.store.pending())
        assert one.explain(waits).state == "cancelled"
    assert trace(tmp_path / "killed") == before


def test_half_a_group_is_not_read(bench: Bench, tmp_path: Path) -> None:
    bench.store.put("t", b"first", flush="sync")
    bench.turn()
    bench.store.flush()
    end = bench.store.stats()["log_end_bytes"]
    bench.store.put_many("t", [b"a" * 100, b"b" * 100], atomic=True, flush="sync")
    whole = bench.store.stats()["log_end_bytes"]
    _killed(bench, tmp_path / "killed")
    log = tmp_path / "killed" / "commitlog" / ("0" * 20)
    with timerstore.open(tmp_path / "killed", bench.config, read_only=True) as one:
        assert one.stats()["log_end_bytes"] == whole
        assert len(one.pull("t", 0, 0).messages) == 3
    data = log.read_bytes()
    log.write_bytes(data.replace(b"b" * 100, b"b" * 99 + b"c"))
    with timerstore.open(tmp_path / "killed", bench.config, read_only=True) as one:
        assert one.stats()["log_end_bytes"] == end
        assert [message.body for message in one.pull("t", 0, 0).messages] == [b"first"]


def test_what_lies_behind_the_checkpoint_of_a_live_owner_is_not_seen(
    bench: Bench, read: ReadOnlyStore
) -> None:
    known = len(read.pull("t", 0, 0).messages)
    bench.store.put("t", b"more", flush="sync")
    bench.stepper.step("dispatch")
    assert len(read.pull("t", 0, 0).messages) == known
    bench.store.flush()
    assert len(read.pull("t", 0, 0).messages) == known + 1


def test_it_follows_its_owner_over_closing_and_opening(bench: Bench, read: ReadOnlyStore) -> None:
    bench.reopen()
    same(read, bench.store)
    bench.turn(70_000)
    bench.store.put("later", b"new topic")
    bench.turn()
    bench.store.flush()
    same(read, bench.store)
    assert [message.body for message in read.follow("later")] == [b"new topic"]


def test_retention_moves_on_under_it(bench: Bench) -> None:
    with timerstore.open(bench.root, bench.config, clock=bench.clock, read_only=True) as one:
        waits = bench.store.put("t", b"waits", delay=500, keys=("w",))
        for turn in range(6):
            for k in range(40):
                bench.store.put("t", b"%d %d" % (turn, k) + bytes(20_000))
            bench.turn(60_000)
            bench.store.flush()
            assert one.pull("t", 0, 0, max_count=1) == bench.store.pull("t", 0, 0, max_count=1)
            offset = one.pull("t", 0, 0).min_offset
            assert one.pull("t", 0, offset) == bench.store.pull("t", 0, offset)
            assert list(one.pending()) == list(bench.store.pending())
        assert one.stats()["log_begin_bytes"] > 0
        assert one.explain(waits) == bench.store.explain(waits)
        assert [message.body for message in one.query("t", "w")] == [b"waits"]


@pytest.fixture
def bench_config(request: pytest.FixtureRequest) -> timerstore.StoreConfig:
    kept = {"retention_ms": 100_000} if "retention" in request.node.name else {}
    return small(**kept)


def test_follow_gives_each_message_once_from_where_it_is_told(
    bench: Bench, read: ReadOnlyStore
) -> None:
    every = [message.body for message in read.follow("t")]
    assert every == bench.bodies("t")
    assert [message.body for message in read.follow("t", {0: 2})] == every[2:]
    assert [message.body for message in read.follow("t", tags="g0")] == every[::2]
    assert list(read.follow("none")) == []
    for wrong in ({0: "a"}, {"a": 0}):
        with pytest.raises(MessageError, match="offsets"):
            read.follow("t", wrong)  # type: ignore[arg-type, dict-item]
    with pytest.raises(MessageError, match="wait"):
        read.follow("t", wait=-1)


CHANGES = {
    "put": lambda s: s.put("t", b""),
    "put_many": lambda s: s.put_many("t", [b""]),
    "put_every": lambda s: s.put_every("t", b"", every=5),
    "cancel_every": lambda s: s.cancel_every("each"),
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
    "flush": lambda s: s.flush(),
    "backup": lambda s: s.backup("folder"),
    "services": lambda s: s.services(),
    "begin_pull": lambda s: s.begin_pull("t", 0, 0),
    "begin_pull_batch": lambda s: s.begin_pull_batch("t", 0, 0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_would_change_it_is_refused(bench: Bench, name: str) -> None:
    before = trace(bench.root)
    with timerstore.open(bench.root, bench.config, read_only=True) as one:
        with pytest.raises(ReadOnlyError, match=rf"{name}: .*read-only.*{bench.root}"):
            CHANGES[name](one)
        assert trace(bench.root) == before
    with pytest.raises(ClosedError):
        CHANGES[name](one)


def test_every_call_of_a_store_is_answered_or_refused() -> None:
    calls = {name for name in vars(TimerStore) if not name.startswith("_")}
    assert calls <= {name for name in dir(ReadOnlyStore) if not name.startswith("_")}


def test_a_read_only_disk_writes_nothing(tmp_path: Path) -> None:
    disk, path = ReadOnlyDisk(), tmp_path / "file"
    path.write_bytes(b"as it was")
    (tmp_path / "empty").mkdir()
    before = trace(tmp_path)
    with pytest.raises(ReadOnlyError):
        disk.open(tmp_path / "new", create=True)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(disk.open(path, read_only=False).fd, b"x", 0)
    for ask in (
        lambda: disk.make_directory(tmp_path / "new"),
        lambda: disk.unlink(path),
        lambda: disk.rename(path, tmp_path / "new"),
        lambda: disk.sync_directory(tmp_path),
        lambda: disk.write_small(path, b"x"),
        lambda: disk.write_new(tmp_path / "new", b"x"),
        lambda: disk.link(path, tmp_path / "new"),
        lambda: disk.locked(path, alone=True),
        lambda: disk.remove_empty(tmp_path / "empty"),
        lambda: disk.remove_tree(tmp_path / "empty"),
    ):
        with pytest.raises(ReadOnlyError):
            ask()
    assert trace(tmp_path) == before
    reads = {
        "anchor", "exists", "is_directory", "refuse_link", "file_bytes", "identity", "list",
        "used_percent", "changed_ms", "read_small",
    }  # fmt: skip
    everything = {name for name in vars(Disk) if not name.startswith("_")}
    assert everything - reads <= set(vars(ReadOnlyDisk))


def test_where_there_is_no_store_none_is_made(tmp_path: Path) -> None:
    for path, match in (
        (tmp_path / "none", "is no directory"),
        (tmp_path, "holds no store"),
    ):
        with pytest.raises(ConfigError, match=match):
            timerstore.open(path, read_only=True)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match="read_only"):
        timerstore.open(tmp_path, read_only=1)  # type: ignore[call-overload]


def test_a_backup_and_shards_are_none(bench: Bench, tmp_path: Path) -> None:
    bench.store.put("t", b"x")
    bench.store.backup(tmp_path / "backup")
    with pytest.raises(ConfigError, match="backup"):
        timerstore.open(tmp_path / "backup", read_only=True)
    timerstore.open_shards(tmp_path / "shards", 2, small(), ingest_every=None).close()
    with pytest.raises(ConfigError, match="open_shards"):
        timerstore.open(tmp_path / "shards", read_only=True)


def test_damage_is_told_with_its_place(bench: Bench) -> None:
    fill(bench)
    place = bench.store.pull("t", 0, 1).messages[0].log_offset
    bench.close()
    path = bench.root / "commitlog" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[place + 90] ^= 0xFF
    path.write_bytes(data)
    with timerstore.open(bench.root, bench.config, read_only=True) as one:
        assert len(one.pull("t", 0, 0, max_count=1).messages) == 1
        with pytest.raises(CorruptError, match=rf"{path}.* offset {place}"):
            one.pull("t", 0, 1)
        assert not one.verify().clean
    data[place + 90] ^= 0xFF
    path.write_bytes(data)
    bench.open()


@pytest.mark.parametrize(
    "lost", ["consumequeue", "timerstore/state", "timerstore/counts", "timerwheel"]
)
def test_what_is_derived_may_be_gone(bench: Bench, lost: str) -> None:
    fill(bench)
    told = [list(bench.store.pending()), bench.out("t"), bench.store.query("u", "lev")]
    bench.close()
    path = bench.root / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = trace(bench.root)
    with timerstore.open(bench.root, bench.config, clock=bench.clock, read_only=True) as one:
        assert [
            list(one.pending()),
            list(one.pull("t", 0, 0).messages),
            one.query("u", "lev"),
        ] == told
    assert trace(bench.root) == before
    bench.open()


def test_what_was_restored_and_never_opened_is_read(bench: Bench, tmp_path: Path) -> None:
    fill(bench)
    told = [list(bench.store.pending()), bench.out("t")]
    bench.store.backup(tmp_path / "backup")
    timerstore.restore(tmp_path / "backup", tmp_path / "again")
    before = trace(tmp_path / "again")
    with timerstore.open(
        tmp_path / "again", bench.config, clock=bench.clock, read_only=True
    ) as one:
        assert [list(one.pending()), list(one.pull("t", 0, 0).messages)] == told
    assert trace(tmp_path / "again") == before


def test_a_wait_ends_by_the_clock_and_by_closing(bench: Bench, read: ReadOnlyStore) -> None:
    assert read.pull("t", 0, 4, wait=0).status is PullStatus.OFFSET_OVERFLOW_ONE
    bench.clock.subscribe(lambda: None)
    looks = []
    pause = read._polling.pause

    def turning(end_ns: int | None) -> bool:
        looks.append(end_ns)
        bench.clock.advance(400)
        return pause(end_ns)

    read._polling.pause = turning  # type: ignore[method-assign]
    assert read.pull("t", 0, 4, wait=1.0).status is PullStatus.OFFSET_OVERFLOW_ONE
    assert len(looks) == 3

    def closing(end_ns: int | None) -> bool:
        read.close()
        return pause(end_ns)

    read._polling.pause = closing  # type: ignore[method-assign]
    assert read.pull("t", 0, 4, wait=1.0).status is PullStatus.OFFSET_OVERFLOW_ONE
    with pytest.raises(ClosedError):
        read.topics()


def test_a_wait_is_answered_by_the_next_checkpoint(bench: Bench, read: ReadOnlyStore) -> None:
    def checkpointing(_end_ns: int | None) -> bool:
        bench.store.put("t", b"came", tags="g9")
        bench.stepper.settle()
        bench.store.flush()
        return True

    read._polling.pause = checkpointing  # type: ignore[method-assign]
    assert read.pull("t", 0, 4, wait=1.0).messages[0].body == b"came"
    offset = read.pull("t", 0, 100).next_offset
    assert read.pull_batch("t", 0, offset, wait=1.0, tags="g9").next_offset == offset + 1
    follower = read.follow("t", {0: offset + 1}, wait=None)
    assert [next(follower).queue_offset for _ in range(2)] == [offset + 1, offset + 2]


def test_a_forked_child_opens_its_own(bench: Bench, read: ReadOnlyStore) -> None:
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


def test_wrong_arguments_are_told_as_by_a_store(read: ReadOnlyStore) -> None:
    with pytest.raises(MessageError, match="topic 'none' has 0 queues"):
        read.pull("none", 0, 0)
    with pytest.raises(MessageError, match=r"offset: .*max_count: .*wait: "):
        read.pull("t", 0, -1, max_count=0, wait=-1)
    with pytest.raises(MessageError, match="begin_ms"):
        read.pending(begin_ms="x")  # type: ignore[arg-type]
    with pytest.raises(MessageError, match="key"):
        read.query("t", "")


def test_its_owner_is_not_kept_out(bench: Bench) -> None:
    with timerstore.open(bench.root, bench.config, read_only=True) as one:
        bench.close()
        bench.open()
        bench.store.put("t", b"x")
        bench.turn()
        bench.store.flush()
        assert [message.body for message in one.follow("t")] == [b"x"]


@pytest.mark.parametrize("is_same_folder", [True, False])
def test_another_store_in_its_place_is_told(bench: Bench, is_same_folder: bool) -> None:
    fill(bench)
    bench.close()
    with timerstore.open(bench.root, bench.config, read_only=True) as one:
        shutil.rmtree(bench.root, onerror=lambda *_: None) if not is_same_folder else None
        for path in bench.root.iterdir() if is_same_folder else ():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        bench.open()
        bench.store.put("t", b"other")
        bench.store.flush()
        with pytest.raises(timerstore.FailedError, match="another"):
            one.pull("t", 0, 0)


def test_a_link_in_a_store_is_not_followed(bench: Bench, tmp_path: Path) -> None:
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


def test_a_broker_that_went_on_is_followed(bench: Bench, tmp_path: Path) -> None:
    """Records behind a clean end, by somebody who left no watermark: the log alone is believed."""
    copy, log = tmp_path / "copy", "commitlog/" + "0" * 20
    fill(bench)
    bench.close()
    shutil.copytree(bench.root, copy)
    with timerstore.open(copy, bench.config, clock=bench.clock, read_only=True) as one:
        known = one.stats()["log_end_bytes"]
        bench.open()
        more = bench.store.put("t", b"more", keys=("more",))
        late = bench.store.put("u", b"late", delay=100)
        bench.turn(63_000)
        told = [list(bench.store.pending()), bench.out("t")]
        bench.close()
        (copy / log).write_bytes((bench.root / log).read_bytes())
        assert [list(one.pending()), list(one.pull("t", 0, 0).messages)] == told
        assert one.stats()["log_end_bytes"] > known
        assert [each.body for each in one.query("t", "more")] == [b"more"]
        assert (one.explain(more).state, one.explain(late).state) == ("delivered", "waiting")
        bench.open()


def test_a_log_that_a_broker_has_open_is_synced_now_and_then(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(bench)
    for name in ("watermark", "counts", "state"):
        (bench.root / "timerstore" / name).rename(bench.root.parent / name)
    with timerstore.open(bench.root, bench.config, read_only=True) as one:
        monkeypatch.setattr("timerstore.beside.moment.holder_of", lambda *_: 1)
        moments = one._room._moments
        assert moments.last.mark is None
        assert moments._is_time()
        assert not moments._is_time()
        monkeypatch.setattr("timerstore.beside.moment._READ_ON_NS", 0)
        assert moments._is_time()
    for name in ("watermark", "counts", "state"):
        (bench.root.parent / name).rename(bench.root / "timerstore" / name)


def test_levels_are_due_as_their_owner_wrote_them(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(level_delays="7s 9s"))
    bench.store.put("t", b"x", level=2, keys=("x",))
    bench.turn()
    bench.store.flush()
    with timerstore.open(bench.root, read_only=True, clock=bench.clock) as one:
        assert [each.due_ms for each in one.pending()] == [NOW + 9000]
        assert [each.due_ms for each in one.query("t", "x")] == [NOW + 9000]
    bench.close()


@pytest.mark.parametrize("kind", ["own", "shared"])
def test_what_waits_on_the_far_wheel_is_told(tmp_path: Path, kind: str) -> None:
    bench = Bench(tmp_path / "s", small(far_wheel=kind))
    far = [bench.store.put("t", b"%d" % k, delay=3600 * k + 600, keys=("f",)) for k in range(5)]
    bench.store.cancel(far[1])
    bench.turn()
    bench.store.flush()
    with timerstore.open(bench.root, bench.config, read_only=True, clock=bench.clock) as one:
        assert list(one.pending()) == list(bench.store.pending())
        assert one.query("t", "f") == bench.store.query("t", "f")
        assert one.explain(far[2]).where == bench.store.explain(far[2]).where == "far wheel"
        assert one.explain(far[1]) == bench.store.explain(far[1])
        bench.turn(600_000)
        bench.store.flush()
        assert list(one.pending()) == list(bench.store.pending())
        assert [each.body for each in one.follow("t")] == [b"0"]
    bench.close()


def test_versions_that_were_ingested_are_told(bench: Bench) -> None:
    batch = timerstore.RowBatch("t", b"ab", [0, 1, 2], [0, 0])
    for version in (0, 1, 3):
        bench.store.ingest("source", version, [batch])
    bench.turn()
    bench.store.flush()
    with timerstore.open(bench.root, bench.config, read_only=True) as one:
        assert one.ingested("source").ranges == bench.store.ingested("source").ranges
        assert one.ingested("other").ranges == ()


def test_a_shard_is_read_and_shards_are_not(tmp_path: Path) -> None:
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
