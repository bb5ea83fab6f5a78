"""One open file: read, write, sync, map and lock it.

Thread safety: any thread. The descriptor is closed when the last reference to a File is dropped.
Raises: FullError on a full disk, quota or size limit. FailedError, with path, offset and error
    number, on every other error of the operating system, and on a read past the end of the file.
"""

import errno
import fcntl
import mmap
import os
import resource
import stat
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.storage.guarded_map import GuardedMap
from timerstore.errors import FailedError, FullError, TimerStoreError

# --- os errors ---
# Turn errors of the operating system into errors of the store.
#
# Raises: nothing but errors of the program's signal handlers; `os_error` returns the error for its
# caller to raise.


NO_DESCRIPTOR = {errno.EMFILE, errno.ENFILE}
"""Error numbers that mean no free descriptor: of the process, or of the system."""

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG} | NO_DESCRIPTOR
"""Error numbers that mean no space: on the disk, in a quota, below a limit of a file's size, or in
the table of descriptors. Nothing is wrong with the store then, and the call can be repeated."""


def check_of_system(error: OSError | ValueError | RuntimeError) -> None:
    """Raise an error that a signal handler of the program raised during a call of the operating
    system: no such call raises an OSError without a number.
    """
    if isinstance(error, OSError) and error.errno is None:
        raise error


def os_error(error: OSError, what: str, where: object) -> TimerStoreError:
    """Return the store's error for an OSError: FullError without space or a free descriptor, else
    FailedError.

    If the operating system denied access, the error names the owner and the mode of the path.

    Raises:
        OSError: a signal handler of the program raised it (check_of_system).
    """
    check_of_system(error)
    cls = FullError if error.errno in FULL else FailedError
    name = errno.errorcode.get(error.errno or 0, str(error.errno))
    wanted = got = None
    if error.errno in (errno.EACCES, errno.EPERM):
        wanted, got = f"access for user {os.geteuid()}", _access_of(where)
    elif error.errno == errno.EMFILE:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        wanted = f"fewer than {limit} open files in this process (ulimit -n)"
    return cls(f"{what}: {error.strerror} ({name})", where=where, wanted=wanted, got=got)


def os_error_of(code: int) -> OSError:
    """Return the OSError of an error number, for a condition that was found without a call."""
    return OSError(code, os.strerror(code))


def _access_of(where: object) -> str | None:
    """Describe owner and mode of a path, or of the nearest folder above it that can be read."""
    path = Path(str(where))
    for one in (path, *path.parents):
        with suppress(OSError, ValueError):
            status = one.stat()
            mode = stat.filemode(status.st_mode)
            return f"{one} of user {status.st_uid}, group {status.st_gid}, mode {mode}"
    return None


def close_descriptor(fd: int) -> None:
    """Close a descriptor. Errors are ignored: data that matters was synced before, with a check."""
    try:
        os.close(fd)
    except OSError as error:
        check_of_system(error)


# --- file ---


_ZEROS = bytes(1 << 20)
_FLOCK = "hhqqi"  # struct flock of 64-bit Linux: type, whence, start, length, process


