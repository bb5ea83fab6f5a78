"""Check the key index: built again from the log, in memory, it must have the same bytes.

This walks the log once more, and needs memory for the slots of one file.
"""

from typing import Any

import numpy as np

from timerstore._engine.base.native import address, ffi, lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.format.index_position import IndexFileState
from timerstore._engine.maintenance.findings import Findings, at_offset
from timerstore._engine.maintenance.store_view import LiveStore, StoreView
from timerstore._engine.queues.index_file import ENTRY_BYTES, HEADER_BYTES, Geometry, IndexFile
from timerstore._engine.queues.key_index import KEYS_MAX
from timerstore.errors import TimerStoreError

_KEY_BYTES = ffi.sizeof("ts_key")


def check_index(view: StoreView) -> None:
    """Compare every file of an open store's index with the log. Services go on during this."""
    store, findings = view.engine, view.findings
    index = None if store is None else store.dispatch.index
    if store is None or index is None or index.begin < store.log.segments.begin:
        return  # there is no index, or retention removed its first records
    files, states, slots, end = index.snapshot()
    remake = _Remake(findings, index.geometry, files, states, slots, has_tags=index.has_tags)
    try:
        remake.run(store, index.begin, end)
    except (TimerStoreError, OSError) as error:
        findings.raised("index", index.begin, error)
    findings.count("index entries", remake.entries)


class _Remake(Owner):
    def __init__(
        self,
        findings: Findings,
        geometry: Geometry,
        files: list[IndexFile],
        states: list[IndexFileState],
        newest_slots: bytes,
        *,
        has_tags: bool,
    ) -> None:
        self._findings = findings
        self._has_tags = has_tags
        self._geometry = geometry
        self._files = files
        self._states = states
        self._newest_slots = newest_slots
        self._capacity = 2 * KEYS_MAX
        self._keys = np.empty(self._capacity * _KEY_BYTES, np.uint8)
        self._entries = np.empty(self._capacity * ENTRY_BYTES, np.uint8)
        self._slots = np.zeros(4 * geometry.slot_count, np.uint8)
        self._pages = np.zeros(4 * geometry.slot_count // 4096 + 1, np.uint8)
        self._native: Any = ffi.new("ts_index *")
        self._native.slots = address(self._slots)
        self._native.dirty_pages = address(self._pages)
        self._native.slot_count = geometry.slot_count
        self._native.entry_count = geometry.entry_count
        self._native.next_entry = 1
        self._at = 0  # which file
        self.entries = 0

    def run(self, store: LiveStore, begin: int, end: int) -> None:
        """Walk [begin, end) of the log."""
        keys: Any = ffi.new("ts_keys *")
        keys.at = ffi.cast("ts_key *", ffi.from_buffer(self._keys))
        keys.capacity = self._capacity
        keys.has_tags = self._has_tags
        following = ffi.new("int64_t *", begin)
        segments = store.log.segments
        with segments.view(end) as view:
            while following[0] < end:
                keys.count = 0
                got = lib.ts_index_keys(view, following[0], following, KEYS_MAX, keys)
                if got < 0:
                    segments.serve(view, got, "check")
                elif not self._add(keys.at, int(keys.count)):
                    return
        self._finish()
        if self._at < len(self._files) - 1:
            self._wrong("index files", "none after it", len(self._files) - 1 - self._at)

    def _add(self, keys: Any, count: int) -> bool:
        """Compare the entries of these keys. Return False at the first difference."""
        done = 0
        while done < count:
            if self._native.next_entry >= self._native.entry_count and not self._next_file():
                return False
            if not self._files:
                self._findings.add("index", "the store", "a file", "none")
                return False
            first = int(self._native.next_entry)
            taken = int(
                lib.ts_index_append(self._native, keys + done, count - done, address(self._entries))
            )
            wanted = self._entries[: taken * ENTRY_BYTES].tobytes()
            got = self._files[self._at].read_entries(first, taken)
            self.entries += taken
            if wanted != got:
                a, b = (np.frombuffer(x, np.uint8).reshape(-1, ENTRY_BYTES) for x in (wanted, got))
                row = int(np.flatnonzero((a != b).any(axis=1))[0])
                where = at_offset(self._files[self._at].path, self._geometry.entry_at(first + row))
                self._findings.add(
                    "index entry", where, a[row].tobytes().hex(), b[row].tobytes().hex()
                )
                return False
            done += taken
        return True

    def _next_file(self) -> bool:
        self._finish()
        if self._at + 1 >= len(self._files):
            self._wrong("index files", "another after it", "none")
            return False
        self._at += 1
        self._slots[:] = 0
        native = self._native
        native.next_entry, native.slots_used = 1, 0
        native.begin_ms, native.begin_offset = native.end_ms, native.end_offset
        return True

    def _finish(self) -> None:
        """Compare slots and header of a file whose entries are complete."""
        if not self._files:
            return
        file, state = self._files[self._at], self._states[self._at]
        is_newest = self._at == len(self._files) - 1
        slots = self._newest_slots if is_newest else file.copy_slots().tobytes()
        if slots != self._slots.tobytes():
            a, b = np.frombuffer(slots, ">i4"), self._slots.view(">i4")
            slot = int(np.flatnonzero(a != b)[0])
            where = at_offset(file.path, HEADER_BYTES + 4 * slot)
            self._findings.add("index slot", where, int(b[slot]), int(a[slot]))
        out = ffi.new("uint8_t[]", HEADER_BYTES)
        lib.ts_index_header_put(self._native, out)
        wanted = bytes(ffi.buffer(out))
        headers = [file.header_of(state)]
        if state.slots_crc is not None:  # then the file has it too
            headers.append(file.read_header())
        for got in headers:
            if got != wanted:
                self._findings.add("index header", file.path, wanted.hex(), got.hex())

    def _wrong(self, what: str, wanted: object, got: object) -> None:
        self._findings.add(what, self._files[self._at].path, wanted, got)
