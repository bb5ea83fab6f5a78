"""Data for the page from a store, or shards, that this process has open, or is connected to.

Thread safety: any thread. Statistics are read once for all concurrent pages. Calls that may read
    all pending messages run one at a time.
Raises: MessageError for an invalid request, and the errors of the store.
"""

import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice

import numpy as np

from timerstore._engine.base.metrics import LATE_MS
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format.handle import decode
from timerstore._engine.snapshot.live_stats import SYSTEM_TOPICS
from timerstore.dashboard.message_rows import content, row_of_message, row_of_pending
from timerstore.dashboard.rates import Rates, reading_of
from timerstore.dashboard.source import (
    DashboardSource,
    Json,
    groups_of,
    ring_of,
    topics_of,
    turn_of,
)
from timerstore.errors import ConfigError, MessageError
from timerstore.shards import ShardedStore
from timerstore.shards.receipt import join_handle, split_handle
from timerstore.store import ConnectedStore, TimerStore
from timerstore.types.clock import Clock, SystemClock
from timerstore.types.receipts import make_handle, out_ms
from timerstore.types.reports import CancelResult, Explanation, Histogram

Store = TimerStore | ShardedStore | ConnectedStore

ROWS_MAX = 500
_FOUND_MAX = 20
_TOPICS_TRIED = 200
_NEXT_MS = 3_600_000  # within this time the next due time is shown to the second

_BEHIND = (
    "enqueue_lag_messages",
    "enqueue_lag_ms",
    "delivery_lag_messages",
    "delivery_lag_ms",
    "dispatch_lag_bytes",
    "paced_messages",
    "service_retries",
    "retention_unconsumed_messages",
)


