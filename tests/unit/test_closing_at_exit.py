"""Stores that are closed, or are not, when the interpreter ends: it ends, and nothing is lost."""

from pathlib import Path

import pytest

import timerstore
from tests.support.programs import run_program

OPENING = """
import atexit, sys, threading, weakref, timerstore
store = timerstore.open(sys.argv[1])
store.put("t", b"x")
"""


def assert_ended_well(tmp_path: Path, program: str, bodies: list[bytes]) -> None:
    """The program ends without an error, its store is closed, and these bodies come out of it."""
    ended = run_program(OPENING + program, tmp_path / "s")
    assert ended.stderr == ""
    assert ended.returncode == 0
    assert_closed(tmp_path / "s", bodies)


def assert_closed(path: Path, bodies: list[bytes]) -> None:
    assert not (path / "abort").exists(), "it was not closed"
    assert_there(path, bodies)


def assert_there(path: Path, bodies: list[bytes]) -> None:
    with timerstore.open(path) as store:
        found: list[bytes] = []
        while len(found) < len(bodies):
            got = store.pull("t", 0, len(found), wait=30).messages
            assert got, f"only {found} came"
            found += [one.body for one in got]
        assert found == bodies
        assert store.verify().clean


@pytest.mark.parametrize(
    "program",
    [
        "atexit.register(store.close)",
        "weakref.finalize(threading, store.close)",
        "threading.Thread(target=store.close).start()",
        "timer = threading.Timer(0.01, store.close); timer.start()",
        "import signal; signal.signal(10, lambda *_: store.close()); signal.raise_signal(10)",
    ],
)
def test_close_works_at_any_depth_of_the_call_stack(tmp_path: Path, program: str) -> None:
    assert_ended_well(tmp_path, program, [b"x"])
