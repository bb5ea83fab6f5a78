"""Test broker stores, which have no watermark, with a torn tail or with damage.

A broker syncs whole files in order. So only data after the start of the last file that begins with
a record may be torn. Damage before that raises CorruptError, and no data is removed.
"""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import timerstore
from tests.support.amounts import sample
from tests.support.broker import fixtures as broker
from tests.support.broker.expected import Expected
from timerstore import CorruptError, StoreConfig
from timerstore.testing import ManualClock

CLEAN, KILLED = "clean-small-segments", "killed-small-segments"
SEGMENT = 65_536
_BLANK = 0xCBD43194


class Record(NamedTuple):
    """A record, or the blank at the end of a segment: log offsets."""

    begin: int
    end: int
    is_blank: bool


class Log:
    """The commit log of a broker's store, by its files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "commitlog"
        self.paths = sorted(self.folder.iterdir())
        self.records = [
            [Record(begin, end, blank) for begin, end, blank in _walk(path)] for path in self.paths
        ]

    @property
    def last(self) -> int:
        """Return the number of the last file that begins with a record."""
        return max(at for at, found in enumerate(self.records) if found)

    def damage(self, log_offset: int, size: int = 8) -> None:
        """Overwrite bytes."""
        path = self.paths[log_offset // SEGMENT]
        with path.open("r+b") as file:
            file.seek(log_offset % SEGMENT)
            file.write(b"\xff" * size)

    def zero_from(self, log_offset: int) -> None:
        """Fill the rest of the file with zeros, as if these pages had never reached the disk."""
        path = self.paths[log_offset // SEGMENT]
        with path.open("r+b") as file:
            file.seek(log_offset % SEGMENT)
            file.write(bytes(SEGMENT - log_offset % SEGMENT))

    def add_empty(self) -> None:
        """Add a file that the broker preallocated."""
        path = self.folder / f"{len(self.paths) * SEGMENT:020d}"
        path.write_bytes(bytes(SEGMENT))

    def shown(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted(self.folder.iterdir())}


def _walk(path: Path) -> list[tuple[int, int, bool]]:
    data, base, at, found = path.read_bytes(), int(path.name), 0, []
    while at + 8 <= len(data):
        size, magic = struct.unpack_from(">II", data, at)
        if size == 0:
            break
        found.append((base + at, base + at + size, magic == _BLANK))
        at += size
    return found


@pytest.fixture(params=[CLEAN, KILLED])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Log:
    return Log(broker.unpack(str(request.param), tmp_path))


def opened(log: Log) -> timerstore.TimerStore:
    name = log.root.name
    config = StoreConfig(**broker.about(name)["store_config"], flush="async")
    clock = ManualClock(Expected.of(name).now_ms)
    return timerstore.open(log.root, config, clock=clock, threads=False)


def is_cut_at(log: Log, log_offset: int) -> None:
    """Check that an opening accepts the log up to this offset, and no record after it."""
    with opened(log) as store:
        assert store.stats()["log_end_bytes"] == log_offset
        assert store.verify().clean
    for path in log.folder.iterdir():
        begin = int(path.name)
        there = path.read_bytes()
        assert not there[max(0, log_offset - begin) :].strip(b"\0"), path


def is_refused(log: Log) -> None:
    """Check that every opening names the place of the damage, and changes no file of the log."""
    before = log.shown()
    for _ in range(2):
        with pytest.raises(CorruptError, match="the commit log"):
            opened(log).close()
        assert log.shown() == before


def crashed(log: Log, is_crashed: bool) -> None:
    """Create or remove the file `abort`."""
    if is_crashed:
        (log.root / "abort").write_bytes(b"1")
    else:
        (log.root / "abort").unlink(missing_ok=True)


def _first(found: list[Record]) -> Record:
    return found[0]


def _middle(found: list[Record]) -> Record:
    return found[len(found) // 2]


def _last(found: list[Record]) -> Record:
    return [one for one in found if not one.is_blank][-1]


Choice = Callable[[list[Record]], Record]
each_record = pytest.mark.parametrize(
    "choice", sample([_middle, _first, _last], "records of a torn tail")
)


@each_record
@pytest.mark.parametrize("how", ["damaged", "zeros", "torn"])
def test_tail_of_the_last_segment_is_cut_after_a_crash(log: Log, choice: Choice, how: str) -> None:
    crashed(log, True)
    record = choice(log.records[log.last])
    if how == "damaged":
        log.damage((record.begin + record.end) // 2)
    else:  # in the offset field: the only checksum of a broker's record is that of its body
        log.zero_from(record.begin + (0 if how == "zeros" else 30))
    is_cut_at(log, record.begin)


@each_record
def test_tail_of_the_last_segment_is_cut_before_an_empty_segment(log: Log, choice: Choice) -> None:
    crashed(log, True)
    log.add_empty()
    record = choice(log.records[log.last])
    log.damage(record.begin + 8)
    is_cut_at(log, record.begin)


def test_blank_of_a_full_segment_ends_the_log_before_an_empty_segment(log: Log) -> None:
    """No data is torn exactly at the edge."""
    crashed(log, True)
    edge = log.last * SEGMENT
    log.zero_from(edge)
    is_cut_at(log, edge)


def test_torn_blank_before_an_empty_segment_is_cut(log: Log) -> None:
    crashed(log, True)
    log.zero_from(log.last * SEGMENT)
    blank = log.records[log.last - 1][-1]
    assert blank.is_blank
    log.damage(blank.begin)
    is_cut_at(log, blank.begin)


@each_record
@pytest.mark.parametrize("back", [1, 3])
@pytest.mark.parametrize("is_crashed", [False, True])
def test_damage_before_the_last_segment_raises_error(
    log: Log, choice: Choice, back: int, is_crashed: bool
) -> None:
    crashed(log, is_crashed)
    record = choice(log.records[log.last - back])
    log.damage((record.begin + record.end) // 2)
    is_refused(log)


@pytest.mark.parametrize("how", ["damaged", "zeros"])
@pytest.mark.parametrize("is_crashed", [False, True])
def test_damaged_blank_before_the_last_segment_is_not_the_end_of_the_log(
    log: Log, how: str, is_crashed: bool
) -> None:
    """A broker's blank has no checksum.

    If the next segment starts with a valid record, that counts.
    """
    crashed(log, is_crashed)
    blank = log.records[log.last - 1][-1]
    before = log.shown()
    if how == "damaged":
        log.damage(blank.begin)
    else:
        log.zero_from(blank.begin)
    damaged = log.shown()
    try:
        with opened(log) as store:
            assert store.stats()["log_end_bytes"] == log.records[log.last][-1].end
    except CorruptError:
        assert log.shown() == damaged
    assert log.shown().keys() == before.keys()


@each_record
def test_damage_before_the_last_segment_raises_error_with_an_empty_segment_after_it(
    log: Log, choice: Choice
) -> None:
    crashed(log, True)
    log.add_empty()
    record = choice(log.records[log.last - 1])
    log.damage(record.begin + 8)
    is_refused(log)


def test_lost_end_of_a_closed_store_raises_error(tmp_path: Path) -> None:
    """Its queues have units past the torn tail, and after a clean close no data can be torn."""
    log = Log(broker.unpack(CLEAN, tmp_path))
    record = log.records[log.last][-1]
    log.damage(record.begin + 8)
    is_refused(log)


def test_missing_segment_raises_error(log: Log) -> None:
    crashed(log, True)
    log.paths[log.last - 1].unlink()
    before = log.shown()
    with pytest.raises(CorruptError):
        opened(log).close()
    assert log.shown() == before
