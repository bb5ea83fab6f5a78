"""Build the index from a broker's log, and compare it with the bytes of the broker's index."""

from pathlib import Path

import pytest

import timerstore
from tests.support import disk_reader as disk
from tests.support.amounts import sample
from tests.support.broker import fixtures as broker
from timerstore import StoreConfig
from timerstore.testing import ManualClock

START_MS = 1_800_000_000_000
# Release 5.4 also enters tags, which no earlier release queries. In doubled-by-broker, a broker
# that
# was killed entered the last message of its newest file again, so that it has one entry twice.
OTHERS = {"version-5.4.0", "doubled-by-broker"}


def data_of(path: Path) -> bytes:
    """Return all bytes except for the zeros at the end, without reading holes."""
    with path.open("rb") as file:
        return b"".join(iter(lambda: file.read(1 << 24), b"")).rstrip(b"\0")


def config_of(name: str, *, tags: bool = False) -> StoreConfig:
    return StoreConfig(**broker.about(name)["store_config"], flush="async", index_tags=tags)


@pytest.mark.more
@pytest.mark.parametrize(
    "name", sample([name for name in broker.names() if name not in OTHERS], "broker stores")
)
def test_index_is_equal_in_every_byte(name: str, tmp_path: Path) -> None:
    assert_same_bytes(name, tmp_path, tags=False)


def test_index_with_tags_is_equal_in_every_byte(tmp_path: Path) -> None:
    """A broker of release 5.4 enters tags."""
    assert_same_bytes("version-5.4.0", tmp_path, tags=True)


def assert_same_bytes(name: str, tmp_path: Path, *, tags: bool) -> None:
    root = broker.unpack(name, tmp_path)
    theirs = [(path.stat().st_size, data_of(path)) for path in disk.index_files(root)]
    assert theirs
    clock = ManualClock(START_MS)
    timerstore.open(root, config_of(name, tags=tags), clock=clock, threads=False).close()
    ours = [(path.stat().st_size, data_of(path)) for path in disk.index_files(root)]
    assert [size for size, _ in ours] == [size for size, _ in theirs]
    for at, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        assert one == other, f"file {at}"


def entries(root: Path, slot_count: int) -> list[tuple[int, int]]:
    return [
        (entry.key_hash, entry.log_offset)
        for path in disk.index_files(root)
        for entry in disk.iter_index(path, slot_count)
    ]


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_index_is_equal_in_every_entry(name: str, tmp_path: Path) -> None:
    root = broker.unpack(name, tmp_path)
    config = config_of(name)
    theirs = entries(root, config.index_slot_count)
    tags = {
        (disk.index_hash(one.topic, f"T#{one.properties['TAGS']}"), one.position)
        for one in disk.records(root)
        if one.properties.get("TAGS")
    }
    if name == "version-5.4.0":
        wanted = [one for one in theirs if one not in tags]
        assert len(wanted) < len(theirs)
    else:
        wanted = [one for at, one in enumerate(theirs) if one not in theirs[:at]]
        assert len(wanted) == len(theirs) - 1
    timerstore.open(root, config, clock=ManualClock(START_MS), threads=False).close()
    assert entries(root, config.index_slot_count) == wanted


@pytest.mark.parametrize("name", ["clean-small-segments", "clean-default-geometry"])
def test_index_geometry_is_taken_from_the_brokers_file(name: str, tmp_path: Path) -> None:
    root = broker.unpack(name, tmp_path)
    wanted = broker.about(name)["store_config"]
    with timerstore.open(root, clock=ManualClock(START_MS), threads=False) as store:
        assert store.config.index_slot_count == wanted["index_slot_count"]
        assert store.config.index_entry_count == wanted["index_entry_count"]
