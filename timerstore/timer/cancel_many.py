"""Cancelling many at a time: what `Canceller` does, in C where the handles' hints settle it.

Data:     ts_named and ts_cancel_draft of native/api.h.
Threads:  any.
Locks:    the append lock, for at most 512 delete records at a time.
Holds:    each is cancelled as if alone, in the order in which they are given.
Fails:    FullError, CorruptError: those before it are cancelled, and say so when asked again.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from timerstore.clock import Clock
from timerstore.commitlog.commit_log import CommitLog
from timerstore.errors import GoneError
from timerstore.layout.handle import Handle
from timerstore.layout.queue_unit import read as read_units
from timerstore.message import CancelResult, Int64Array
from timerstore.native import ffi, lib, pointer
from timerstore.queues.dispatch import Dispatch
from timerstore.queues.removals import Removal, Removals
from timerstore.queues.routes import Route, Routes
from timerstore.timer.cancel import ANSWERS, Canceller

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
assert NAMED.itemsize == ffi.sizeof("ts_named"), "cancel_many.py and api.h disagree"
assert DRAFT.itemsize == ffi.sizeof("ts_cancel_draft"), "cancel_many.py and api.h disagree"

_CHUNK = 4096
_HOLD = 512
_TEXTS_BYTES = 1 << 20
_GAP_UNITS = 256  # two units no further apart are read together


class ManyCanceller:
    """Cancels pending messages of one store, many at a time."""

    def __init__(
        self,
        clock: Clock,
        log: CommitLog,
        dispatch: Dispatch,
        routes: Routes,
        timer_route: Route,
        precision_ms: int,
        canceller: Canceller,
        removals: Removals,
    ) -> None:
        self._clock = clock
        self._log = log
        self._dispatch = dispatch
        self._routes = routes
        self._queue = timer_route.queue
        self._precision_ms = precision_ms
        self._canceller = canceller
        self._removals = removals

    def cancel(self, handles: Sequence[Handle]) -> tuple[list[CancelResult], int]:
        """Give each one's answer, and the log offset that must be durable before they are true."""
        answers: list[CancelResult] = []
        end = 0
        for begin in range(0, len(handles), _CHUNK):
            some, end = self._some(handles[begin : begin + _CHUNK], end)
            answers += some
        return answers, end

    def _some(self, handles: Sequence[Handle], end: int) -> tuple[list[CancelResult], int]:
        named, names = self._named(handles)
        texts, drafts = np.empty(_TEXTS_BYTES, np.uint8), np.zeros(len(handles), DRAFT)
        answers: list[CancelResult] = []
        while len(answers) < len(handles):
            begin = len(answers)
            stop = begin + self._find(named[begin:], names, texts, drafts[begin:])
            while len(answers) < stop:
                at = len(answers)
                is_open = drafts["real"][at:stop] == 0
                settled = at + int(is_open.argmax()) if is_open.any() else stop
                if settled > at:
                    end = self._place(drafts[at:settled], texts)
                    states = drafts["state"][at:settled].tolist()
                    self._note_slots(handles[at:settled], states)
                    answers += [ANSWERS[state] for state in states]
                else:
                    answer, one_end = self._canceller.cancel(handles[at])
                    answers.append(answer)
                    end = max(end, one_end)
        return answers, end

    # --- who is meant ---

    def _named(self, handles: Sequence[Handle]) -> tuple[Any, bytes]:
        named = np.zeros(len(handles), NAMED)
        pairs = [(one.topic.encode(), one.message_id.encode()) for one in handles]
        named["timer_id"] = [-1 if one.timer_id is None else one.timer_id for one in handles]
        named["out_ms"] = [one.out_ms for one in handles]
        named["topic_size"] = [len(topic) for topic, _ in pairs]
        named["key_size"] = [len(key) for _, key in pairs]
        sizes = named["topic_size"].astype(np.int64) + named["key_size"]
        named["name_at"][1:] = np.cumsum(sizes)[:-1]
        named["log_offset"], named["size"] = self._places(named["timer_id"])
        return named, b"".join([part for pair in pairs for part in pair])

    def _places(self, timer_ids: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Log offset and size of the record at each timer id; -1 and 0 where there is none."""
        offsets = np.full(len(timer_ids), -1, np.int64)
        sizes = np.zeros(len(timer_ids), np.int64)
        if int(timer_ids.max(initial=-1)) >= self._queue.count:
            with self._log.lock:
                end = self._log.end
            self._dispatch.through(end)
        begin, count = self._queue.min_offset, self._queue.count
        there = np.flatnonzero((timer_ids >= begin) & (timer_ids < count))
        there = there[np.argsort(timer_ids[there], kind="stable")]
        ids = timer_ids[there]
        breaks = np.flatnonzero(np.diff(ids) > _GAP_UNITS) + 1
        for some in np.split(there, breaks):
            if not len(some):
                continue
            first, last = int(timer_ids[some[0]]), int(timer_ids[some[-1]])
            try:
                raw = self._queue.read(first, last - first + 1)
            except GoneError:
                continue  # removed a moment ago: what waited of it is found where it is now
            units = read_units(raw)[timer_ids[some] - first]
            offsets[some], sizes[some] = units["log_offset"], units["size"]
        self._log.written_through(int((offsets + sizes).max(initial=0)))
        return offsets, sizes

    def _find(self, named: Any, names: bytes, texts: Any, drafts: Any) -> int:
        """Look at as many as there is room for: how many; the texts begin anew."""
        with self._log.segments.view(self._log.written) as view:
            while True:
                got = lib.ts_cancels_find(
                    view,
                    self._routes.native,
                    self._precision_ms,
                    ffi.from_buffer("ts_named[]", named),
                    names,
                    len(named),
                    ffi.from_buffer("uint8_t[]", texts),
                    len(texts),
                    ffi.from_buffer("ts_cancel_draft[]", drafts),
                )
                if got > 0:
                    return int(got)
                self._log.segments.serve(view, got, "cancel")

    # --- cancelling ---

    def _place(self, drafts: Any, texts: Any) -> int:
        """Cancel what waits of these; the log's end behind what decided."""
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
                    min(len(drafts), done + _HOLD),
                    self._clock.now_ms,
                )
                need = int(self._log.native.need)
                if got > 0:
                    end = self._log.end
                    self._note(drafts[done : done + got])
            if got < 0:
                self._log.serve(got, need, "cancel")
            else:
                done += got
        return end

    def _note(self, drafts: Any) -> None:
        gone = drafts[drafts["state"] == lib.TS_WAITING]
        offsets, ids = gone["log_offset"].tolist(), gone["timer_id"].tolist()
        self._removals.note_many(list(map(Removal, offsets, ids)))

    def _note_slots(self, handles: Sequence[Handle], states: list[int]) -> None:
        counts = self._canceller.slot_counts
        if counts is not None:
            pairs = zip(handles, states, strict=True)
            gone = [one.out_ms + 1 for one, state in pairs if state == lib.TS_WAITING]
            counts.remove(np.array(gone, np.int64))