class File(NotCopyable):
    """One open regular file."""

    __slots__ = ("fd", "path")

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd

    def __del__(self) -> None:
        fd = getattr(self, "fd", -1)
        if fd >= 0:
            close_descriptor(fd)

    # --- reading and writing ---

    def write(self, data: bytes | memoryview, offset: int) -> None:
        """Write all of `data`. On return it is in the page cache, not yet on the disk."""
        view = memoryview(data)
        try:
            while view:
                done = os.pwrite(self.fd, view, offset)
                offset += done
                view = view[done:]
        except OSError as error:
            raise os_error(error, "write", f"{self.path} offset {offset}") from error

    def write_each(self, data: memoryview, size: int, offsets: Sequence[int]) -> None:
        """Write pieces of `size` bytes, each at its offset. On return all are in the page cache.

        One call of C, because many calls of Python would each wait for other threads.
        """
        pieces, places = ffi.from_buffer("uint8_t[]", data), ffi.new("int64_t[]", offsets)
        status = -int(lib.ts_write_each(self.fd, pieces, size, len(offsets), places))
        if status:
            raise os_error(os_error_of(status), "write", self.path)

    def read(self, offset: int, size: int) -> bytes:
        """Read exactly `size` bytes."""
        try:
            data = os.pread(self.fd, size, offset)
            while len(data) < size:
                more = os.pread(self.fd, size - len(data), offset + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise os_error(error, "read", f"{self.path} offset {offset}") from error
        if len(data) < size:
            raise FailedError(
                "file is short",
                where=f"{self.path} offset {offset}",
                wanted=f"{size} bytes",
                got=len(data),
            )
        return data

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill a buffer, or as much of it as the file has; return how many bytes were read."""
        done = 0
        try:
            while done < len(buffer):
                count = os.preadv(self.fd, [buffer[done:]], offset + done)
                if not count:
                    break
                done += count
        except OSError as error:
            raise os_error(error, "read", f"{self.path} offset {offset}") from error
        return done

    def sync(self) -> None:
        """Make data and size durable.

        An error is final: after it the page cache may show bytes that the disk does not have.
        """
        try:
            os.fdatasync(self.fd)
        except OSError as error:
            check_of_system(error)
            raise FailedError(
                f"sync: {error.strerror}", where=self.path, got=error.errno
            ) from error

    def start_writing(self, offset: int, size: int) -> None:
        """Start writing a range to the disk, so that a later sync waits for less.

        Do nothing where the file system does not support it. An error is final, as for `sync`.
        """
        status = -int(lib.ts_start_writing(self.fd, offset, size))
        if status not in (0, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.ESPIPE):
            raise FailedError(f"write back: {os.strerror(status)}", where=self.path, got=status)

    # --- size, blocks and identity ---

    def size(self) -> int:
        """Return the length of the file, bytes."""
        return self.status().st_size

    def status(self) -> os.stat_result:
        """Return the result of fstat."""
        try:
            return os.fstat(self.fd)
        except OSError as error:
            raise os_error(error, "stat", self.path) from error

    def identity(self) -> tuple[int, int]:
        """Return device and inode, which identify the file whatever its name is."""
        status = self.status()
        return status.st_dev, status.st_ino

    def check_in_place(self, size: int | None = None) -> None:
        """Raise FailedError if the file lost its name, or does not have `size` bytes.

        Then it was removed, replaced or truncated while it was open.
        """
        found = int(lib.ts_length_in_place(self.fd))
        if found == -errno.ENOENT:
            raise FailedError("the file was removed or replaced while it was open", where=self.path)
        if found < 0:
            raise os_error(os_error_of(-found), "stat", self.path)
        if size is not None and found != size:
            raise FailedError(
                "the size of the file changed while it was open",
                where=self.path,
                wanted=f"{size} bytes",
                got=found,
            )

    def resize(self, size: int) -> None:
        """Set the length; added bytes are a hole, which reads as zeros."""
        try:
            os.ftruncate(self.fd, size)
        except OSError as error:
            raise os_error(error, "resize", self.path) from error

    def reserve(self, offset: int, size: int) -> None:
        """Allocate the blocks of a range, so that a later write there cannot fail for space."""
        try:
            os.posix_fallocate(self.fd, offset, size)
        except OSError as error:
            raise os_error(error, "reserve", f"{self.path} offset {offset}") from error

    def next_data(self, offset: int) -> int | None:
        """Return the first offset from `offset` on that is no hole; None if only holes follow.

        Return `offset` itself where the file system does not report holes.
        """
        try:
            return os.lseek(self.fd, offset, os.SEEK_DATA)
        except OSError as error:
            check_of_system(error)
            if error.errno == errno.ENXIO:
                return None
            return offset

    def first_hole(self, offset: int) -> int:
        """Return the first offset at or after `offset` that has no block.

        Return the file's length if every byte has one, or if the file system does not report holes.
        """
        try:
            return os.lseek(self.fd, offset, os.SEEK_HOLE)
        except OSError as error:
            raise os_error(error, "seek", f"{self.path} offset {offset}") from error

    def zero(self, offset: int, size: int) -> None:
        """Fill a range with zeros and keep its blocks."""
        if size <= 0:
            return
        status = -int(lib.ts_zero_range(self.fd, offset, size))
        if status == 0:
            return
        if status not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            raise os_error(os_error_of(status), "zero", f"{self.path} offset {offset}")
        while size > 0:  # the file system cannot do it: tmpfs, for example
            part = min(size, len(_ZEROS))
            self.write(memoryview(_ZEROS)[:part], offset)
            offset += part
            size -= part

    def punch(self, offset: int, size: int) -> None:
        """Free the blocks of a range, which then reads as zeros.

        Do nothing where the file system does not support it.
        """
        status = -int(lib.ts_punch(self.fd, offset, size))
        if status not in (0, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            raise os_error(os_error_of(status), "punch", f"{self.path} offset {offset}")

    # --- maps ---

    def map_read(self, size: int) -> mmap.mmap:
        """Map for reading. Parts that are truncated later read as zeros (guarded_map.py)."""
        return self._map(size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)

    def map_shared(self, size: int) -> mmap.mmap:
        """Map for writing through to the file."""
        return self._map(size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)

    def map_private(self, size: int) -> mmap.mmap:
        """Map for writing in memory only: the file changes only by `write`."""
        return self._map(size, access=mmap.ACCESS_COPY)

    def _map(self, size: int, **options: int) -> mmap.mmap:
        try:
            memory = GuardedMap(self.fd, size, **options)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in NO_DESCRIPTOR:  # a map has its own
                raise os_error(error, "map", self.path) from error
            raise FailedError(f"map: {error}", where=self.path) from error
        memory.watch(self.path)
        return memory

    # --- the record lock ---

    def lock_first_byte(self) -> bool:
        """Take the record lock of byte 0, as a broker does; return False if it is taken."""
        try:
            fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise os_error(error, "lock", self.path) from error
        return True

    def first_byte_holder(self) -> int | None:
        """Return the id of the process that has the record lock of byte 0; None if it is free.

        Return 0 where the kernel does not name the process, as for one in another container.
        """
        request = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        try:
            answer = fcntl.fcntl(self.fd, fcntl.F_GETLK, request)
        except OSError as error:
            raise os_error(error, "query the lock", self.path) from error
        kind, _, _, _, pid = struct.unpack(_FLOCK, answer)
        return None if kind == fcntl.F_UNLCK else max(0, pid)


# --- descriptors ---
# Keep the files of a store away from standard input, output and error.
#
# The operating system assigns the lowest free descriptor. If a process has closed descriptors 0 to
# 2, as daemons do, a file of a store would get one of them. Then printed text, or a library's error
# output, would be written into the store. Code that opens a store calls `reserve_standard` first.
#
# Thread safety: any thread.
# See also: docs/decisions/0013-locks-and-re-entry.md.


_STANDARD_COUNT = 3


def reserve_standard() -> None:
    """Open /dev/null for each of standard input, output and error that is closed.

    Raises:
        OSError: the operating system rejected the call.
    """
    for fd in range(_STANDARD_COUNT):
        try:
            os.fstat(fd)
        except OSError as error:
            check_of_system(error)
            null = os.open(os.devnull, os.O_RDWR)
            if null == fd:
                os.set_inheritable(fd, True)  # as standard descriptors are
            else:  # another thread has taken the number since
                os.close(null)
