"""Run lives on a disk that begins to fail: every write that needs a new block is an error.

    python -m tests.crash.failing_disk <ext4 | xfs> <directory>

Lives come as JSON lines on stdin, and results go to stdout, as in worker.py.

The image is a sparse file on a tmpfs that is filled up. So the kernel reports an error when it
writes pages back into a hole. The child must notice this soon, and raise FailedError, or FullError
if the file system rejects a call before anything is written.

The contents of the disk are not checked afterwards, because this disk loses bytes that it reported
as synced. A loop of pwrite and fdatasync lost its last record in one of 18 lives on ext4, and once
the file system could not be mounted again.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from tests.crash.lives import make_config
from tests.crash.mount import Mount
from tests.crash.power import PowerLife
from tests.crash.report import LINE_BYTES, unpack

_ERROR = re.compile(r"timerstore\.errors\.(FailedError|FullError): ")
_BACKING_KIB = 420 * 1024


class FailingMount(Mount):
    """A mount whose image can be kept from growing."""

    def __init__(self, kind: str, directory: Path) -> None:
        backing = directory / "backing"
        backing.mkdir(parents=True)
        size = f"size={_BACKING_KIB}k"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", str(backing)], check=True)
        self._ballast = backing / "ballast"
        super().__init__(kind, backing)

    def fail(self) -> None:
        """Let every write fail that needs a new block on the image."""
        end = 0
        with self._ballast.open("wb") as ballast:
            # the child takes some of the space concurrently
            for part in (64 << 20, 1 << 20, 64 << 10, 4 << 10):
                with suppress(OSError):
                    while True:
                        os.posix_fallocate(ballast.fileno(), end, part)
                        end += part

    @property
    def has_failed(self) -> bool:
        """Return whether the disk has failed."""
        return self._ballast.exists()

    def heal(self) -> None:
        """Free the space again."""
        self._ballast.unlink(missing_ok=True)


class FailingLife(PowerLife):
    """One directory on such a mount."""

    waits_at_points = False

    def __init__(self, mount: FailingMount, trouble: Path, life: dict[str, Any]) -> None:
        super().__init__(mount, trouble, life)
        self._failing = mount
        self._overslept = False

    def _kill(self, pid: int) -> None:
        if self._failing.has_failed:
            self._overslept = True  # half a minute in which the disk rejects all writes
            os.kill(pid, signal.SIGKILL)
        else:
            self._failing.fail()

    def _died(self) -> None:
        self._failing.heal()

    def _take(self, raw: bytes, status: int, given: dict[str, Any]) -> None:
        whole = raw[: len(raw) // LINE_BYTES * LINE_BYTES]
        self._history.read(whole)
        self._problems += self._history.problems
        said = self._said()
        if self._overslept:
            self._problems.append(f"it did not notice that its disk fails\n{said}")
        elif os.WIFEXITED(status) and os.WEXITSTATUS(status) and _ERROR.search(said):
            self._points["failed"] += 1
            self._trouble.unlink()
        elif status == 0:
            self._points["not killed"] += 1
        else:
            self._problems.append(f"the child ended with {status:#x}: {given}\n{said}")
        self._remember(list(unpack(whole)))

    def _check(self) -> None:
        """Do nothing: the contents of this disk are not checked."""


def make_failing_lives(seed: int, failures: int) -> Iterator[dict[str, Any]]:
    """Return this many lives, each with one failing disk."""
    random = Random(seed)
    for number in range(failures):
        moment = {"after_ms": 1.5 ** random.uniform(0, 12), "from_opened": True, "step_ms": 0.5}
        yield {
            "number": number,
            "seed": random.randrange(1 << 30),
            "config": make_config(random) | {"flush": "sync", "visibility": "durable"},
            "rounds": [moment],
        }


def main() -> None:
    """Read lives from stdin, and write the results."""
    kind, directory = sys.argv[1], Path(sys.argv[2])
    mount = FailingMount(kind, directory)
    try:
        for text in sys.stdin:
            life = json.loads(text)
            mount.format()
            trouble = directory / f"trouble-{life['number']}"
            result = FailingLife(mount, trouble, life).live()
            print(json.dumps(result | {"file_system": kind}), flush=True)
    finally:
        mount.unmount()


if __name__ == "__main__":
    main()
