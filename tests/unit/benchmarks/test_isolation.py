"""Benchmarks ended by a signal or an error."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import harness

WAITING = """
import os, signal
from functools import partial
from pathlib import Path
from benchmarks import harness

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have ignored it

def job(root: Path) -> None:
    (root / "file").write_bytes(b"x")
    print(os.getpid(), flush=True)
    while True:
        signal.pause()

with harness.workspace(None) as root:
    {call}
"""


@pytest.mark.parametrize("call", ["harness.isolated(partial(job, root))", "job(root)"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_to_parent_ends_child_and_removes_directory(
    tmp_path: Path, call: str, number: signal.Signals
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WAITING.format(call=call)],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert list(tmp_path.rglob("file"))
        parent.send_signal(number)
        assert parent.wait(30) == (128 + number if number == signal.SIGTERM else -number)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (signal.SIGBUS, "ended by SIGBUS .*full disk.* bytes are free"),
        (signal.SIGKILL, "ended by SIGKILL .*memory"),
        (signal.SIGUSR1, "ended by SIGUSR1$"),
    ],
)
def test_isolated_reports_signal_of_child(
    tmp_path: Path, number: signal.Signals, told: str
) -> None:
    def job() -> harness.Result:
        os.kill(os.getpid(), number)
        raise AssertionError

    with pytest.raises(harness.WorkError, match=told):
        harness.isolated(job, folder=tmp_path)


def test_isolated_reports_exit_status_of_child(tmp_path: Path) -> None:
    def job() -> harness.Result:
        os._exit(7)

    with pytest.raises(harness.WorkError, match="ended with status 7 and without a result"):
        harness.isolated(job, folder=tmp_path)


def test_workspace_keeps_existing_signal_handler() -> None:
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    try:
        with harness.workspace(None):
            os.kill(os.getpid(), signal.SIGTERM)
        assert heard == [1]
    finally:
        signal.signal(signal.SIGTERM, before)
    with harness.workspace(None):
        pass
    assert signal.getsignal(signal.SIGTERM) is before
