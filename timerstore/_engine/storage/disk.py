"""The seam to the operating system: every file call of the engine goes through here.

Threads:  any. A File's descriptor closes when its last user lets go of it.
Holds:    what lies below an anchored root is reached folder by folder from there, so that no link
          is followed on the way, also none that took a folder's place after somebody looked.
Fails:    FullError on a full disk, quota or size limit; FailedError, with path, offset and errno,
          on everything else that a disk can say. Reads beyond a file's end are FailedError too.
Source:   docs/decisions/0013-locks-and-re-entry.md.
"""

import errno
import fcntl
import mmap
import os
import shutil
import stat
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.storage.descriptors import keep_standard
from timerstore._engine.storage.guarded_map import GuardedMap
from timerstore.errors import CorruptError, FailedError, FullError, TimerStoreError

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""What the system says where there is no room: a disk, a quota, a limit of a file's length."""
_ZEROS = bytes(1 << 20)
_MAKE_TRIES = 100
_SMALL_BYTES_MAX = 64 << 20
_FLOCK = "hhqqi"  # struct flock of 64-bit Linux: type, whence, start, length, process
FILE_MODE = 0o600
DIRECTORY_MODE = 0o700


def os_error(error: OSError, what: str, where: object) -> TimerStoreError:
    """Make the store's error of the system's."""
    cls = FullError if error.errno in FULL else FailedError
    name = errno.errorcode.get(error.errno or 0, str(error.errno))
    wanted = got = None
    if error.errno in (errno.EACCES, errno.EPERM):
        wanted, got = f"access for user {os.geteuid()}", _access_of(where)
    return cls(f"{what}: {error.strerror} ({name})", where=where, wanted=wanted, got=got)


def _access_of(where: object) -> str | None:
    """Say whose a path is, or the nearest folder above it that can be looked at."""
    path = Path(str(where))
    for one in (path, *path.parents):
        with suppress(OSError, ValueError):
            status = one.stat()
            mode = stat.filemode(status.st_mode)
            return f"{one} of user {status.st_uid}, group {status.st_gid}, mode {mode}"
    return None


def _close(fd: int) -> None:
    """Close it; what was written and matters was synced, which has told."""
    with suppress(OSError):
        os.close(fd)


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _said(code: int) -> OSError:
    """What the system would have said, of what was seen before it was asked."""
    return OSError(code, os.strerror(code))


def _followed_no_link(path: Path) -> FailedError:
    return FailedError(
        "a link in a store is not followed",
        where=path,
        wanted="a folder; the store's own may be a link, and a file system mounted in it",
    )


def is_left_of(name: str, path: Path) -> bool:
    """Whether `write_new` of this path has such a name until it is done: a kill leaves it."""
    return name.startswith(f".{path.name}.") and name.endswith(".tmp")


