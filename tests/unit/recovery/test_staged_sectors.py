"""Staged records after a power cut that lost a sector of the staging file, or kept an older one.

The sectors of a half begin at the half, not at a sector of the log. So a record can lose its last
bytes although no sector of the log is affected.
"""

import shutil
import struct
from pathlib import Path

import pytest

from tests.support.bench import NOW, SECOND, Bench, copied_at, small
from tests.support.broker import resent
from tests.support.driver import abandon
from tests.support.inside import inside

SECTOR = 512
HEADER = 4096
BYTES_OF_MARK = 0x7FFF_FFFF
DELAY_S = 60
SIZES = {True: 433, False: 393}  # of the two records of `stage_past_edge` without bodies, by CRC


class StagingImage:
    """The bytes of a staging file."""

    def __init__(self, root: Path) -> None:
        self.path = root / "timerstore" / "staging"
        self.raw = bytearray(self.path.read_bytes())

    def last_sector(self) -> slice:
        """Return the place of the staged bytes past the last begin of a sector."""
        half_bytes = int.from_bytes(self.raw[24:32], "little")
        halves = [struct.unpack_from("<qQ", self.raw, 32 + 16 * half) for half in (0, 1)]
        half = max((0, 1), key=lambda half: halves[half][0])
        filled = halves[half][1] & BYTES_OF_MARK
        end = HEADER + half * half_bytes + filled
        assert filled > SECTOR
        assert end <= len(self.raw)
        return slice(end - filled % SECTOR, end)

    def place_of(self, log_offset: int) -> int:
        """Return the place in the file of a staged record."""
        half_bytes = int.from_bytes(self.raw[24:32], "little")
        for half in (0, 1):
            base, mark = struct.unpack_from("<qQ", self.raw, 32 + 16 * half)
            if base <= log_offset < base + (mark & BYTES_OF_MARK):
                return HEADER + half * half_bytes + log_offset - int(base)
        raise AssertionError("the record is not staged")

    def forget_checksums(self) -> None:
        """Turn the file into one of the version before marks had a checksum."""
        self.raw[:8] = b"TSSTAGE2"
        for at in (40, 56):
            [mark] = struct.unpack_from("<Q", self.raw, at)
            struct.pack_into("<Q", self.raw, at, mark & BYTES_OF_MARK)

    def write(self) -> None:
        """Write the bytes, as many as before."""
        assert len(self.raw) == self.path.stat().st_size
        self.path.write_bytes(self.raw)


def stage_past_edge(bench: Bench, over: int, body: bytes = b"the last") -> None:
    """Stage a message of topic "pad" and a delayed one that ends `over` bytes past the begin of a
    sector. All earlier records are durable.
    """
    bench.store.flush()
    log = inside(bench.store).log
    bench.store.put("pad", bytes((over - SIZES[bench.config.property_crc] - len(body)) % SECTOR))
    bench.store.put("t", body, delay=DELAY_S)
    assert log.native.filled % SECTOR == over


def copied(bench: Bench) -> Path:
    """Return a copy of the store with all of its pages, and end its process."""
    target = bench.root.with_name("cut")
    shutil.copytree(bench.root, target)
    abandon(bench.store)
    return target


def reopened(root: Path, bench: Bench) -> Bench:
    """Open a copy, which must continue from its watermark, and let its messages fall due."""
    other = Bench(root, bench.config, bench.clock.now_ms)
    assert inside(other.store).imported is None, "everything was rebuilt from the log"
    other.turn(DELAY_S * SECOND)
    return other


@pytest.mark.parametrize("property_crc", [True, False])
@pytest.mark.parametrize("over", [2, 13, 40, 100])
def test_staged_record_without_its_last_sector_is_dropped(
    tmp_path: Path, over: int, property_crc: bool
) -> None:
    bench = Bench(tmp_path / "s", small(property_crc=property_crc))
    bench.store.put("t", b"first", flush="sync")  # so the half begins within a sector of the log
    stage_past_edge(bench, over)
    root = copied(bench)
    image = StagingImage(root)
    image.raw[image.last_sector()] = bytes(over)
    image.write()
    other = reopened(root, bench)
    assert other.bodies() == [b"first"]
    other.close()


@pytest.mark.parametrize("property_crc", [True, False])
@pytest.mark.parametrize("over", [2, 13, 40, 100])
def test_staged_records_with_all_sectors_survive(
    tmp_path: Path, over: int, property_crc: bool
) -> None:
    bench = Bench(tmp_path / "s", small(property_crc=property_crc))
    bench.store.put("t", b"first", flush="sync")  # so the half begins within a sector of the log
    stage_past_edge(bench, over)
    other = reopened(copied(bench), bench)
    assert other.bodies() == [b"first", b"the last"]
    other.close()