class OpenSource(NotCopyable, DashboardSource):
    """Data of a store, or shards, that this process has open."""

    def __init__(self, store: Store, *, read_only: bool, every_s: float) -> None:
        self._store = store
        self._parts: dict[int | None, TimerStore | ConnectedStore] = (
            dict(enumerate(store.stores)) if isinstance(store, ShardedStore) else {None: store}
        )
        self._first = next(iter(self._parts.values()))
        own = self._first
        self.clock: Clock = own.clock if isinstance(own, TimerStore) else SystemClock()
        self.is_read_only = read_only
        self._lock = threading.Lock()
        self._heavy = threading.Lock()
        self._rates = Rates()
        self._fresh_s = every_s / 2
        self._read_s = -1.0
        self._base: Json = {}

    def about(self) -> Json:
        """Return the facts that do not change while the page is open."""
        return {
            "path": _name_of(self._store),
            "shards": len(self._parts) if None not in self._parts else None,
            "mode": "open",
            "can_search": True,
            "read_only": self.is_read_only,
            "late_bounds_ms": LATE_MS,
            "clock_runs": not self.clock.by_hand,
        }

    def check_alive(self) -> None:
        """Raise FailedError if the store has failed and must be opened again. A served store fails
        in its server.
        """
        for one in self._parts.values():
            if isinstance(one, TimerStore) and one._log.failed is not None:
                raise one._log.failure()

    def now(self, turn: str, topic: str | None) -> Json:
        """Return the current statistics."""
        unit_ms, places = turn_of(turn)
        now_ms = self.clock.now_ms
        begin_ms = now_ms // unit_ms * unit_ms
        by = "second" if unit_ms < 60_000 else "minute"
        end_ms = begin_ms + unit_ms * places
        found = self._store.histogram(begin_ms, end_ms, by, topic)
        return {
            **self._numbers(),
            "now_ms": now_ms,
            "next_ms": self._next(now_ms, topic),
            "ring": ring_of(turn, begin_ms, found.counts.reshape(places, -1).sum(axis=1)),
        }

    def _numbers(self) -> Json:
        """Return the statistics that all pages share; read again after half of `every_s`."""
        with self._lock:
            now_s = time.monotonic()
            if now_s - self._read_s >= self._fresh_s or not self._base:
                self._base = self._read(now_s)
                self._read_s = now_s
            return self._base

    def _read(self, now_s: float) -> Json:
        stats = self._store.stats()
        self._rates.add(reading_of(stats, now_s))
        names = self._store.topics().keys() - SYSTEM_TOPICS
        late = self._rates.lateness()
        return {
            "pending": stats["pending_messages"],
            "late": stats["delivery_lag_messages"],
            **topics_of({**dict.fromkeys(names, 0), **stats["pending_by_topic"]}),
            **groups_of(stats),
            "lateness": late._asdict(),
            "put_per_s": self._rates.per_second("put"),
            "delivered_per_s": self._rates.per_second("delivered"),
            "history": self._rates.history(),
            "behind": {name: stats[name] for name in _BEHIND},
            "log_bytes": stats["log_end_bytes"] - stats["log_begin_bytes"],
        }

    def _next(self, now_ms: int, topic: str | None) -> int | None:
        """Return the next due time, to the second within an hour and to the minute within a day."""
        near = self._store.histogram(now_ms, now_ms + _NEXT_MS, "second", topic)
        at = _first(near)
        if at is None:
            at = _first(self._store.histogram(now_ms, now_ms + 24 * _NEXT_MS, "minute", topic))
        return at

    # --- messages ---

    def rows(self, begin_ms: int, end_ms: int, topic: str | None, limit: int) -> Json:
        """Return at most `limit` pending messages that are due in [begin_ms, end_ms)."""
        if not 1 <= limit <= ROWS_MAX:
            raise MessageError(f"max: wanted 1 to {ROWS_MAX}, got {limit}")
        with self._heavy:
            found = self._store.pending(begin_ms=begin_ms, end_ms=end_ms, topic=topic)
            rows = [row_of_pending(one) for one in islice(found, limit + 1)]
        return {"rows": rows[:limit], "has_more": len(rows) > limit}

    def search(self, text: str, topic: str | None) -> Json:
        """Find a message by its handle or id; or those of a key."""
        text = text.strip()
        if not text:
            raise MessageError("message: wanted a handle, a message id or a key, got nothing")
        with self._heavy:
            if (named := self._of_handle(text)) is not None:
                shard, topic, message_id = named
                return {"found": self._explained(topic, message_id, shard), "rows": []}
            topics = self._tried(topic)
            for one in topics:
                if found := self._explained(one, text):
                    return {"found": found, "rows": []}
            return {"found": [], "rows": list(islice(self._of_key(text, topics), _FOUND_MAX))}

    def _of_handle(self, text: str) -> tuple[int | None, str, str] | None:
        """Return shard, topic and message id if `text` is a handle."""
        try:
            shard = None
            if None not in self._parts:
                shard, text = split_handle(text, len(self._parts))
            handle = decode(text)
        except MessageError:
            return None
        return shard, handle.topic, handle.message_id

    def _tried(self, topic: str | None) -> list[str]:
        """Return the topics to search."""
        if topic is not None:
            return [topic]
        topics = sorted(self._store.topics().keys() - SYSTEM_TOPICS)
        if len(topics) > 1 and not _has_index(self._first, topics[0]):
            raise MessageError(
                "topic: choose one; without an index a search reads the store per topic"
            )
        if len(topics) > _TOPICS_TRIED:
            raise MessageError(f"topic: choose one; the store has {len(topics)}")
        return topics

    def _explained(self, topic: str, message_id: str, shard: int | None = None) -> list[Json]:
        parts = self._parts if shard is None else {shard: self._parts[shard]}
        found = ((k, one.explain(message_id, topic=topic)) for k, one in parts.items())
        return [self._described(k, one) for k, one in found if one.state != "unknown"]

    def _described(self, shard: int | None, found: Explanation) -> Json:
        handle = ""
        if found.state == "pending" and found.timer_id >= 0:
            handle = _handle_of(self._parts[shard], found)
        return {
            **asdict(found),
            "history": [one._asdict() for one in found.history],
            "handle": handle if shard is None else join_handle(shard, handle),
            "shard": shard,
            "message": self._looked_up(shard, found),
        }

    def _looked_up(self, shard: int | None, found: Explanation) -> Json | None:
        """Return body, tags and keys; None if there is no index to find them with."""
        try:
            copies = self._parts[shard].query(found.topic, found.message_id, max_count=1)
        except (ConfigError, MessageError):
            return None
        return content(copies[-1]) if copies else None

    def _of_key(self, text: str, topics: list[str]) -> Iterator[Json]:
        for topic in topics:
            for shard, one in self._parts.items():
                try:
                    found = one.query(topic, text, max_count=_FOUND_MAX)
                except (ConfigError, MessageError):
                    continue
                for message in reversed(found):
                    yield {**row_of_message(message), "shard": shard}

    def cancel(self, handle: str, message_id: str) -> Json:
        """Cancel the message with this handle, if `message_id` is its id."""
        assert not self.is_read_only
        named = self._of_handle(handle)
        if named is None:
            raise MessageError(
                f"handle: wanted the handle of a message of this store, got {handle!r:.80}"
            )
        if named[2] != message_id:
            raise MessageError(
                f"confirm: wanted the id of the handle's message, {named[2]!r:.80}, got "
                f"{message_id!r:.80}"
            )
        result: CancelResult = self._store.cancel(handle)
        return {"result": str(result), "message_id": message_id, "topic": named[1]}


def _first(found: Histogram) -> int | None:
    places = np.flatnonzero(found.counts)
    return int(found.edges[places[0]]) if len(places) else None


def _name_of(store: Store) -> str:
    if isinstance(store, ShardedStore):
        return str(store.root)
    return str(store.path) if isinstance(store, TimerStore) else str(getattr(store, "url", ""))


def _has_index(store: TimerStore | ConnectedStore, topic: str) -> bool:
    if isinstance(store, TimerStore):
        return store.config.index_enabled
    try:
        store.query(topic, "-", max_count=1)
    except ConfigError:
        return False
    return True


def _handle_of(store: TimerStore | ConnectedStore, found: Explanation) -> str:
    """Return the handle of a pending timer. Of a connected store it is read with the timer."""
    if isinstance(store, TimerStore):
        config = store.config
        stamp = out_ms(found.due_ms, config.precision_ms) + 1
        return make_handle(found.topic, config.broker_name, stamp, found.message_id, found.timer_id)
    due = store.pending(begin_ms=found.due_ms, end_ms=found.due_ms + 1, topic=found.topic)
    return next((one.handle for one in due if one.timer_id == found.timer_id), "")
