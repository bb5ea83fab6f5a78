"""`Windows`: copies of parts of a log's files, one part at a time.

The point reader maps whole segments instead (snapshot_segments.py). A Spark worker cannot: the
option spark.executor.pyspark.memory limits its address space.

Thread safety: one thread for each `Windows`.
Invariants:
    1. Bytes are copied. C finds the same bytes when it looks twice, and a file that another process
       cuts is an error instead of a signal.
    2. Nothing past `end` is read.
Raises: CorruptError if a segment is missing or short. ConfigError if there is no memory.
"""

from pathlib import Path
from typing import Any

from timerstore._engine.base.native import FAULTS, ffi, lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.format.store_paths import segment_name
from timerstore._engine.storage.disk import Disk, File
from timerstore.errors import ConfigError, CorruptError, FailedError

WINDOW_BYTES = 8 << 20


class Windows(Owner):
    """The bytes of one log below `end`, as a `ts_window` that moves."""

    def __init__(
        self,
        directory: Path,
        segment_bytes: int,
        end: int,
        *,
        verify: bool = True,
        window_bytes: int | None = None,
    ) -> None:
        self.directory = directory
        self._segment_bytes = segment_bytes
        self._window_bytes = window_bytes or WINDOW_BYTES
        self._disk = Disk()
        self._file: File | None = None
        self._number = -1
        self._buffer = bytearray(0)
        self._view: Any = None
        self.native: Any = ffi.new("ts_window *")
        self.native.segment_bytes = segment_bytes
        self.native.end = end
        self.native.verify = verify
        self.bytes_read = 0

    @property
    def end(self) -> int:
        """The offset that reading stops at."""
        return int(self.native.end)

    @property
    def segment_bytes(self) -> int:
        """The size of each file."""
        return self._segment_bytes

    def path(self, offset: int) -> Path:
        """Return the file that holds an offset."""
        return self.directory / segment_name(offset - offset % self._segment_bytes)

    def has(self, offset: int) -> bool:
        """Return whether the window holds the byte at an offset."""
        begin = int(self.native.offset)
        return begin <= offset < begin + int(self.native.size)

    def load(self, offset: int, need: int = 0, *, only: bool = False) -> Any:
        """Load a window that begins at an offset. It has at least `need` bytes, or exactly so many
        with `only`.
        """
        left = min(self._segment_bytes - offset % self._segment_bytes, self.end - offset)
        size = min(need if only else max(need, self._window_bytes), left)
        self._grow(size)
        file = self._open(offset)
        view = memoryview(self._buffer)[:size]
        got = file.read_into(view, offset % self._segment_bytes)
        view.release()
        self.bytes_read += got
        if got < size:
            raise CorruptError(
                "a segment is short",
                where=self.path(offset),
                wanted=f"{self._segment_bytes} bytes",
                got=offset % self._segment_bytes + got,
            )
        self.native.bytes = self._view
        self.native.offset = offset
        self.native.size = size
        return self.native

    def _open(self, offset: int) -> File:
        number = offset // self._segment_bytes
        if self._file is None or number != self._number:
            self._file = None  # close its descriptor before the next one is opened
            path = self.path(offset)
            if not self._disk.exists(path):
                raise CorruptError(
                    "a segment is missing: retention removed it, or it was lost", where=path
                )
            self._file = self._disk.open(path, read_only=True)
            self._number = number
        return self._file

    def _grow(self, size: int) -> None:
        if size <= len(self._buffer):
            return
        try:
            grown = bytearray(size)
        except MemoryError as error:
            raise ConfigError(
                f"no memory for {size} bytes of {self.directory}: in Spark, "
                "spark.executor.pyspark.memory limits the address space of a Python worker; "
                "give it more"
            ) from error
        self._buffer = grown
        self._view = ffi.from_buffer("uint8_t[]", grown)

    def read(self, offset: int, size: int) -> memoryview:
        """Return bytes without a check. They are valid until the next call."""
        self.load(offset, size, only=True)
        return memoryview(self._buffer)[: int(self.native.size)]

    def fault(self, what: str, hint: str = "") -> CorruptError:
        """Return an error for the damage that C found."""
        offset = int(self.native.fault_offset)
        why = FAULTS.get(int(self.native.fault), "damaged")
        return CorruptError(f"{what}: {why}{hint}", where=f"{self.path(offset)} offset {offset}")

    def step(self, call: Any, offset: int, what: str) -> int:
        """Run `call(window)` at an offset, with more bytes each time that C asks for them, and
        return its result.

        Raises:
            CorruptError: C found damage.
        """
        need = 0
        while True:
            if need or not self.has(offset):
                self.load(offset, need)
            got = int(call(self.native))
            if got == lib.TS_CORRUPT:
                raise self.fault(what)
            if got != lib.TS_NEED_SPACE:
                return got
            asked = int(self.native.need)
            if not asked and int(self.native.offset) == offset:
                raise FailedError(f"{what}: nothing can be read", where=self.path(offset))
            need = max(asked, 1)
