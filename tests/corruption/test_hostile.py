"""Open hostile directories: a prepared directory raises a clear error or does no harm.

Opening it neither hangs nor follows a link out of the store.
"""

import base64
import json
import os
import shutil
import signal
import socket
import stat
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import timerstore
from tests.corruption.answers import ask
from tests.corruption.golden import CONFIG, NOW_MS, Golden, make
from tests.support import disk_reader as disk
from tests.support.answers import Answers
from tests.support.inside import Disk
from timerstore import FailedError, TimerStoreError, verify_directory
from timerstore.testing import ManualClock, Stepper

ANSWERS = Answers(Path(__file__).with_name("hostile.json"))
LOG = "commitlog/00000000000000000000"
FILES = (
    LOG, "consumequeue/orders/0/00000000000000000000", "timerlog/00000000000000001024",
    "timerwheel", "timerstore/watermark", "timerstore/state", "timerstore/counts",
    "timerstore/staging", "timerstore/index", "config/topics.json", "config/consumerOffset.json",
    "lock",
)  # fmt: skip
FOLDERS = ("commitlog", "consumequeue/orders/0", "consumequeue/orders", "consumequeue", "timerlog",
           "timerstore", "config", "index")  # fmt: skip


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    return make(tmp_path_factory.mktemp("golden") / "store", is_closed=True)


@pytest.fixture
def root(golden: Golden, tmp_path: Path) -> Path:
    golden.write(tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    """End the test by an alarm if it hangs: a plain open of a FIFO would wait for ever."""

    def rang(_number: int, _frame: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, rang)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _open(root: Path) -> None:
    clock = ManualClock(NOW_MS)
    timerstore.open(root, CONFIG, clock=clock, threads=False).close()


def _refused_or_unchanged(root: Path, wanted: list[object], outside: dict[Path, bytes]) -> str:
    try:
        got = list(ask(root))
    except TimerStoreError as error:
        said = str(error)
    else:
        assert got == wanted
        said = ""
    for path, data in outside.items():
        assert path.read_bytes() == data, f"{path}, outside of the store, was written to"
    return said


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)


@pytest.mark.parametrize("put", [_fifo, _socket, Path.mkdir], ids=["fifo", "socket", "folder"])
@pytest.mark.parametrize("name", FILES)
def test_special_file_is_rejected_in_place_of_a_file(
    name: str, put: Callable[[Path], None], root: Path, golden: Golden, tmp_path: Path
) -> None:
    golden.write(tmp_path / "whole")
    wanted: list[object] = list(ask(tmp_path / "whole"))
    (root / name).unlink()
    put(root / name)
    said = _refused_or_unchanged(root, wanted, {})
    ANSWERS.check(f"{put.__name__} for {name}", "an error" if said else "the same")
    assert not said or str(root) in said
    assert (root / name).exists()
    assert not said or name != LOG or "0000" in said
    verify_directory(root)