class File(Owner):
    """One open regular file. `dirty` belongs to whoever writes it."""

    __slots__ = ("fd", "path")

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd

    def __del__(self) -> None:
        fd = getattr(self, "fd", -1)
        if fd >= 0:
            _close(fd)

    def write(self, data: bytes | memoryview, offset: int) -> None:
        """Write all of data; in the page cache on return."""
        view = memoryview(data)
        try:
            while view:
                done = os.pwrite(self.fd, view, offset)
                offset += done
                view = view[done:]
        except OSError as error:
            raise os_error(error, "write", f"{self.path} offset {offset}") from error

    def write_each(self, data: memoryview, size: int, offsets: Sequence[int]) -> None:
        """Write pieces of `size` bytes, each at its offset; all in the page cache on return. One
        call: between many of Python other threads would have to be waited for.
        """
        pieces, places = ffi.from_buffer("uint8_t[]", data), ffi.new("int64_t[]", offsets)
        status = -int(lib.ts_write_each(self.fd, pieces, size, len(offsets), places))
        if status:
            error = OSError(status, os.strerror(status))
            raise os_error(error, "write", self.path)

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
        """Fill a buffer, or as much of it as the file has; how many bytes."""
        done = 0
        try:
            while done < len(buffer):
                got = os.preadv(self.fd, [buffer[done:]], offset + done)
                if not got:
                    break
                done += got
        except OSError as error:
            raise os_error(error, "read", f"{self.path} offset {offset}") from error
        return done

    def next_data(self, offset: int) -> int | None:
        """Give where bytes lie that the disk holds, from `offset` on; None: only holes follow."""
        try:
            return os.lseek(self.fd, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            return offset  # a file system that cannot tell

    def sync(self) -> None:
        """Make data and size durable. An error is final: the cache may lie from here on."""
        try:
            os.fdatasync(self.fd)
        except OSError as error:
            cls = FailedError
            raise cls(f"sync: {error.strerror}", where=self.path, got=error.errno) from error

    def start_writing(self, offset: int, size: int) -> None:
        """Have the disk begin with a range, so that a later sync has less to wait for.

        Where the file system cannot, the sync does it all. An error is final, as a sync's is.
        """
        status = -int(lib.ts_start_writing(self.fd, offset, size))
        if status not in (0, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.ESPIPE):
            raise FailedError(f"write back: {os.strerror(status)}", where=self.path, got=status)

    def refuse_stranger(self, size: int | None = None) -> None:
        """FailedError where the file has no name any more, or not this length: somebody removed it,
        put another in its place, or cut it, while it was open.
        """
        status = self.status()
        if not status.st_nlink:
            raise FailedError("the file was removed or replaced while it was open", where=self.path)
        if size is not None and status.st_size != size:
            raise FailedError(
                "the file was cut, or grew, while it was open",
                where=self.path,
                wanted=f"{size} bytes",
                got=status.st_size,
            )

    def size(self) -> int:
        """Give the file's length, bytes."""
        return self.status().st_size

    def status(self) -> os.stat_result:
        """Give what the system knows of it."""
        try:
            return os.fstat(self.fd)
        except OSError as error:
            raise os_error(error, "stat", self.path) from error

    def identity(self) -> tuple[int, int]:
        """Tell this file from all others, whatever it is called."""
        status = self.status()
        return status.st_dev, status.st_ino

    def resize(self, size: int) -> None:
        """Set the length; new bytes are a hole of zeros."""
        try:
            os.ftruncate(self.fd, size)
        except OSError as error:
            raise os_error(error, "resize", self.path) from error

    def reserve(self, offset: int, size: int) -> None:
        """Take the blocks of a range, so that writing there cannot find the disk full."""
        try:
            os.posix_fallocate(self.fd, offset, size)
        except OSError as error:
            raise os_error(error, "reserve", f"{self.path} offset {offset}") from error

    def first_hole(self, offset: int) -> int:
        """Give where the first byte at or behind `offset` lies that has no block of its own; the
        file's end where all have, or where the file system does not say.
        """
        try:
            return os.lseek(self.fd, offset, os.SEEK_HOLE)
        except OSError as error:
            raise os_error(error, "seek", f"{self.path} offset {offset}") from error

    def zero(self, offset: int, size: int) -> None:
        """Turn a range into zeros, keeping its blocks."""
        if size <= 0:
            return
        status = lib.ts_zero_range(self.fd, offset, size)
        if status == 0:
            return
        if -status not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            error = OSError(-status, os.strerror(-status))
            raise os_error(error, "zero", f"{self.path} offset {offset}")
        while size > 0:  # tmpfs, for one, cannot
            part = min(size, len(_ZEROS))
            self.write(memoryview(_ZEROS)[:part], offset)
            offset += part
            size -= part

    def punch(self, offset: int, size: int) -> None:
        """Give the blocks of a range back; it reads as zeros, where the file system can do this."""
        status = -int(lib.ts_punch(self.fd, offset, size))
        if status not in (0, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            error = OSError(status, os.strerror(status))
            raise os_error(error, "punch", f"{self.path} offset {offset}")

    def map_read(self, size: int) -> mmap.mmap:
        """Map for reading; parts that are truncated later read as zeros (guarded_map.py)."""
        return self._map(size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)

    def map_shared(self, size: int) -> mmap.mmap:
        """Map for writing through to the file."""
        return self._map(size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)

    def map_private(self, size: int) -> mmap.mmap:
        """Map for writing in memory only: the file changes by `write` alone."""
        return self._map(size, access=mmap.ACCESS_COPY)

    def _map(self, size: int, **how: int) -> mmap.mmap:
        try:
            memory = GuardedMap(self.fd, size, **how)
        except (OSError, ValueError) as error:
            raise FailedError(f"map: {error}", where=self.path) from error
        memory.watch(self.path)
        return memory

    def lock_first_byte(self) -> bool:
        """Take the record lock that a broker takes (byte 0); False where another process has it."""
        try:
            fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise os_error(error, "lock", self.path) from error
        return True

    def first_byte_holder(self) -> int | None:
        """Give the process that has the record lock of byte 0, takes nothing; None: nobody has.

        0 where the kernel does not say which, as of one in another container.
        """
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        try:
            found = fcntl.fcntl(self.fd, fcntl.F_GETLK, asked)
        except OSError as error:
            raise os_error(error, "ask for the lock", self.path) from error
        kind, _, _, _, pid = struct.unpack(_FLOCK, found)
        return None if kind == fcntl.F_UNLCK else max(0, pid)


class Anchor(Owner):
    """A root directory, open: what is reached from here is in it, whatever its path leads to."""

    __slots__ = ("fd", "prefix", "root")

    def __init__(self, root: Path) -> None:
        self.root = root
        self.prefix = f"{root}/"
        try:
            self.fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise os_error(error, "open", root) from error

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Let go of it, and of its lock where nobody else has this description."""
        fd = getattr(self, "fd", -1)
        if fd >= 0:
            self.fd = -1
            _close(fd)

    def identity(self) -> tuple[int, int]:
        """Tell the directory from all others."""
        try:
            status = os.fstat(self.fd)
        except OSError as error:
            raise os_error(error, "stat", self.root) from error
        return status.st_dev, status.st_ino

    def lock(self, *, shared: bool = False) -> bool:
        """Take the directory for this descriptor alone, or `shared`, for all who take it so
        (flock); False where another has it. Where the file system has no such lock (NFS wants a
        file that can be written) there is none.
        """
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(self.fd, kind | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno not in (errno.EACCES, errno.EAGAIN)
        return True

    def unlock(self) -> None:
        """Let go of the lock, also where a forked child has a copy of the descriptor."""
        with suppress(OSError):
            fcntl.flock(self.fd, fcntl.LOCK_UN)


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Disk(Owner):
    """Files and directories by name."""

    _anchors: tuple[Anchor, ...] = ()

    def __init__(self) -> None:
        try:
            keep_standard()
        except OSError as error:
            raise os_error(error, "open", Path(os.devnull)) from error

    def anchor(self, root: Path) -> Anchor:
        """Reach all that lies below `root` from there, until the anchor is closed."""
        anchor = Anchor(root)
        self._anchors = (*(one for one in self._anchors if one.fd >= 0), anchor)
        return anchor

    def _anchor_of(self, path: Path) -> Anchor | None:
        text = str(path)
        for anchor in self._anchors:
            if anchor.fd >= 0 and text.startswith(anchor.prefix):
                return anchor
        return None

    @contextmanager
    def _place(self, path: Path) -> Iterator[tuple[int | None, str]]:
        """Give the folder of a path, None for none in particular, and the name to use there."""
        text, anchor = str(path), self._anchor_of(path)
        if anchor is None:
            yield None, text
            return
        *folders, name = text[len(anchor.prefix) :].split("/")
        fd = anchor.fd
        try:
            for folder in folders:
                inner = self._enter(fd, folder, path)
                if fd != anchor.fd:
                    _close(fd)
                fd = inner
            yield fd, name
        finally:
            if fd != anchor.fd:
                _close(fd)

    def _enter(self, fd: int, folder: str, path: Path) -> int:
        if folder in ("", ".", ".."):
            raise FailedError("a name leads out of the store", where=path)
        try:
            return os.open(folder, _FOLDER, dir_fd=fd)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(folder, fd):
                raise _followed_no_link(path) from error
            raise

    def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> File:
        """Open a regular file; anything else under that name is refused. To be written it must have
        no second name, by which what is written would change another's file.
        """
        flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        flags |= os.O_RDONLY if read_only else os.O_RDWR
        if create:
            flags |= os.O_CREAT
        try:
            with self._place(path) as (folder, name):
                fd = os.open(name, flags, FILE_MODE, dir_fd=folder)
        except OSError as error:
            raise os_error(error, "open", path) from error
        file = File(path, fd)
        status = file.status()
        if not stat.S_ISREG(status.st_mode):
            is_folder = stat.S_ISDIR(status.st_mode)
            raise FailedError(
                "open",
                where=path,
                wanted="a regular file",
                got="a folder" if is_folder else "something else",
            ) from (_said(errno.EISDIR) if is_folder else None)
        if status.st_nlink > 1 and not read_only and self._anchor_of(path) is not None:
            raise FailedError(
                "a file with another name beside this one (a hard link) is not written to",
                where=path,
                wanted="1 name",
                got=status.st_nlink,
            )
        return file

    def exists(self, path: Path) -> bool:
        """Whether something has that name. A disk that cannot say has not said no: FailedError."""
        return self._status(path) is not None

    def _status(self, path: Path, *, follows: bool = False) -> os.stat_result | None:
        """What has that name, itself, be it a link, or what that leads to; None: nothing."""
        try:
            with self._place(path) as (folder, name):
                return os.stat(name, dir_fd=folder, follow_symlinks=follows)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        except OSError as error:
            if error.errno == errno.ELOOP and follows:  # it leads in a circle: to nothing
                return None
            raise os_error(error, "stat", path) from error

    def is_directory(self, path: Path) -> bool:
        """Whether that is a directory. Below an anchored root a link is none: it is refused."""
        if self._anchor_of(path) is not None:
            self.refuse_link(path)
        status = self._status(path, follows=self._anchor_of(path) is None)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def refuse_link(self, path: Path) -> None:
        """FailedError where a link has that name: nothing in a store leads out of it."""
        status = self._status(path)
        if status is not None and stat.S_ISLNK(status.st_mode):
            raise _followed_no_link(path) from _said(errno.ELOOP)

    def file_bytes(self, path: Path) -> int | None:
        """Give a file's length; None where no regular file has that name, but a link, say."""
        status = self._status(path)
        return status.st_size if status is not None and stat.S_ISREG(status.st_mode) else None

    def identity(self, path: Path) -> tuple[int, int]:
        """Tell one file or directory from all others, whatever it is called."""
        try:
            with self._place(path) as (folder, name):
                status = os.stat(name, dir_fd=folder)
        except OSError as error:
            raise os_error(error, "stat", path) from error
        return status.st_dev, status.st_ino

    def used_percent(self, path: Path) -> float:
        """How full the file system is, as `df` counts it: of what is not set aside for root."""
        try:
            status = os.statvfs(path)
        except OSError as error:
            raise os_error(error, "statvfs", path) from error
        used = status.f_blocks - status.f_bfree
        return 100 * used / max(1, used + status.f_bavail)

    @contextmanager
    def _folder(self, path: Path) -> Iterator[int]:
        """A directory, open."""
        with self._place(path) as (folder, name):
            if folder is None:
                fd = os.open(name, _FOLDER & ~os.O_NOFOLLOW)
            else:
                fd = self._enter(folder, name, path)
        try:
            yield fd
        finally:
            _close(fd)

    def list(self, path: Path) -> list[str]:
        """Give the names in a directory, sorted; none where there is no directory."""
        try:
            with self._folder(path) as fd:
                return sorted(os.listdir(fd))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise os_error(error, "list", path) from error

    def make_directory(self, path: Path) -> None:
        """Make a directory and what lies above it; what is made here is durable on return.

        Another process may meanwhile remove what it finds empty: then it is made again. Each level
        is durable before the next one is made, also where another process made it and was killed
        before it synced: so a directory that has another one in it is durable. For the last level,
        where it was there before, see `sync_name`.
        """
        for is_last in (*[False] * _MAKE_TRIES, True):
            missing, above = [], path
            while not self.is_directory(above):
                missing.append(above)
                above = above.parent
            if missing:
                self.sync_name(above)
            if self._make_all(missing[::-1], is_last=is_last):
                return

    def _make_all(self, paths: Sequence[Path], *, is_last: bool) -> bool:
        """Make one directory in the other; False where one went meanwhile."""
        for one in paths:
            try:
                with self._place(one) as (folder, name):
                    os.mkdir(name, DIRECTORY_MODE, dir_fd=folder)
            except FileExistsError:
                pass  # another process made it, and may not have synced it yet
            except OSError as error:
                if isinstance(error, FileNotFoundError) and not is_last:
                    return False
                raise os_error(error, "make directory", one) from error
            try:
                self.sync_directory(one.parent)
            except FailedError:
                if is_last or self.is_directory(one):
                    raise
                return False
        return True

    def unlink(self, path: Path) -> None:
        """Remove a name; durable after `sync_directory`."""
        try:
            with self._place(path) as (folder, name):
                os.unlink(name, dir_fd=folder)
        except OSError as error:
            raise os_error(error, "unlink", path) from error

    def rename(self, old: Path, new: Path) -> None:
        """Replace `new` by `old`; durable after `sync_directory`."""
        try:
            with self._place(old) as (source, name), self._place(new) as (target, new_name):
                os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=target)
        except OSError as error:
            raise os_error(error, "rename", old) from error

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        try:
            with self._folder(path) as fd:
                os.fsync(fd)
        except OSError as error:
            raise FailedError(f"sync directory: {error.strerror}", where=path) from error

    def sync_name(self, path: Path) -> None:
        """Make the name of a file or directory durable. A mount point has none, a name that is gone
        needs nothing, and a parent that this process may not read was not written by a process like
        this one.
        """
        is_inner = self._anchor_of(path) is not None
        parent = path.parent if is_inner else Path(os.path.realpath(path)).parent
        try:
            if self.identity(parent)[0] == self.identity(path)[0]:
                self.sync_directory(parent)
        except FailedError as error:
            if not isinstance(error.__cause__, PermissionError | FileNotFoundError):
                raise

    def write_small(self, path: Path, data: bytes) -> None:
        """Replace a small file whole: the old one or the new one, whatever happens; durable."""
        temporary = path.with_name(path.name + ".tmp")
        file = self.open(temporary, create=True)
        file.resize(0)
        file.write(data, 0)
        file.sync()
        del file
        self.rename(temporary, path)
        self.sync_directory(path.parent)

    def write_new(self, path: Path, data: bytes) -> bool:
        """Make a small file whole where there is none; durable. False where one is there: it stays.

        Of two that try at once one gets True.
        """
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
        file = self.open(temporary, create=True)
        try:
            file.write(data, 0)
            file.sync()
            return self.link(temporary, path)
        finally:
            self.unlink(temporary)

    def read_new(self, path: Path) -> bytes | None:
        """Give a file that `write_new` makes, whole; None where there is none.

        Its name is durable on return: the process that made it may have been killed before it
        synced the directory, and what the file decides must not be taken back by a power cut.
        """
        data = self.read_small(path)
        if data is not None:
            self.sync_directory(path.parent)
        return data

    def link(self, old: Path, new: Path) -> bool:
        """Give a file a second name, durably; False where the name is taken, which is durable, too.

        Without hard links (some network file systems) FailedError.
        """
        try:
            with self._place(old) as (source, name), self._place(new) as (target, new_name):
                os.link(name, new_name, src_dir_fd=source, dst_dir_fd=target)
            is_new = True
        except FileExistsError:
            # Over a network the answer to a link that succeeded may be lost, and asked for again.
            is_new = self.identity(new) == self.identity(old)
        except OSError as error:
            raise os_error(error, "link", new) from error
        self.sync_directory(new.parent)
        return is_new

    @contextmanager
    def locked(self, path: Path, *, alone: bool) -> Iterator[None]:
        """Hold a lock file (flock), which is made where it is not there; waits for it.

        By description, so threads of one process shut each other out, too.
        """
        file = self.open(path, create=True)
        try:
            fcntl.flock(file.fd, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        except OSError as error:
            raise os_error(error, "lock", path) from error
        try:
            yield
        finally:
            del file  # closing lets go

    def changed_ms(self, path: Path) -> int | None:
        """Give when a file or directory was last written to, epoch ms; None where it is not."""
        try:
            with self._place(path) as (folder, name):
                return os.stat(name, dir_fd=folder).st_mtime_ns // 1_000_000
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise os_error(error, "stat", path) from error

    def remove_empty(self, path: Path) -> bool:
        """Remove a directory in which nothing is; False where something is, or it is not there."""
        try:
            with self._place(path) as (folder, name):
                os.rmdir(name, dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                return False
            raise os_error(error, "remove directory", path) from error
        return True

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with all that is in it; nothing where it is not there."""
        try:
            with self._place(path) as (folder, name):
                shutil.rmtree(name, dir_fd=folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise os_error(error, "remove", path) from error

    def read_small(self, path: Path) -> bytes | None:
        """Give a small file whole, None where there is none."""
        if not self.exists(path):
            return None
        file = self.open(path, read_only=True)
        size = file.size()
        if size > _SMALL_BYTES_MAX:
            raise CorruptError(
                "a file that should be small", where=path, wanted=f"{_SMALL_BYTES_MAX} bytes or "
                "fewer", got=size,
            )  # fmt: skip
        return file.read(0, size)
