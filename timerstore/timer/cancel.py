"""Cancel: from a handle to the id, and the delete record that a broker honours too.

Threads:  any.
Locks:    the append lock for the one record.
Holds:    (1) topic and message id decide, the handle's timer id is a hint where to look first;
          (2) the answer is given when what it rests on is durable.
Fails:    MessageError on a handle that is none; FullError before anything is changed.
Source:   exactly-once.md section 4, store-format.md 11.
"""

from typing import Any, NamedTuple

from timerstore.clock import Clock
from timerstore.commitlog.commit_log import CommitLog
from timerstore.commitlog.recover import scan_batches
from timerstore.errors import CorruptError
from timerstore.layout.handle import Handle
from timerstore.message import CancelResult, parse_properties
from timerstore.native import lib, raise_status
from timerstore.queues.dispatch import Dispatch
from timerstore.queues.lookup import record_fields, route_needed
from timerstore.queues.routes import Route, Routes
from timerstore.timer.states import States

_ANSWERS = {
    lib.TS_HANDED: CancelResult.ALREADY_DELIVERED,
    lib.TS_CANCELLED: CancelResult.ALREADY_CANCELLED,
}


class _Target(NamedTuple):
    timer_id: int
    real: Route
    out_ms: int


class Canceller:
    """Cancels pending messages of one store."""

    def __init__(
        self,
        clock: Clock,
        log: CommitLog,
        dispatch: Dispatch,
        routes: Routes,
        timer_route: Route,
        states: States,
        store_id: int,
        precision_ms: int,
    ) -> None:
        self._clock = clock
        self._log = log
        self._dispatch = dispatch
        self._routes = routes
        self._timer_route = timer_route
        self._states = states
        self._store_id = store_id
        self._precision_ms = precision_ms

    def cancel(self, handle: Handle) -> tuple[CancelResult, int]:
        """Give the answer and the log offset that must be durable before it is true."""
        if handle.timer_id == -1:  # it was due when it was put
            return CancelResult.ALREADY_DELIVERED, 0
        target = self._find(handle)
        if target is None:
            return CancelResult.UNKNOWN, 0
        key = handle.message_id.encode()
        topic = target.real.topic.encode("ascii")
        text = (
            b"TAGS\x01_RECALL_TAG_\x02UNIQ_KEY\x01%s\x02TIMER_DELIVER_MS\x01%d\x02"
            b"TIMER_OUT_MS\x01%d\x02REAL_TOPIC\x01%s\x02REAL_QID\x01%d\x02"
            b"TIMER_DEL_UNIQKEY\x01%s+%s\x02"
        ) % (key, target.out_ms + 1, target.out_ms, topic, target.real.queue_id, topic, key)
        while True:
            with self._log.lock:
                got = lib.ts_cancel(
                    self._log.native,
                    target.real.native,
                    target.timer_id,
                    text,
                    len(text),
                    self._clock.now_ms,
                )
                need, end = int(self._log.native.need), self._log.end
            if got >= 0:
                return CancelResult.CANCELLED, end
            if got == lib.TS_NEED_ROOM:
                self._log.make_room(need)
            elif got == lib.TS_NEED_STATES:
                self._states.ensure(need)
            elif got == lib.TS_INVALID:
                return _ANSWERS.get(need, CancelResult.UNKNOWN), end
            else:
                raise_status(got, "cancel")

    def _find(self, handle: Handle) -> _Target | None:
        if handle.timer_id is not None and handle.timer_id >= 0:
            found = self._source_at(handle, handle.timer_id)
            if found is not None:
                return found
        # A broker's handle, or one whose id was given to another message after a power cut.
        return self._search(handle)

    def _source_at(self, handle: Handle, timer_id: int) -> _Target | None:
        queue = self._timer_route.queue
        if timer_id >= queue.count:
            with self._log.lock:
                end = self._log.end
            self._dispatch.through(end)
        if not queue.min_offset <= timer_id < queue.count:
            return None
        unit = queue.read(timer_id, 1)
        log_offset = int.from_bytes(unit[:8], "big")
        try:
            with self._log.segments.view(self._log.write_out()) as view:
                _, _, text = record_fields(self._log.segments, view, log_offset)
        except CorruptError:
            if log_offset < self._log.segments.begin:
                return None
            raise
        return self._match(handle, text, timer_id)

    def _match(self, handle: Handle, text: bytes, timer_id: int) -> _Target | None:
        properties = parse_properties(text)
        real, number = properties.get("REAL_TOPIC"), properties.get("REAL_QID", "")
        if (
            real != handle.topic
            or properties.get("UNIQ_KEY") != handle.message_id
            or "TIMER_DEL_UNIQKEY" in properties
            or not number.isdecimal()
        ):
            return None
        out_ms = properties.get("TIMER_OUT_MS", "")
        route = self._routes.make(real, int(number), self._clock.now_ms)
        return _Target(timer_id, route, int(out_ms) if out_ms.isdecimal() else handle.out_ms)

    def _search(self, handle: Handle) -> _Target | None:
        """Look through the whole log: the newest copy whose id has a state."""
        wanted = f"{handle.topic}+{handle.message_id}".encode()
        identity = lib.ts_identity(wanted, len(wanted))
        with self._log.lock:
            end = self._log.end
        self._dispatch.through(end)
        found = None
        segments = self._log.segments
        for part, _, _ in scan_batches(
            segments,
            lambda: self._routes.native,
            self._serve_route,
            self._precision_ms,
            segments.begin,
            self._log.written,
        ):
            is_copy = (part["identity"] == identity) & (part["kind"] == lib.TS_KIND_TIMER)
            for record in part[is_copy]:
                own = record["timer_id"] >= 0 and record["store_id"] == self._store_id
                timer_id = int(record["timer_id"] if own else record["queue_offset"])
                if self._states.get(timer_id) == lib.TS_NONE:
                    continue  # an older copy of one that rolled
                with segments.view(self._log.written) as view:
                    _, _, text = record_fields(segments, view, int(record["log_offset"]))
                found = self._match(handle, text, timer_id) or found
        return found

    def _serve_route(self, view: Any) -> None:
        route_needed(self._log.segments, view, self._routes, self._clock.now_ms)