@pytest.mark.parametrize("name", FILES)
def test_symlink_in_place_of_a_file_is_not_followed(name: str, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (root / name).rename(outside)
    (root / name).symlink_to(outside)
    before = outside.read_bytes()
    with pytest.raises(TimerStoreError) as caught:
        _open(root)
    assert str(root) in str(caught.value)
    assert outside.read_bytes() == before


@pytest.mark.parametrize("name", FOLDERS)
def test_symlink_in_place_of_a_folder_is_not_followed(
    name: str, root: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    (root / name).rename(outside)
    (root / name).symlink_to(outside)
    before = {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()}
    with pytest.raises(TimerStoreError, match="link") as caught:
        _open(root)
    assert name in str(caught.value)
    assert {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()} == before


def _trees(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", FOLDERS)
def test_folder_that_becomes_a_symlink_after_its_check_is_not_followed(
    name: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process with write access swaps the folder between the check and the use."""
    outside = tmp_path / "outside"
    shutil.copytree(root / name, outside)
    before = _trees(outside)
    look = Disk.check_no_link

    def slow_look(disk: Disk, path: Path) -> None:
        look(disk, path)
        if path == root / name and not path.is_symlink():
            path.rename(tmp_path / "aside")
            path.symlink_to(outside)

    monkeypatch.setattr(Disk, "check_no_link", slow_look)
    with pytest.raises(TimerStoreError, match="link") as caught:
        _open(root)
    assert (root / name).is_symlink(), "the swap did not happen"
    assert name in str(caught.value)
    assert _trees(outside) == before


@pytest.mark.parametrize("name", ["commitlog", "consumequeue/orders", "timerlog", "timerstore"])
def test_folder_of_an_open_store_that_becomes_a_symlink_is_not_followed(
    name: str, root: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    shutil.copytree(root / name, outside)
    before = _trees(outside)
    clock = ManualClock(NOW_MS)
    store = timerstore.open(root, CONFIG, clock=clock, threads=False)
    (root / name).rename(tmp_path / "aside")
    (root / name).symlink_to(outside)

    def work() -> None:
        for n in range(60):
            store.put("orders", b"x" * 200, delay=1 + n % 3, queue_id=n % 2)
            clock.advance(1000)
            Stepper(store).settle()
            store.flush()

    with pytest.raises(FailedError, match=r"link|moved, or replaced"):
        work()
    with suppress(FailedError):
        store.close()
    assert _trees(outside) == before


@pytest.mark.parametrize("name", FILES[::3])
def test_file_with_a_second_name_outside_is_not_written_to(
    name: str, root: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    os.link(root / name, outside)
    before = outside.read_bytes()
    try:
        _open(root)
    except FailedError as error:
        assert "another name" in str(error)  # noqa: PT017 - files: hostile.json
        assert name in str(error)  # noqa: PT017
        ANSWERS.check(f"hard link of {name}", "an error")
    else:
        ANSWERS.check(f"hard link of {name}", "opened")
    assert outside.read_bytes() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: making a device needs root")
@pytest.mark.parametrize("name", FILES[1::3])
def test_device_is_rejected_in_place_of_a_file(name: str, root: Path) -> None:
    (root / name).unlink()
    os.mknod(root / name, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero has no end
    with pytest.raises(TimerStoreError) as caught:
        _open(root)
    assert name.split("/", maxsplit=1)[0] in str(caught.value)


@pytest.mark.parametrize(
    ("topic", "queue_id", "real"),
    [
        ("a" * 256, 0, None), ("a" * 5000, 0, None), ("ü", 0, None), ("../up", 0, None),
        ("t", -1, None), ("t", 2**31 - 1, None), ("t", 65_536, None),
        ("rmq_sys_wheel_timer", 0, ("a" * 300, "0")), ("rmq_sys_wheel_timer", 0, ("a/b", "0")),
        ("rmq_sys_wheel_timer", 0, ("t", "9" * 5000)), ("rmq_sys_wheel_timer", 0, ("t", "65536")),
    ],
)  # fmt: skip
def test_impossible_queue_in_a_record_is_damage(
    topic: str, queue_id: int, real: tuple[str, str] | None, root: Path
) -> None:
    """The record ends a broker's log, complete and with the right CRC.

    The topic must not lead out of buffers or the directory, nor the queue number to a long loop.
    """
    path = _next_segment(root)
    text = b"TIMER_OUT_MS\x015000\x02" if real is not None else b"K\x01v\x02"
    if real is not None:
        text += f"REAL_TOPIC\x01{real[0]}\x02REAL_QID\x01{real[1]}\x02".encode()
    _write(path, _record(topic.encode(), queue_id, int(path.name), text))
    for look in (_open, verify_directory):
        try:
            look(root)
        except TimerStoreError as error:
            said = str(error)
            assert str(path) in said or "queue offsets" in said
    assert not (root / "up").exists()


@pytest.mark.parametrize("queue_offset", [2**25, 2**40, 2**58])
def test_impossible_timer_id_is_damage(queue_offset: int, root: Path) -> None:
    """Memory for all ids up to it would make the system kill the process instead of an error."""
    path = _next_segment(root)
    text = b"TIMER_OUT_MS\x015000\x02REAL_TOPIC\x01orders\x02REAL_QID\x010\x02"
    _write(path, _record(b"rmq_sys_wheel_timer", 0, int(path.name), text, queue_offset))
    with pytest.raises(timerstore.CorruptError, match="impossible timer id") as caught:
        _open(root)
    assert str(path) in str(caught.value)
    verify_directory(root)


@pytest.mark.parametrize("timer_id", [2**25, 2**40, 2**58])
@pytest.mark.parametrize("real", [b"", b"TIMER_OUT_MS\x015000\x02REAL_TOPIC\x01orders\x02"])
def test_impossible_timer_store_id_of_a_client_is_ignored(
    timer_id: int, real: bytes, root: Path
) -> None:
    """A client of a broker may send any id. This is no damage, and the message is no timer."""
    records = list(disk.records(root))
    said = next(one.properties["TS_ID"] for one in records if "TS_ID" in one.properties)
    place = sum(one.topic == "orders" and one.queue_id == 0 for one in records)
    path = _next_segment(root)
    own = base64.urlsafe_b64decode(said)[:4] + timer_id.to_bytes(8, "big")
    text = real + b"TS_ID\x01%s\x02" % base64.urlsafe_b64encode(own)
    _write(path, _record(b"orders", 0, int(path.name), text, place))
    _open(root)
    assert verify_directory(root).clean


def _next_segment(root: Path) -> Path:
    """Write a directory of a broker whose last segment ends, with this one after it."""
    for name in ("timerstore", "consumequeue", "timerlog", "index"):
        shutil.rmtree(root / name)
    (root / "abort").write_text("7")
    last = max(path for path in (root / "commitlog").iterdir())
    data, size = bytearray(last.read_bytes()), CONFIG.commit_log_segment_bytes
    at = _log_end(data)
    data[at : at + 16] = struct.pack(">iIq", size - at, 0xCBD43194, int(last.name) + at)
    last.write_bytes(data)
    return last.with_name(f"{int(last.name) + size:020d}")


def _write(path: Path, record: bytes) -> None:
    path.write_bytes(record.ljust(CONFIG.commit_log_segment_bytes, b"\0"))


def _log_end(data: bytes) -> int:
    at = 0
    while int.from_bytes(data[at + 4 : at + 8], "big") in (0xDAA320A7, 0xDAA320AB):
        at += int.from_bytes(data[at : at + 4], "big")
    return at


def _record(
    topic: bytes, queue_id: int, log_offset: int, text: bytes, queue_offset: int = 0
) -> bytes:
    host = bytes((127, 0, 0, 1, 0, 0, 42, 159))
    tail = len(topic).to_bytes(2, "big") + topic + len(text).to_bytes(2, "big") + text
    rest = struct.pack(
        ">IIiiqqiq8sq8siqi", 0xDAA320AB, 0, queue_id, 0, queue_offset, log_offset, 0, NOW_MS, host,
        NOW_MS, host, 0, 0, 0,
    )  # fmt: skip
    return (4 + len(rest) + len(tail)).to_bytes(4, "big") + rest + tail


def test_index_that_names_a_file_outside_opens_no_file(root: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"of somebody else")
    _, _, text = (root / "timerstore/index").read_bytes().partition(b"\n")
    fields = json.loads(text)
    fields["files"][0]["name"] = "../../outside"
    text = json.dumps(fields).encode()
    (root / "timerstore/index").write_bytes(b"%08x\n" % zlib.crc32(text) + text)
    _open(root)
    assert (tmp_path / "outside").read_bytes() == b"of somebody else"
    assert not any("outside" in path.name for path in (root / "index").iterdir())


@pytest.mark.parametrize("name", FOLDERS)
def test_file_in_place_of_a_folder_is_rejected(name: str, root: Path, tmp_path: Path) -> None:
    (root / name).rename(tmp_path / "aside")
    (root / name).write_bytes(b"no folder")
    try:
        _open(root)
    except TimerStoreError as error:
        assert name.split("/", maxsplit=1)[0] in str(error)  # noqa: PT017 - files: hostile.json
        ANSWERS.check(f"file for folder {name}", "an error")
    else:
        ANSWERS.check(f"file for folder {name}", "opened")


@pytest.mark.parametrize(
    "name",
    [LOG, "timerlog/00000000000000001024", "timerwheel", "timerstore/watermark",
     "timerstore/counts", "config/topics.json"],
)  # fmt: skip
def test_huge_sparse_file_costs_neither_time_nor_memory(name: str, root: Path) -> None:
    with (root / name).open("r+b") as file:
        file.truncate(1 << 40)
    begun = time.monotonic()
    read, write = os.pipe()
    child = os.fork()  # a process with its own memory peak
    if child == 0:
        before = _peak_kib(anew=True)
        try:
            _open(root)
            os.write(write, f"{_peak_kib() - before} {root} opened".encode())
        except TimerStoreError as error:
            os.write(write, f"{_peak_kib() - before} {error}".encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        peak_kib, said = pipe.read().split(" ", 1)
    os.waitpid(child, 0)
    assert str(root) in said
    assert said.endswith("opened") == (name == "timerwheel")  # which is rebuilt
    assert int(peak_kib) < 64 * 1024
    assert time.monotonic() - begun < 30


def _peak_kib(*, anew: bool = False) -> int:
    """Return the peak memory of this process in KiB."""
    if anew:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


@pytest.mark.parametrize(
    "name",
    ["..x", "a b", "%2e%2e", "TOPIC\u202e", "x" * 250, "new\nline", "-rf", "COM1", "Orders",
     b"not-utf-8-\xff\xfe"],
    ids=range(10),
)  # fmt: skip
@pytest.mark.parametrize("folder", ["consumequeue", "commitlog", "index", "config", ""])
def test_unexpected_name_has_a_defined_answer(folder: str, name: str | bytes, root: Path) -> None:
    raw = name if isinstance(name, bytes) else name.encode()
    (root / folder / os.fsdecode(raw) / "0").mkdir(parents=True)
    try:
        _open(root)
    except TimerStoreError as error:
        assert folder in str(error)  # noqa: PT017 - the names are in hostile.json
        ANSWERS.check(f"{name!r} in {folder}", "an error")
    else:
        ANSWERS.check(f"{name!r} in {folder}", "opened")
    verify_directory(root)
