"""Cancel a pending message by a delete record, which a RocketMQ broker understands too.

Thread safety: any thread.
Locking: the append lock, for one record.
Invariants:
    1. A result is returned to the caller only once the record that it depends on is durable.
Raises: MessageError for a malformed handle; FullError, before anything is changed.
See also: docs/exactly-once.md, docs/file-format.md, and
docs/decisions/0009-leases-replace-and-recurring.md.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from timerstore._engine.base.native import ffi, lib, pointer, read_handles
from timerstore._engine.format.handle import Handle
from timerstore._engine.format.queue_unit import UNIT_BYTES
from timerstore._engine.format.queue_unit import read as read_units
from timerstore._engine.queues.core import Core
from timerstore._engine.queues.dispatch import Dispatch, PendingDeletes
from timerstore._engine.timer.handle_lookup import FoundTimer, HandleLookup
from timerstore._engine.timer.slot_counts import SlotCounts
from timerstore.errors import GoneError
from timerstore.types.messages import Int64Array
from timerstore.types.receipts import PutReceipt, ReceiptOrigin
from timerstore.types.reports import CancelResult

# --- cancel ---


ANSWERS = {
    lib.TS_NONE: CancelResult.UNKNOWN,
    lib.TS_PENDING: CancelResult.CANCELLED,
    lib.TS_DELIVERED: CancelResult.ALREADY_DELIVERED,
    lib.TS_CANCELLED: CancelResult.ALREADY_CANCELLED,
}
"""The result by the state of the timer id."""


def delete_properties(one: FoundTimer) -> bytes:
    """Return the properties of the delete record that a broker writes too."""
    topic, key = one.real.topic.encode("ascii"), one.message_id.encode()
    size_max = 2 * (len(topic) + len(key)) + lib.TS_DELETE_TEXT_BYTES
    text = ffi.new("uint8_t[]", size_max)
    size = lib.ts_delete_text(
        text, size_max, topic, len(topic), key, len(key), one.real.queue_id, one.out_ms
    )
    assert size > 0, "the buffer is large enough"
    return bytes(ffi.buffer(text, size))


def leaving(call: Callable[..., int], one: FoundTimer, due_ms: int = 0) -> Callable[..., int]:
    """Wrap a C call that ends a pending timer, or moves it to `due_ms`.

    The wrapper updates the calendar in the same critical section.
    """

    def counted(native: Any, *arguments: Any) -> int:
        if not lib.ts_calendar_fits(native, 2):
            native.need = 0
            return int(lib.TS_NEED_STATES)
        state = call(native, *arguments)
        if state == lib.TS_PENDING:
            lib.ts_calendar_leave(native, one.real.native, one.timer_id, one.due_ms)
            if due_ms:
                lib.ts_calendar_count(native, one.real.native, due_ms, 1)
        return state

    return counted


class Canceller:
    """Cancels pending messages of one store."""

    def __init__(
        self,
        core: Core,
        finder: HandleLookup,
        removals: PendingDeletes,
        slot_counts: SlotCounts | None,
    ) -> None:
        """`slot_counts`: None without flow control."""
        self._clock = core.clock
        self._log = core.log
        self._finder = finder
        self._removals = removals
        self.slot_counts = slot_counts

    def cancel(self, handle: Handle) -> tuple[CancelResult, int]:
        """Return the result, and the log offset that must be durable before it may be returned.

        If a broker's handle names several messages, cancel all of them, as a broker does.
        """
        if handle.timer_id == -1:  # it was due when it was put
            return CancelResult.ALREADY_DELIVERED, 0
        answer, end = CancelResult.UNKNOWN, 0
        for one in self._finder.find(handle):
            found, end = self.cancel_handle(one)
            if answer is not CancelResult.CANCELLED:
                answer = found
        return answer, end

    def cancel_handle(self, one: FoundTimer) -> tuple[CancelResult, int]:
        """Cancel a message that was found already; return as `cancel` does."""
        text = delete_properties(one)
        state, _, end = self._log.append(
            "cancel",
            leaving(self._removals.noting(lib.ts_cancel, one.timer_id), one),
            one.real.native,
            one.timer_id,
            text,
            len(text),
            self._clock.now_ms,
        )
        if state == lib.TS_PENDING and self.slot_counts is not None:
            self.slot_counts.remove(one.out_ms + 1)
        return ANSWERS[state], end


# --- cancel many ---
# Cancel many messages at a time, in C where the hints in the handles suffice.
#
#     receipts and handles -> names (ts_handle) -> drafts (ts_cancel_draft) -> delete records
#
# Other handles are cancelled one by one by `Canceller`.
#
# Thread safety: any thread.
# Locking: the append lock, for at most 512 delete records at a time.
# Invariants:
#     1. Each message is cancelled as by a call of its own, in the given order.
#     2. A hint only says where to look: the record there must be the named one.
# Raises: MessageError for a malformed handle, before any message is cancelled. FullError and
# CorruptError: the messages before it are cancelled, and a repeated call says so.


NAMED = np.dtype(
    [
        ("timer_id", np.int64),
        ("out_ms", np.int64),
        ("log_offset", np.int64),
        ("name_at", np.int64),
        ("size", np.int32),
        ("topic_size", np.int32),
        ("key_size", np.int32),
        ("unused", np.int32),
    ]
)
DRAFT = np.dtype(
    [
        ("real", np.int64),
        ("timer_id", np.int64),
        ("due_ms", np.int64),
        ("log_offset", np.int64),
        ("text_at", np.int64),
        ("text_size", np.int32),
        ("state", np.int32),
    ]
)
assert NAMED.itemsize == ffi.sizeof("ts_handle"), "cancel.py and native/api disagree"
assert DRAFT.itemsize == ffi.sizeof("ts_cancel_draft"), "cancel.py and native/api disagree"

_CHUNK = 4096
_BATCH = 512
"""Delete records appended in one critical section, at most."""
_TEXTS_BYTES = 1 << 20
_GAP_UNITS = 512
"""Units with at most this distance are read together: reading the gap costs as much as a call."""


class ManyCanceller:
    """Cancels pending messages of one store, many at a time."""

    def __init__(
        self, core: Core, dispatch: Dispatch, canceller: Canceller, removals: PendingDeletes
    ) -> None:
        self._clock = core.clock
        self._log = core.log
        self._dispatch = dispatch
        self._routes = core.routes
        self._queue = core.timer_route.queue
        self._precision_ms = core.config.precision_ms
        self._canceller = canceller
        self._removals = removals

    def cancel(
        self, given: list[PutReceipt | str], read: Callable[[int], Handle]
    ) -> tuple[list[CancelResult], int]:
        """Return the results, and the log offset that must be durable before they may be returned.

        read: returns the decoded handle at a position of `given`.
        """
        names = _read_names(given, read)
        answers: list[CancelResult] = []
        end = 0
        for begin in range(0, len(given), _CHUNK):
            some, end = self._some(names, begin, min(begin + _CHUNK, len(given)), end)
            answers += some
        return answers, end

    def _some(self, given: "_Names", begin: int, end: int, log_end: int) -> tuple[Any, int]:
        named = given.named[begin:end]
        self._set_places(named)
        texts, drafts = np.empty(_TEXTS_BYTES, np.uint8), np.empty(len(named), DRAFT)
        answers: list[CancelResult] = []
        while len(answers) < len(named):
            at = len(answers)
            stop = at + self._find(named[at:], given.names, texts, drafts[at:])
            while (at := len(answers)) < stop:
                is_open = drafts["real"][at:stop] == 0
                settled = at + int(is_open.argmax()) if is_open.any() else stop
                if settled > at:
                    log_end = self._place(drafts[at:settled], texts)
                    states = drafts["state"][at:settled]
                    if (counts := self._canceller.slot_counts) is not None:
                        counts.remove(named["out_ms"][at:settled][states == lib.TS_PENDING] + 1)
                    answers += [ANSWERS[state] for state in states.tolist()]
                else:
                    answer, one_end = self._canceller.cancel(given.read(begin + at))
                    answers.append(answer)
                    log_end = max(log_end, one_end)
        return answers, log_end

    # --- where it is ---

    def _set_places(self, named: Any) -> None:
        """Set log offset and size of each timer's record; -1 and 0 if the record is gone.

        A receipt has its own; for a handle they are read from the queue.
        """
        which = np.flatnonzero((named["log_offset"] < 0) & (named["timer_id"] >= 0))
        if len(which):
            offsets, sizes = self._units_at(named["timer_id"][which])
            named["log_offset"][which], named["size"][which] = offsets, sizes
        ends = named["log_offset"] + np.maximum(named["size"], 1)
        self._log.written_through(int(ends.max(initial=0)))

    def _units_at(self, timer_ids: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return log offsets and sizes of the queue's units; -1 and 0 for units that are gone."""
        if int(timer_ids.max()) >= self._queue.count:
            with self._log.lock:
                end = self._log.end
            self._dispatch.through(end)
        begin, count = self._queue.min_offset, self._queue.count
        order = np.argsort(timer_ids, kind="stable")
        ids = timer_ids[order]
        low, high = np.searchsorted(ids, [begin, count]).tolist()
        order, ids = order[low:high], ids[low:high]
        offsets = np.full(len(timer_ids), -1, np.int64)
        sizes = np.zeros(len(timer_ids), np.int64)
        if not len(ids):
            return offsets, sizes
        cuts = np.flatnonzero(np.diff(ids) > _GAP_UNITS) + 1
        firsts = ids[np.concatenate(([0], cuts))]
        counts = ids[np.concatenate((cuts - 1, [len(ids) - 1]))] - firsts + 1
        pieces = map(self._units, firsts.tolist(), counts.tolist())
        units = read_units(b"".join(pieces))
        # Position of a piece among the units that were read, minus the first id of the piece.
        moves = np.cumsum(counts) - counts - firsts
        found = units[ids + np.repeat(moves, np.diff(np.concatenate(([0], cuts, [len(ids)]))))]
        is_there = found["size"] > 0
        offsets[order] = np.where(is_there, found["log_offset"], -1)
        sizes[order] = found["size"]
        return offsets, sizes

    def _units(self, first: int, count: int) -> bytes:
        try:
            return self._queue.read(first, count)
        except GoneError:  # removed just now: pending messages are found at their new places
            return bytes(count * UNIT_BYTES)

    # --- cancelling ---

    def _find(self, named: Any, names: bytearray, texts: Any, drafts: Any) -> int:
        """Draft the cancels of as many messages as fit into `texts`; return their count."""
        with self._log.segments.view(self._log.written) as view:
            return self._log.segments.call(
                view,
                "cancel",
                lib.ts_cancels_find,
                self._routes.native,
                self._precision_ms,
                ffi.from_buffer("ts_handle[]", named),
                ffi.from_buffer("uint8_t[]", names),
                len(named),
                ffi.from_buffer("uint8_t[]", texts),
                len(texts),
                ffi.from_buffer("ts_cancel_draft[]", drafts),
                at_least=1,
            )

    def _place(self, drafts: Any, texts: Any) -> int:
        """Cancel the pending messages of these; return the log offset that must be durable."""
        native_drafts = pointer("ts_cancel_draft[]", drafts)
        native_texts = pointer("uint8_t[]", texts)
        done = end = 0
        while done < len(drafts):
            with self._log.lock:
                got = lib.ts_cancels_place(
                    self._log.native,
                    native_texts,
                    native_drafts,
                    done,
                    min(len(drafts), done + _BATCH),
                    self._clock.now_ms,
                )
                need = int(self._log.native.need)
                if got > 0:
                    end = self._log.end
                    self._note(drafts[done : done + got])
            if got < 0:
                self._log.provide(got, need, "cancel")
            else:
                done += got
        return end

    def _note(self, drafts: Any) -> None:
        gone = drafts[drafts["state"] == lib.TS_PENDING]
        offsets, ids = gone["log_offset"].tolist(), gone["timer_id"].tolist()
        self._removals.note_many(list(zip(offsets, ids, strict=True)))


class _Names(NamedTuple):
    """The names of all messages to cancel."""

    named: Any  # ts_handle, by position
    names: bytearray
    read: Callable[[int], Handle]


def _read_names(given: list[PutReceipt | str], read: Callable[[int], Handle]) -> _Names:
    """Read the names of all messages; C reads receipts, and handles in the form that we write."""
    named, names = np.empty(len(given), NAMED), bytearray()
    at = 0
    while True:
        at = read_handles(given, at, named, names, PutReceipt, ReceiptOrigin)
        if at == len(given):
            return _Names(named, names, read)
        one = read(at)
        topic, key = one.topic.encode(), one.message_id.encode()
        timer_id = -1 if one.timer_id is None else one.timer_id
        named[at] = timer_id, one.out_ms, -1, len(names), 0, len(topic), len(key), 0
        names += topic + key
        at += 1
