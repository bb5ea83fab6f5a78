"""A real file system on an image of its own, whose power can be cut.

    python -m tests.crash.mount <ext4 | xfs> <directory>    shows that a cut is one

Holds:    cut, the file system writes nothing any more, not even its journal (the shutdown ioctl of
          ext4 and XFS, without a flush of the log): what reached the image before is what a machine
          would find that lost its power at that moment.
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

from timerstore._engine.storage.disk import Disk
from timerstore.errors import TimerStoreError

IMAGE_BYTES = 320 << 20
MAKERS = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q", "-f"]}
_SHUTDOWN = 0x8004587D  # XFS_IOC_GOINGDOWN, EXT4_IOC_SHUTDOWN
_NO_LOG_FLUSH = 2


def why_not(kind: str) -> str | None:
    """Why such a file system cannot be had here, None where it can."""
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
    """From here on nothing reaches the image."""
    fd = os.open(mount, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.ioctl(fd, _SHUTDOWN, struct.pack("<I", _NO_LOG_FLUSH))
    finally:
        os.close(fd)


class Mount:
    """One image and where it is mounted."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.path = directory / "mount"
        self._image = directory / "image"
        self._is_mounted = False  # asking a dead file system would be an error
        self.path.mkdir(parents=True)
        with self._image.open("wb") as image:
            image.truncate(IMAGE_BYTES)
        self.format()

    def format(self) -> None:
        """Make the file system anew, and mount it."""
        self.unmount()
        subprocess.run([*MAKERS[self.kind], str(self._image)], check=True)
        self.mount()

    def mount(self) -> None:
        """Mount; a journal is replayed."""
        subprocess.run(["mount", "-o", "loop", str(self._image), str(self.path)], check=True)
        self._is_mounted = True

    def unmount(self) -> None:
        """Unmount, where it is mounted; the dead may take a moment to let go."""
        for _ in range(100):
            if not self._is_mounted:
                return
            done = subprocess.run(["umount", str(self.path)], check=False, capture_output=True)
            self._is_mounted = bool(done.returncode)
            if self._is_mounted:
                time.sleep(0.05)
        raise RuntimeError(f"{self.path} cannot be unmounted: {done.stderr.decode()}")

    def restart(self) -> None:
        """What a machine does when the power is back."""
        self.unmount()
        self.mount()

    def write_some(self, random: Random) -> None:
        """Have pages written that nobody asked for, as a kernel does when it likes."""
        disk = Disk()
        files = [path for path in sorted(self.path.rglob("*")) if path.is_file()]
        for path in random.sample(files, min(len(files), random.randint(0, 6))):
            with suppress(TimerStoreError):  # the child renames and removes
                file = disk.open(path, read_only=True)
                size = file.size()
                begin = random.randrange(size + 1) // 4096 * 4096
                file.start_writing(begin, random.choice((4096, 16384, size)))


def main() -> None:
    """Write twice, sync one of two files, cut; say what is there then."""
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
