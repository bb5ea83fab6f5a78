"""The index: find log offsets of messages by key.

Thread safety: the dispatch thread adds, the thread that makes a checkpoint saves, and any thread
    looks up.
Locking: `_saving`, then `lock`. The dispatch lock, if held, is taken before both. No lock is taken
    under them.
Invariants:
    1. Every key of a record below `position` was added once, and no key of a later record.
    2. Everything that the position file describes was durable before that file was written. So
       after a crash only the keys of later records are added again.
Raises: CorruptError if a look-up finds damage. Then the caller calls `restart` and adds all keys
    again.
On-disk format: index_file.py; format/index_position.py for the position file.
See also: docs/exactly-once.md, docs/file-format.md;
    docs/decisions/0006-index-and-queries.md.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import Lock, ffi, lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format import index_position
from timerstore._engine.format.index_position import IndexFileState, IndexPosition
from timerstore._engine.format.store_paths import Tree, index_name, is_index_name
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.queues.index_file import ENTRY_BYTES, Geometry, IndexFile, Int64Array
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.segments import Segments
from timerstore.errors import CorruptError, FailedError
from timerstore.types.clock import Clock

KEYS_MAX = 16_385
"""Highest number of keys of one message: those that fit its properties, and its own id."""

_KEY = np.dtype([("log_offset", np.int64), ("store_ms", np.int64), ("hash", np.int32, 2)])
_CAPACITY = 2 * KEYS_MAX
_BATCH = 16_384  # records in one step of catching up
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1

assert _KEY.itemsize == ffi.sizeof("ts_key"), "key_index.py and native/api disagree"


class Index(NotCopyable):
    """The index of one store."""

    def __init__(
        self,
        disk: Disk,
        tree: Tree,
        clock: Clock,
        geometry: Geometry,
        lag_bytes: int,
        *,
        has_tags: bool = False,
    ) -> None:
        self._disk = disk
        self._tree = tree
        self._clock = clock
        self.geometry = geometry
        self._lag_bytes = lag_bytes
        self._store_id = 0
        self.lock = Lock()
        self._saving = Lock()  # held while the position file is written
        self._restarts = 0
        self.files: list[IndexFile] = []
        self.begin = 0  # log offset of the first record in the index
        self.position = 0
        self._added = 0  # keys of records past `position` that a failed step has added
        self._making: Path | None = None  # the file that was made last, or is being made
        self._saved: IndexPosition | None = None
        self._array = np.empty(_CAPACITY, _KEY)
        self._entries = np.empty(_CAPACITY * ENTRY_BYTES, np.uint8)
        self.has_tags = has_tags
        at = ffi.cast("ts_key *", ffi.from_buffer(self._array))
        self.keys: Any = ffi.new(
            "ts_keys *", {"at": at, "capacity": _CAPACITY, "has_tags": has_tags}
        )

    @property
    def end_ms(self) -> int:
        """Store time of the newest message that has an entry; 0 without one."""
        return int(self.files[-1].native.end_ms) if self.files else 0

    # --- opening ---

    def recover(self, store_id: int, log_begin: int, log_end: int) -> None:
        """Continue from the position file, or restart if it does not fit the files or the log."""
        self._store_id = store_id
        self._disk.make_directory(self._tree.index)
        saved = index_position.read(self._disk.read_small(self._tree.index_position))
        try:
            if (
                saved is not None
                and (saved.store_id, saved.slot_count, saved.entry_count, saved.has_tags)
                == (store_id, *self.geometry, self.has_tags)
                and saved.begin <= log_begin <= saved.end <= log_end
            ):
                self._load(saved)
                return
        except (CorruptError, FailedError):
            pass  # a file is missing, too short or damaged
        self.restart(store_id, log_begin)

    def _load(self, saved: IndexPosition) -> None:
        files = [
            IndexFile.load(self._disk, self._tree.index / state.name, self.geometry, state)
            for state in saved.files
        ]
        for full in files[:-1]:
            if not full.is_full or full.slots_crc is None:
                raise CorruptError("index: an older file is not full", where=full.path)
        newest = files[-1] if files else None
        is_sealed = newest is None or (newest.is_full and newest.slots_crc is not None)
        if newest is not None and not is_sealed and newest.take_over():
            reach("recover_index_relinked")
        self._remove_others({state.name for state in saved.files})
        self.files = files
        self.begin, self.position = saved.begin, saved.end
        self._saved = saved

    def restart(self, store_id: int, log_begin: int) -> None:
        """Remove all files, durably. Records from `log_begin` on are then added again."""
        with self._saving, self.lock:
            self._restarts += 1
            self._store_id = store_id
            self._disk.make_directory(self._tree.index)
            self.files = []
            self._making = None
            self._remove_others(set())  # until the next step, the position names missing files
            # An opening after a kill learns the sizes of the new files from it.
            saved = IndexPosition(store_id, *self.geometry, self.has_tags, log_begin, log_begin, ())
            self._disk.write_small(self._tree.index_position, index_position.write(saved))
            self._saved = saved
            self.begin = self.position = log_begin
            self._added = 0
        reach("recover_index_removed")

    def _remove_others(self, names: set[str]) -> None:
        others = [n for n in self._disk.list(self._tree.index) if is_index_name(n)]
        for name in others:
            if name not in names:
                self._disk.unlink(self._tree.index / name)
        if others:
            self._disk.sync_directory(self._tree.index)

    # --- adding ---

    def gather(self) -> Any:
        """Return the empty key buffer, to which C adds keys of records past `position`."""
        self.keys.count = 0
        self.keys.begin = self.position
        return self.keys

    def take(self, end: int) -> None:
        """Add the gathered keys to the index, and set `position` to `end`.

        After a FullError it may be called again with the same keys gathered again. Keys that were
        added before are not added twice.
        """
        with self.lock:
            if self.files:
                self.files[-1].finish()
            count = int(self.keys.count)
            done = min(self._added, count)
            while done < count:
                file = self._taking()
                try:
                    taken = file.append(self.keys.at + done, count - done, self._entries)
                except BaseException:  # a signal handler raised, perhaps after the keys were linked
                    self._added += file.linked_count
                    raise
                done += taken
                self._added += taken
                file.finish()
            position = max(self.position, end)
            self._added -= count  # without a call before the next line, where a handler can raise
            self.position = position
        reach("dispatch_index_written")

    def _taking(self) -> IndexFile:
        """Return the file that takes entries. If the last one is full, create a new file."""
        last = self.files[-1] if self.files else None
        if last is not None and not last.is_full:
            return last
        if last is not None:
            last.seal()
        # After a signal handler or a full disk ended the last attempt, make the same file again.
        if self._making is None or (last is not None and self._making == last.path):
            name = index_name(self._clock.now_ms, None if last is None else last.path.name)
            self._making = self._tree.index / name
        file = IndexFile.make(self._disk, self._making, self.geometry, last)
        self.files.append(file)
        reach("dispatch_index_rolled")
        return file

    def catch_up(self, segments: Segments, end: int) -> None:
        """Add the keys of all records below `end`, the log offset of a record's end."""
        following = ffi.new("int64_t *")
        with segments.view(end) as view:
            while self.position < end:
                segments.call(
                    view, "index", lib.ts_index_keys,
                    self.position, following, _BATCH, self.gather(),
                )  # fmt: skip
                self.take(int(following[0]))

    # --- saving ---

    def save(self, log: CommitLog, *, is_clean: bool) -> None:
        """Save the position if it is far past the saved one, so that recovery begins here.

        is_clean: save it in any case, and write the slots, so that a broker can read the files.
        """
        lag_bytes = self.position - (self.begin if self._saved is None else self._saved.end)
        if not is_clean and lag_bytes < self._lag_bytes:
            return
        with self.lock:
            if self._added:
                return  # the last step failed; the next checkpoint tries again
            if is_clean and self.files:
                self.files[-1].write_slots()
            files, end, restarts = list(self.files), self.position, self._restarts
            states = tuple(file.state() for file in files)
            saved = IndexPosition(
                self._store_id, *self.geometry, self.has_tags, self.begin, end, states
            )
        if saved == self._saved:
            return
        for file in files:
            file.sync()
        reach("checkpoint_index_synced")
        log.sync_through(end)
        with self._saving:
            with self.lock:
                if self._restarts != restarts:
                    return
                present = {file.path.name for file in self.files}  # others were dropped since
            saved = saved._replace(files=tuple(one for one in saved.files if one.name in present))
            self._disk.write_small(self._tree.index_position, index_position.write(saved))
            self._saved = saved
        reach("checkpoint_index_saved")

    def drop_below(self, log_begin: int) -> bool:
        """Remove the first file if all its messages lie below log_begin; return whether it did.

        The last file stays. The position file stops naming a file before the file is unlinked.
        Durable on return.
        """
        with self._saving, self.lock:
            if len(self.files) < 2 or int(self.files[0].native.end_offset) >= log_begin:
                return False
            name, saved = self.files[0].path.name, self._saved
            if saved is not None and any(state.name == name for state in saved.files):
                kept = tuple(state for state in saved.files if state.name != name)
                saved = saved._replace(files=kept)
                self._disk.write_small(self._tree.index_position, index_position.write(saved))
                self._saved = saved
            del self.files[0]
        reach("retention_index_dropped")
        self._disk.unlink(self._tree.index / name)
        self._disk.sync_directory(self._tree.index)
        return True

    def close(self) -> None:
        """Release the files. A reader keeps its map until it is done."""
        self.files = []

    # --- looking up ---

    def find(
        self, topic: bytes, key: bytes, begin_ms: int = _INT64_MIN, end_ms: int = _INT64_MAX
    ) -> Iterator[Int64Array]:
        """Yield log offsets of messages that may have this key in this topic, newest first.

        begin_ms, end_ms: store times in ms since 1970, both inclusive.

        The caller must check each message: another key can have the same hash, and entries have
        times in seconds only.
        """
        key_hash = int(lib.ts_index_hash(topic, len(topic), key, len(key)))
        with self.lock:
            files = list(self.files)
            limits = [file.written for file in files]
            newest = files[-1].newest(key_hash) if files else 0
        for at in range(len(files) - 1, -1, -1):
            file = files[at]
            file.check()
            number = newest if at == len(files) - 1 else file.newest(key_hash)
            yield from file.walk(number, key_hash, limits[at], begin_ms, end_ms)

    def snapshot(self) -> "tuple[list[IndexFile], list[IndexFileState], bytes, int]":
        """Return the files, their states, the newest file's slots, and `position`, consistently."""
        with self.lock:
            files = list(self.files)
            slots = files[-1].copy_slots().tobytes() if files else b""
            return files, [file.state() for file in files], slots, self.position
