"""All counts of pending messages agree, on each kind of store."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support.amounts import sample
from tests.support.broker import fixtures as broker
from tests.support.command_line import CommandLine
from timerstore import StoreConfig
from timerstore.testing import ManualClock, Stepper
from timerstore.types.clock import SystemClock

HOUR = 3600
CONFIG: dict[str, Any] = {
    "commit_log_segment_bytes": 1 << 20,
    "timer_log_segment_bytes": 64 * 1024,
    "queue_segment_bytes": 2000,
    "wheel_slot_count": 8192,
    "index_enabled": False,
    "checkpoint_interval_ms": 600_000,
}
EVER = ("--from", "2000-01-01T00:00:00Z", "--until", "2100-01-01T00:00:00Z")


def fill(store: timerstore.TimerStore) -> Counter[str]:
    """Put messages of each kind; return how many of each topic are pending."""
    store.put_many("orders", [b"x"] * 7, delay=HOUR)
    for level in (16, 17, 18):
        store.put("levels", b"x", level=level)
    store.cancel(store.put("orders", b"cancelled", delay=HOUR))
    store.reschedule(store.put("orders", b"moved", delay=HOUR), delay=2 * HOUR)
    store.put("far", b"x", delay=100 * 24 * HOUR)
    store.put_many("jobs", [b"leased", b"nacked", b"acked", b"ready"])
    store.flush()
    _, nacked, acked = store.receive("jobs", "group", lease=2 * HOUR, max_count=3, wait=5.0)
    store.nack(nacked, delay=HOUR)
    store.ack(acked)
    pending = store.stats()["pending_by_topic"]
    assert pending["orders"] == 8
    assert pending["levels"] == 3
    assert pending["far"] == 1
    return Counter(pending)


@contextmanager
def opened(path: Path, **more: Any) -> Iterator[timerstore.TimerStore]:
    with timerstore.open(path, StoreConfig(**CONFIG | more)) as store:
        yield store


def closed(path: Path, **more: Any) -> tuple[Path, Counter[str]]:
    with opened(path, **more) as store:
        return path, fill(store)


def rolled(path: Path) -> tuple[Path, Counter[str]]:
    """A store whose messages have been written again at the end of a roll window, some times."""
    clock = ManualClock(SystemClock().now_ms - 60_000)  # the command line has the system's clock
    config = StoreConfig(**CONFIG | {"wheel_slot_count": 128, "roll_window_slots": 20})
    with timerstore.open(path, config, clock=clock, threads=False) as store:
        store.put_many("rolls", [b"x"] * 5, delay=HOUR)
        store.cancel(store.put("rolls", b"x", delay=HOUR))
        for _ in range(3):
            clock.advance(20_000)
            Stepper(store).settle()
    return path, Counter({"rolls": 5})


def killed(path: Path, **more: Any) -> tuple[Path, Counter[str]]:
    """A store whose last messages came after the last checkpoint."""
    with opened(path.with_name("alive"), **more) as store:
        store.put_many("early", [b"x"] * 3, delay=HOUR)
        store.backup(path.with_name("unused"))  # completes a checkpoint
        receipt = store.put("early", b"x", delay=HOUR)
        store.cancel(receipt)
        wanted = fill(store)
        shutil.copytree(store.path, path)
    return path, wanted


def shards(path: Path) -> tuple[Path, Counter[str]]:
    with timerstore.open_shards(path, 3, StoreConfig(**CONFIG)) as store:
        store.put_many("orders", [b"x"] * 9, delay=HOUR, keys=[f"k{k}" for k in range(9)])
        store.put("levels", b"x", level=18)
    return path, Counter(orders=9, levels=1)


def by_command(path: Path, ts: CommandLine, *words: str, **more: Any) -> tuple[Path, Counter[str]]:
    """A store that a command made of another, or changed."""
    source, wanted = closed(path.with_name("source"), **more)
    places = {"SOURCE": source, "BACKUP": path.with_name("backup"), "PATH": path}
    for line in words:
        ts.fine(*(places.get(word, word) for word in line.split()))
    return (path if path.exists() else source), wanted


KINDS: dict[str, Callable[[Path, CommandLine], tuple[Path, Counter[str]]]] = {
    "empty": lambda path, ts: (ts.init() and path.with_name("orders.store"), Counter()),
    "closed": lambda path, _: closed(path),
    "far own": lambda path, _: closed(path, far_wheel="own"),
    "far shared": lambda path, _: closed(path, far_wheel="shared"),
    "rolled": lambda path, _: rolled(path),
    "killed": lambda path, _: killed(path),
    "killed with a far wheel": lambda path, _: killed(path, far_wheel="own"),
    "shards": lambda path, _: shards(path),
    "backed up": lambda path, ts: by_command(path, ts, "backup SOURCE BACKUP"),
    "restored": lambda path, ts: by_command(
        path, ts, "backup SOURCE BACKUP", "restore BACKUP PATH"
    ),
    "repaired": lambda path, ts: by_command(path, ts, "repair SOURCE PATH"),
    "converted": lambda path, ts: by_command(
        path, ts, "convert SOURCE --to rocketmq", far_wheel="own"
    ),
    "converted back": lambda path, ts: by_command(
        path, ts, "convert SOURCE --to rocketmq", "convert SOURCE --to timerstore", far_wheel="own"
    ),
}


def counts(ts: CommandLine, path: Path) -> dict[str, Counter[str] | int]:
    """Return what each reader says is pending: of each topic, or of all."""
    pytest.importorskip("pyarrow")
    from timerstore import tables
    from timerstore.cli.opening import stores_in
    from timerstore.dashboard.snapshot_source import SnapshotSource

    found: dict[str, Counter[str] | int] = {}
    listed = ts.fine("ls", path, "--json").rows
    found["count"] = int(ts.fine("count", path).out)
    found["count --topic"] = Counter(
        {
            row["topic"]: int(ts.fine("count", path, "--topic", row["topic"]).out)
            for row in listed
            if "shard" not in row
        }
    ) or int(ts.fine("count", path).out)
    found["ls"] = Counter()
    for row in listed:
        found["ls"][row["topic"]] += row["pending"]
    top = ts.fine("top", path, "--once", "--json").row
    found["top"] = top["pending"]
    found["top by topic"] = Counter({n: one["pending"] for n, one in top["topics"].items()})
    found["top by time"] = sum(top["on_the_wheel"].values())
    stores = stores_in(path)
    page = SnapshotSource(path, stores, every_s=1).now("24h", None)
    found["page"] = page["pending"]
    found["page by topic"] = Counter(dict(page["topics"]))
    statistics, listing = Counter[str](), Counter[str]()
    bars = 0
    for one in stores.values():
        with timerstore.open(one, read_only=True) as store:
            statistics.update(store.stats()["pending_by_topic"])
            listing.update(message.topic for message in store.pending())
            bars += int(store.histogram(0, 4_200_000_000_000, "day").counts.sum())
    found["stats"], found["pending"], found["histogram"] = statistics, listing, bars
    found["tables"] = Counter(
        name
        for batch in tables.read(path, "timers", columns=("topic",))
        for name in batch.column(0).to_pylist()
    )
    found["dump timers"] = Counter(row["topic"] for row in ts.fine("dump", path, "timers").rows)
    found["dump pending"] = Counter(row["topic"] for row in ts.fine("dump", path, "pending").rows)
    exported = ts.folder / "exported.parquet"
    exported.unlink(missing_ok=True)
    found["export"] = ts.fine("export", path, exported, "--json").row["rows"]
    return found


def in_histogram(ts: CommandLine, path: Path) -> int:
    """Return what `histogram` counts. It opens the store if no other process has it."""
    rows = ts.fine("histogram", path, *EVER, "--by", "day", "--json").rows
    return sum(row["count"] for row in rows)


def check(found: dict[str, Any], wanted: Counter[str]) -> None:
    assert {
        name: one if isinstance(one, int) else +one
        for name, one in found.items()
    } == {
        name: wanted.total() if isinstance(one, int) else +wanted for name, one in found.items()
    }  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_all_counts_agree(ts: CommandLine, tmp_path: Path, kind: str) -> None:
    path, wanted = KINDS[kind](tmp_path / "made.store", ts)
    check(counts(ts, path), wanted)
    check({"count --from": int(ts.fine("count", path, *EVER).out)}, wanted)
    check({"histogram command": in_histogram(ts, path)}, wanted)
    check({"count": int(ts.fine("count", path).out)}, wanted)  # opened and closed again


@pytest.mark.parametrize("kind", ["closed", "killed", "restored", "shards"])
def test_all_counts_agree_while_a_process_has_the_store_open(
    ts: CommandLine, tmp_path: Path, kind: str
) -> None:
    path, wanted = KINDS[kind](tmp_path / "made.store", ts)
    open_it = timerstore.open_shards if kind == "shards" else timerstore.open
    with open_it(path) as store:
        store.flush()
        check(counts(ts, path), wanted)
        check({"histogram command": in_histogram(ts, path)}, wanted)


@pytest.mark.parametrize("name", sample(broker.names(), "broker stores"))
def test_all_counts_agree_on_the_store_of_a_broker(
    ts: CommandLine, tmp_path: Path, name: str
) -> None:
    path = broker.unpack(name, tmp_path)
    with timerstore.open(path, read_only=True) as store:
        wanted = Counter(message.topic for message in store.pending())
    check(counts(ts, path), wanted)
