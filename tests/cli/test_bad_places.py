"""`doctor` and `demo` where they cannot work: one clear sentence, and an exit code."""

import os
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.command_line import Answer, CommandLine
from timerstore._engine.format import watermark
from timerstore.cli.exits import Exit

AS_NOBODY = """
import os, sys
from timerstore.cli import main
main(["doctor", "--json"]), main(["demo", "--help"])  # imports, before the other user
sys.stdout.flush()
print("BEGIN", flush=True)
os.setgid(65534)
os.setuid(65534)
sys.exit(main(sys.argv[1:]))
"""


class Place(NamedTuple):
    """A path, the sentence of `doctor` about it, and the first line and the exit code of `demo`."""

    doctor: str
    demo: str
    code: Exit = Exit.ERROR


PLACES = {
    "read-only": Place("is mounted read-only", "make directory: Read-only file system"),
    "full": Place("0 B of ", "No space left on device", Exit.LATER),
    "file": Place("is a file of 1 B", "cannot create a store at this path"),
    "another user": Place("user nobody cannot read it", "is not readable"),
    "newer": Place(
        "watermark: timerstore 0.3.0 wrote it: install that or a newer release; at ",
        "cannot create a store at this path",
    ),
    "damaged": Place("a file that does not belong here", "cannot create a store at this path"),
    "other files": Place("has no store, but a file", "cannot create a store at this path"),
}


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that another user may enter: pytest's own are closed to others."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    path = tmp_path / "mount"
    path.mkdir()
    made = subprocess.run(
        [shutil.which("mount") or "/bin/mount", "-t", "tmpfs", "-o", "size=1m", "none", path],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"NOT RUN: mounting is not permitted here (run as root): {made.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run([shutil.which("umount") or "/bin/umount", path], check=True)


def newer(path: Path) -> None:
    """Write an intact watermark of a later version."""
    head = b"TSMARK06".ljust(100, b"\1")
    slot = (head + struct.pack("<I", zlib.crc32(head))).ljust(480, b"\0") + b"0.3.0"
    slot = slot.ljust(watermark.SLOT_BYTES, b"\0")
    (path / "timerstore" / "watermark").write_bytes(2 * slot)


def prepared(name: str, ts: CommandLine, request: pytest.FixtureRequest) -> Path:
    """Make a place; return its path."""
    if name in ("read-only", "full"):
        path: Path = request.getfixturevalue("mount")
        if name == "full":
            with (path / "x").open("wb") as file, pytest.raises(OSError, match="No space"):
                file.write(bytes(2 << 20))
        else:
            remount = [shutil.which("mount") or "/bin/mount", "-o", "remount,ro", path]
            subprocess.run(remount, check=True)
        return path / "new"
    if name == "file":
        (ts.folder / "file").write_text("x")
        return ts.folder / "file"
    if name == "other files":
        (ts.folder / "folder").mkdir()
        (ts.folder / "folder" / "a file").write_text("x")
        return ts.folder / "folder"
    if name == "another user":
        if os.geteuid():
            pytest.skip("NOT RUN: needs root")
        path = request.getfixturevalue("shared") / "orders.store"
        ts.fine("init", path)
        path.chmod(0o700)
        return path
    ts.fine("put", ts.init(), "orders", "x", "--in", "1h")
    if name == "newer":
        newer(ts.store)
    else:
        (ts.store / "commitlog" / ("0" * 20)).rename(ts.store / "commitlog" / "x")
    return ts.store


def run(name: str, ts: CommandLine, *words: object) -> Answer:
    """Run a command; as another user where that is the case."""
    if name != "another user":
        return ts(*words)
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, *map(str, words)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return Answer(done.returncode, done.stdout.partition("BEGIN\n")[2], done.stderr)


@pytest.mark.parametrize("name", PLACES)
def test_bad_place_gets_a_sentence_and_an_exit_code(
    ts: CommandLine, request: pytest.FixtureRequest, name: str
) -> None:
    path, wanted = prepared(name, ts, request), PLACES[name]
    answer = run(name, ts, "doctor", path, "--json")
    assert (answer.code, answer.err) == (Exit.NOT_SO, "")
    said = [row for row in answer.rows if wanted.doctor in row["what"]]
    assert len(said) == 1, answer.out
    assert said[0]["level"] == "change"
    assert said[0]["why"]
    assert said[0]["do"]

    answer = run(name, ts, "demo", "--seconds", "0.6", "--directory", path)
    assert (answer.code, answer.out) == (wanted.code, "")
    first, *more = answer.err.splitlines()
    assert first.startswith("error: ")
    assert wanted.demo in first
    assert str(path) in answer.err
    assert all(line.startswith("  ") for line in more), "one error"


def test_doctor_names_the_command_for_a_damaged_store(
    ts: CommandLine, request: pytest.FixtureRequest
) -> None:
    path = prepared("damaged", ts, request)
    rows = ts("doctor", path, "--json").rows
    [row] = [one for one in rows if (one["about"], one["level"]) == ("store", "change")]
    assert f"timerstore verify {path}" in row["do"]
    assert f"timerstore repair {path} NEW" in row["do"]


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: needs root")
def test_doctor_does_not_send_to_a_folder_that_cannot_be_written(
    ts: CommandLine, shared: Path
) -> None:
    rows = run("another user", ts, "doctor", shared / "new", "--json").rows
    [row] = [one for one in rows if one["about"] == "store"]
    assert row["why"].endswith(f"user nobody cannot create one in {shared}")
    assert "timerstore init" not in row["do"]
