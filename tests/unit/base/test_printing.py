"""Programs whose output is read only in part: `... | head -1`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import environment

_LAUNCHER = "import sys, timerstore.spark.jobs.launcher as a; sys.exit(a.main({}))"


def run_unread(*words: str, closes: str) -> "subprocess.CompletedProcess[bytes]":
    """Run a Python program. The reader of the streams that `closes` names is gone."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(
            [sys.executable, *words],
            stdout=writer if "out" in closes else subprocess.PIPE,
            stderr=writer if "err" in closes else subprocess.PIPE,
            env=environment(),
            timeout=60,
            check=False,
        )
    finally:
        os.close(writer)


@pytest.mark.parametrize("closes", ["out", "err", "out err"])
@pytest.mark.parametrize(
    "words",
    [
        ["-m", "timerstore.telemetry.prometheus", "metrics"],
        ["-m", "timerstore.telemetry.prometheus", "dashboard"],
        ["-c", _LAUNCHER.format(["--help"])],
        ["-c", _LAUNCHER.format(["--version"])],
        ["-c", _LAUNCHER.format(["which", "ingest"])],
    ],
)
def test_program_succeeds_when_its_output_is_closed(words: list[str], closes: str) -> None:
    if "prometheus" in words[1]:
        pytest.importorskip("prometheus_client")
    done = run_unread(*words, closes=closes)
    assert done.returncode == 0
    assert not done.stderr


@pytest.mark.parametrize("closes", ["out", "err", "out err"])
def test_job_does_its_work_when_its_output_is_closed(tmp_path: Path, closes: str) -> None:
    pytest.importorskip("pyspark")
    path = str(tmp_path / "shards")
    given = ["init-shards", "--path", path, "--shards", "2", "--set", "queue_segment_bytes=20000"]
    done = run_unread("-c", _LAUNCHER.format(given), closes=closes)
    assert done.returncode == 0
    assert (tmp_path / "shards" / "cluster.json").exists()


def test_text_after_a_broken_pipe_is_dropped() -> None:
    code = (
        "from timerstore._engine.base.printing import note, say\n"
        "for _ in range(3): say('x' * 100_000); note('y')\n"
    )
    done = run_unread("-c", code, closes="out")
    assert (done.returncode, done.stderr) == (0, b"y\ny\ny\n")
