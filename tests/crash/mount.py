"""Mount a real file system on an image of its own, whose power can be cut.

    python -m tests.crash.mount <ext4 | xfs> <directory>    shows the effect of a cut

Invariants:
    1. After the cut, the file system writes nothing any more, not even its journal (the shutdown
       ioctl of ext4 and XFS, without a flush of the log). The image holds the bytes that a machine
       would find after losing its power at that time.
"""

import fcntl
import os
import shutil
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from random import Random

from tests.support.inside import Disk
from timerstore.errors import TimerStoreError

IMAGE_BYTES = 320 << 20
MAKERS = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q", "-f"]}
_SHUTDOWN = 0x8004587D  # XFS_IOC_GOINGDOWN, EXT4_IOC_SHUTDOWN
_NO_LOG_FLUSH = 2


def why_not(kind: str) -> str | None:
    """Return why such a file system is not available here, or None if it is."""
    if os.geteuid():
        return "needs root, for loop mounts"
    if shutil.which(MAKERS[kind][0]) is None:
        return f"{MAKERS[kind][0]} is not installed"
    if not Path("/dev/loop-control").exists():
        return "no loop devices"
    if shutil.which("unshare") is None:
        return "unshare is not installed"
    return None


def cut_power(mount: Path) -> None:
    """Cut the power: nothing reaches the image any more."""
    fd = os.open(mount, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.ioctl(fd, _SHUTDOWN, struct.pack("<I", _NO_LOG_FLUSH))
    finally:
        os.close(fd)


class Mount:
    """One image, and its mount point."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.path = directory / "mount"
        self._image = directory / "image"
        self._is_mounted = False  # a call on a file system after its shutdown would raise an error
        self.path.mkdir(parents=True)
        with self._image.open("wb") as image:
            image.truncate(IMAGE_BYTES)
        self.format()

    def format(self) -> None:
        """Create the file system again, and mount it."""
        self.unmount()
        subprocess.run([*MAKERS[self.kind], str(self._image)], check=True)
        self.mount()

    def mount(self) -> None:
        """Mount the image, which replays the journal."""
        subprocess.run(["mount", "-o", "loop", str(self._image), str(self.path)], check=True)
        self._is_mounted = True

    def unmount(self) -> None:
        """Unmount the image if it is mounted. Killed processes may need some time to release it."""
        for _ in range(100):
            if not self._is_mounted:
                return
            done = subprocess.run(["umount", str(self.path)], check=False, capture_output=True)
            self._is_mounted = bool(done.returncode)
            if self._is_mounted:
                time.sleep(0.05)
        raise RuntimeError(f"{self.path} cannot be unmounted: {done.stderr.decode()}")

    def restart(self) -> None:
        """Mount the image again, as after the return of the power."""
        self.unmount()
        self.mount()

    def write_some(self, random: Random) -> None:
        """Write back some pages without a request, as a kernel may at any time."""
        disk = Disk()
        files = [path for path in sorted(self.path.rglob("*")) if path.is_file()]
        for path in random.sample(files, min(len(files), random.randint(0, 6))):
            with suppress(TimerStoreError):  # the child renames and removes files concurrently
                file = disk.open(path, read_only=True)
                size = file.size()
                begin = random.randrange(size + 1) // 4096 * 4096
                file.start_writing(begin, random.choice((4096, 16384, size)))


def main() -> None:
    """Write twice, sync one of two files, cut the power, and print the contents afterwards."""
    mount = Mount(sys.argv[1], Path(sys.argv[2]))
    old, new = b"old" * 5000, b"new" * 5000
    paths = [mount.path / "synced", mount.path / "not synced"]
    for path in paths:
        path.write_bytes(old)
    os.sync()
    for path in paths:
        with path.open("r+b") as file:
            file.write(new)
            file.flush()
            if path is paths[0]:
                os.fsync(file.fileno())
    cut_power(mount.path)
    mount.restart()
    texts = [f"{path.name}: {'new' if path.read_bytes() == new else 'gone'}" for path in paths]
    mount.unmount()
    print(", ".join(texts))


if __name__ == "__main__":
    main()
