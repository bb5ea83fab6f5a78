"""Test a full disk: puts raise FullError, services wait, no signal arrives, no message is lost.

The stores are on small tmpfs mounts. There, access to a hole that cannot be filled raises SIGBUS.
"""

import gc
import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.crash.full import CONFIG
from tests.crash.scenes import SCENES, config_of
from tests.crash.story import Story
from tests.support.amounts import sample
from timerstore import FullError

_ROOT = Path(__file__).resolve().parents[2]
_MOUNT_KIB = 8 * 1024
_LEFT_KIB = (300, 411, 604)  # bytes that the store may use
_ENDS = ("resume", "kill", "close")


class Worker:
    """The process that runs the cases, and its mount."""

    def __init__(self, mount: Path) -> None:
        environment = os.environ | {
            "PYTHONPATH": str(_ROOT),
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.full", str(mount)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def live(self, case: dict[str, Any]) -> dict[str, Any]:
        """Run one case."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(case) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the worker died: {case}"
        result: dict[str, Any] = json.loads(answer)
        assert not result["problems"], "\n".join([json.dumps(case), *result["problems"]])
        return result

    def close(self) -> None:
        """End the process."""
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    mount = tmp_path_factory.mktemp("full") / "mount"
    mount.mkdir()
    made = subprocess.run(
        [
            shutil.which("mount") or "/bin/mount",
            "-t", "tmpfs", "-o", f"size={_MOUNT_KIB}k", "timerstore-test", str(mount),
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(
            "NOT RUN: the tests of a full disk need a mount of their own, and mounting is not"
            f" permitted here (run as root): {made.stderr.strip()}"
        )
    one = Worker(mount)
    try:
        yield one
    finally:
        one.close()
        subprocess.run([shutil.which("umount") or "/bin/umount", str(mount)], check=True)


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("left_kib", sample(_LEFT_KIB, "sizes of a full disk"))
@pytest.mark.parametrize("end", _ENDS)
def test_full_disk_loses_no_message_and_work_continues_when_space_returns(
    worker: Worker, end: str, left_kib: int, flush: str
) -> None:
    result = worker.live(
        {
            "seed": left_kib,
            "end": end,
            "left_bytes": left_kib * 1024,
            "config": CONFIG | {"flush": flush, "reserve_bytes": 4096 * (left_kib % 5)},
        }
    )
    assert result["stored"] > 20
    assert result["refused"] > 0


@pytest.mark.deep
@pytest.mark.timeout(0)
def test_full_disk_loses_no_message_for_many_sizes(worker: Worker) -> None:
    seed = int(os.environ.get("TIMERSTORE_CRASH_SEED") or secrets.randbits(31))
    print(f"TIMERSTORE_CRASH_SEED={seed}")
    random = Random(seed)
    for _ in range(150):
        worker.live(
            {
                "seed": random.randrange(1 << 30),
                "end": random.choice(_ENDS),
                "left_bytes": random.randrange(260, 1500) * 1024,
                "config": CONFIG
                | {
                    "flush": random.choice(("sync", "async")),
                    "reserve_bytes": random.choice((0, 4096, 16384)),
                    "commit_log_segment_bytes": random.choice((16384, 65536)),
                    "staging_bytes": random.choice((4096, 16384)),
                    "checkpoint_interval_ms": random.choice((10, 500)),
                    "checkpoint_log_bytes": 8192,
                    "checkpoint_log_bytes_max": random.choice((16384, 65536, 1 << 20)),
                },
            }
        )


@pytest.mark.deep
@pytest.mark.timeout(0)
def test_full_disk_loses_no_message_for_each_size(worker: Worker) -> None:
    """Try sizes in steps of a page, from no space to more than a new store needs."""
    for left_kib in range(0, 640, 4):
        end = _ENDS[left_kib // 4 % 3]
        worker.live(
            {
                "seed": left_kib,
                "end": "open" if left_kib < 260 else end,
                "left_bytes": left_kib * 1024,
                "config": CONFIG | {"flush": ("sync", "async")[left_kib // 8 % 2]},
            }
        )


def _inodes(mount: Path) -> int:
    found = os.statvfs(mount)
    return found.f_files - found.f_ffree


@pytest.fixture
def few_names(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Create mounts that allow only a given number of files and folders."""
    tool, mount = shutil.which("mount") or "/bin/mount", tmp_path / "mount"
    mount.mkdir()
    made = subprocess.run(
        [tool, "-t", "tmpfs", "-o", "size=8m", "timerstore-test", str(mount)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"NOT RUN: mounting is not permitted here (run as root): {made.stderr.strip()}")

    def limit(more: int) -> Path:
        count = _inodes(mount) + more
        options = f"remount,nr_inodes={count}"
        subprocess.run([tool, "-o", options, str(mount)], check=True)
        return mount

    try:
        yield limit
    finally:
        gc.collect()  # the saved errors keep files of the mount open
        subprocess.run([shutil.which("umount") or "/bin/umount", str(mount)], check=True)


@pytest.mark.more
@pytest.mark.parametrize("name", ["open", "roll", "commit"])
def test_file_quota_raises_full_error_and_loses_no_message(
    name: str, few_names: Callable[[int], Path]
) -> None:
    """Reach a quota of files."""
    scene, met = SCENES[name], 0
    for more in (0, 1, 2, 4, 7, 10, 14, 19, 25):
        folder = few_names(1000) / f"{name}-{more}"
        folder.mkdir()
        story = Story(folder, config_of(scene))
        scene.before(story)
        few_names(more)
        scene.during(story)
        story.drop()
        few_names(1000)
        met += bool(story.errors)
        assert all(isinstance(one, FullError) for one in story.errors), story.errors
        scene.checked(story)
        shutil.rmtree(folder)
    assert met > 1


@pytest.mark.more
def test_opening_raises_full_error_with_too_little_space_and_works_later(worker: Worker) -> None:
    for left_kib in range(0, 160, 12):
        worker.live(
            {
                "seed": left_kib,
                "end": "open",
                "left_bytes": left_kib * 1024,
                "config": CONFIG | {"flush": "sync"},
            }
        )
