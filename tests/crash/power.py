"""Run lives whose children lose the power of their file system, not only their process.

    python -m tests.crash.power <ext4 | xfs> <directory>

Lives come as JSON lines on stdin, and results go to stdout, as in worker.py.

The child is stopped, then the power is cut, then the child is killed. A thread that is inside a
sync at the cut must not return from it and acknowledge. XFS did let one return 0 after the
shutdown, though nothing had reached the image.

After each round the file system is mounted again without a reboot, with an empty cache. A message
that a child acknowledged before the cut must be there, also in a round that died in the recovery
from another cut.
"""

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from random import Random
from typing import Any

from tests.crash.mount import Mount, cut_power
from tests.crash.worker import Life

_LIVES_A_FORMAT = 200


def main() -> None:
    """Read lives from stdin, and write the results."""
    kind, directory = sys.argv[1], Path(sys.argv[2])
    mount = Mount(kind, directory)
    try:
        for number, text in enumerate(sys.stdin):
            life = json.loads(text)
            if number % _LIVES_A_FORMAT == _LIVES_A_FORMAT - 1:
                mount.format()
            result = PowerLife(mount, directory / f"trouble-{life['number']}", life).live()
            print(json.dumps(result | {"file_system": kind}), flush=True)
            if result["problems"]:
                shutil.copytree(mount.path, directory / f"failed-{life['number']}")
            for one in mount.path.iterdir():
                if one.name != "lost+found":
                    shutil.rmtree(one)
    finally:
        mount.unmount()


class PowerLife(Life):
    """One directory on the mount."""

    waits_at_points = True

    def __init__(self, mount: Mount, trouble: Path, life: dict[str, Any]) -> None:
        super().__init__(mount.path / "life", life | {"only_durable": True}, trouble)
        self._mount = mount
        self._moments = Random(life["seed"])

    def _kill(self, pid: int) -> None:
        self._mount.write_some(self._moments)
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)  # every thread is stopped, or finishes its system call first
        cut_power(self._mount.path)
        os.kill(pid, signal.SIGKILL)

    def _died(self) -> None:
        self._start_anew()

    def _start_anew(self) -> None:
        self._mount.restart()


if __name__ == "__main__":
    main()