@pytest.mark.parametrize("property_crc", [True, False])
def test_staged_record_with_an_older_last_sector_is_dropped(
    tmp_path: Path, property_crc: bool
) -> None:
    """The older sector has the end of a durable message, in the same place."""
    bench = Bench(tmp_path / "s", small(property_crc=property_crc))
    bench.store.flush()
    images = []
    for name in (b"1: flushed", b"2: flushed", b"3: staged"):  # 1 and 3 in the same half
        stage_past_edge(bench, 10, name)
        images.append(StagingImage(bench.root))
    root = copied(bench)
    image = StagingImage(root)
    image.raw[image.last_sector()] = images[0].raw[image.last_sector()]
    image.write()
    other = reopened(root, bench)
    assert other.bodies() == [b"1: flushed", b"2: flushed"]
    other.close()


@pytest.mark.parametrize("property_crc", [True, False])
def test_staging_file_without_checksums_is_read(tmp_path: Path, property_crc: bool) -> None:
    """A killed process of an earlier version left it."""
    bench = Bench(tmp_path / "s", small(property_crc=property_crc))
    bench.store.put("t", b"first", flush="sync")
    stage_past_edge(bench, 13)
    root = copied(bench)
    image = StagingImage(root)
    image.forget_checksums()
    image.write()
    other = reopened(root, bench)
    assert other.bodies() == [b"first", b"the last"]
    other.close()


@pytest.mark.parametrize("property_crc", [True, False])
def test_staging_file_is_read_with_another_setting_of_property_crc(
    tmp_path: Path, property_crc: bool
) -> None:
    bench = Bench(tmp_path / "s", small(property_crc=property_crc))
    bench.store.put("t", b"first", flush="sync")
    stage_past_edge(bench, 13)
    root = copied(bench)
    bench.config = small(property_crc=not property_crc)
    other = reopened(root, bench)
    assert other.bodies() == [b"first", b"the last"]
    other.close()


def test_staged_copy_without_space_for_its_crc_survives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker's message can fill its properties. Its delivery has no CRC of the record."""
    root, killed = tmp_path / "s", tmp_path / "killed"
    bench = Bench(root)
    bench.store.put("orders", b"first", queue_id=0)
    bench.close()
    due_ms = NOW + DELAY_S * SECOND
    resent.delayed(root, "K", due_ms, store_ms=NOW, body=b"full", P="p" * 32_600)
    bench.open()
    with copied_at(monkeypatch, "deliver_placed", root, killed):
        bench.turn(DELAY_S * SECOND)
    [_, full] = bench.out("orders")
    assert "REAL_TOPIC" not in full.properties, "it had space for all that delivery adds"
    bench.close()
    other = Bench(killed, bench.config, NOW)  # the delivery is not repeated before its time
    assert other.bodies("orders") == [b"first", b"full"]
    other.close()


@pytest.mark.parametrize(("property_crc", "delay"), [(True, DELAY_S), (False, None)])
def test_staged_record_with_any_changed_byte_is_refused(
    tmp_path: Path, property_crc: bool, delay: float | None
) -> None:
    """The records before it stay: those with a CRC of their own, or else the durable ones."""
    bench = Bench(tmp_path / "s", small(property_crc=property_crc))
    bench.store.put("t", b"durable", flush="sync")
    bench.store.put("t", b"neighbour")
    staged = bench.store.put("t", b"staged", delay=delay, properties={"name": "value"})
    size = inside(bench.store).log.end - staged.log_offset
    root = copied(bench)
    kept = [b"durable", b"neighbour"] if property_crc else [b"durable"]
    whole = StagingImage(root)
    begin = whole.place_of(staged.log_offset)
    for at in range(size):
        target = root.with_name(f"changed-{at}")
        shutil.copytree(root, target)
        image = StagingImage(target)
        image.raw[begin + at] ^= 1 << at % 8
        image.write()
        other = Bench(target, bench.config, bench.clock.now_ms)
        other.turn(DELAY_S * SECOND)
        assert other.bodies() == kept, f"byte {at} of {size}"
        abandon(other.store)
        shutil.rmtree(target)
    other = reopened(root, bench)
    assert other.bodies() == [b"durable", b"neighbour", b"staged"]
    other.close()
