"""Delete a topic: its queues, its pending and leased messages, and the offsets of its groups.

    config/topics.json      "deleting orders"                   durable: from here on it is deleted
    delete records          cancel the pending messages and leases
    rmq_sys_timerstore_deleted    a record for orders, and one for each of its retry topics
    dispatch                comes to the record: empties the queues and removes their files
    consumerOffset.json     without the topics
    config/topics.json      without the topics; "orders is deleted below this log offset"

A crash before the first step leaves the topic whole. After it, the next opening does the steps
again. The record in the log is the deletion for all that is derived from the log: a rebuild comes
to it in its turn. Queue offsets begin at 0 after it. The records stay in the log until retention
removes their files; queries, keys and dead letters leave out those below the deletion.

Thread safety: any thread.
Locking: `_lock` during a deletion; the append lock for one record.
Invariants:
    1. Until a deletion is complete, a put to the topic raises BusyError. So no record of the new
       topic is before the record of the deletion, or before the checkpoint that follows it.
    2. No message of the topic is pending when its record is appended.
Raises: MessageError; BusyError and FullError: repeat the call.
See also: docs/decisions/0023-deleted-topics.md.
"""

from collections.abc import Callable
from contextlib import suppress

import numpy as np

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.message_fields import check_topic
from timerstore._engine.base.native import Lock, lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format.handle import decode
from timerstore._engine.format.lease import group_of, source_of
from timerstore._engine.format.recurring_json import Definition
from timerstore._engine.format.store_paths import DELETED_PROPERTY, DELETED_TOPIC
from timerstore._engine.log.retention import Retention
from timerstore._engine.queues.core import Core
from timerstore._engine.queues.dispatch import Dispatch
from timerstore._engine.queues.record_lookup import real_routes
from timerstore._engine.queues.routes import Route
from timerstore._engine.read.consumer_offsets import LeaseProgress, Offsets
from timerstore._engine.read.groups import Groups
from timerstore._engine.timer.checkpoint import Checkpoint
from timerstore._engine.timer.pending import PendingReader
from timerstore._engine.write.append import Appender
from timerstore._engine.write.cancel import ManyCanceller
from timerstore.errors import BusyError, FullError, MessageError

_ROUNDS_MAX = 100
"""A call that ran before the deletion may still move a lease in each round."""


class TopicDeleter(NotCopyable):
    """Deletes topics of one store."""

    def __init__(
        self,
        core: Core,
        dispatch: Dispatch,
        pending: PendingReader,
        canceller: ManyCanceller,
        appender: Appender,
        offsets: Offsets,
        progress: LeaseProgress,
        groups: Groups,
        forget_leases: Callable[[str], set[int]],
        definitions: Callable[[], list[Definition]],
        checkpoint: Checkpoint,
        retention: Retention,
    ) -> None:
        """`forget_leases`: returns the timers of last attempts, whose leases end as dead letters.

        `definitions`: returns the recurring definitions.
        """
        self._clock = core.clock
        self._log = core.log
        self._routes = core.routes
        self._dispatch = dispatch
        self._pending = pending
        self._canceller = canceller
        self._appender = appender
        self._offsets = offsets
        self._progress = progress
        self._groups = groups
        self._forget_leases = forget_leases
        self._definitions = definitions
        self._checkpoint = checkpoint
        self._retention = retention
        self._lock = Lock()
        self._last_attempts: set[int] = set()  # of deletions that are not complete

    def delete(self, topic: str) -> bool:
        """Delete a topic, as TimerStore.delete_topic."""
        check_topic(topic)
        if group_of(topic) is not None or source_of(topic) is not None:
            raise MessageError(
                f"topic: {topic!r} goes with the topic of its messages; wanted that one"
            )
        with self._lock:
            known = {*self._routes.topics(), *self._routes.deleting}
            if not any(topic in (one, source_of(one)) for one in known):
                return False
            if names := sorted(one.name for one in self._definitions() if one.topic == topic):
                raise MessageError(
                    f"topic: {topic!r} has recurring messages, got {', '.join(names)}; "
                    "cancel_every them first"
                )
            self._refuse_level_messages(topic)
            self._routes.save_deletions(
                self._log.segments.begin, self._clock.now_ms, begun=(topic,)
            )
            reach("delete_topic_begun")
            self._complete()
        return True

    def _refuse_level_messages(self, topic: str) -> None:
        count = sum(int(one.native.level_pending) for one in self._routes_of(topic))
        if count:
            raise BusyError(
                f"topic: {topic!r} has {count} messages of a fixed level, which cannot be "
                "cancelled; delete it when they are delivered"
            )

    def complete(self) -> None:
        """Complete the deletions that had begun when the store was opened.

        If that is not possible now, as on a full disk, puts to the topics raise BusyError.
        """
        with self._lock, suppress(BusyError, FullError):
            if self._routes.deleting:
                self._complete()

    def _complete(self) -> None:
        deleting = self._routes.deleting
        for topic in deleting:
            self._refuse_level_messages(topic)
        with self._retention.still():  # it would meet files that are being removed
            deleted = [one for one in self._routes.topics() if self._routes.is_deleting(one)]
            names = deleted
            self._appender.targets.forget(names)
            for _ in range(_ROUNDS_MAX):
                self._cancel_pending({*deleting, *deleted})
                reach("delete_topic_cancelled")
                names = [one for one in names if not self._append(one)]
                if not names:
                    break
            else:
                raise BusyError(f"topics: messages of {names} are still moved; repeat the call")
            reach("delete_topic_appended")
            end = self._log.end
            self._log.sync_through(end)
            self._dispatch.through(end)
            with self._progress.still():
                self._offsets.remove(self._routes.is_deleting)
            reach("delete_topic_offsets_removed")
            for topic in deleted:  # before a put can create it again
                self._groups.restart(topic)
            self._routes.save_deletions(
                self._log.segments.begin, self._clock.now_ms, ended=deleting
            )
            reach("delete_topic_ended")
            self._last_attempts.clear()
            # A crash before the next checkpoint costs a rebuild from the log.
            self._checkpoint.run()

    def _routes_of(self, topic: str) -> list[Route]:
        return [one for one in list(self._routes.by_index) if one.topic == topic]

    def _cancel_pending(self, deleted: set[str]) -> None:
        self._last_attempts.update(*map(self._forget_leases, deleted))
        entries = self._pending.entries()
        found = real_routes(
            self._log, self._routes, entries["log_offset"], entries["size"], is_level=False
        )
        topics = [one.topic for one in list(self._routes.by_index)]
        wanted = [at for at, one in enumerate(topics) if self._routes.is_deleting(one)]
        chosen = np.isin(found, wanted) | np.isin(entries["id"], sorted(self._last_attempts))
        handles = [self._pending.describe(one).handle for one in entries[chosen]]
        self._canceller.cancel(list(handles), lambda at: decode(handles[at]))

    def _append(self, topic: str) -> bool:
        """Append the record of the deletion; return False if a message is pending."""
        routes = self._routes_of(topic)
        record = self._routes.make(DELETED_TOPIC, 0, self._clock.now_ms)
        text = f"{DELETED_PROPERTY}\x01{topic}\x02".encode()
        body, is_pending = topic.encode(), False

        def append(native: object) -> int:
            nonlocal is_pending
            is_pending = any(one.native.pending for one in routes)
            if is_pending:
                return 0
            got = int(
                lib.ts_put_one(
                    native, record.native, body, len(body), 0, text, len(text), self._clock.now_ms
                )
            )
            if got >= 0:
                self._progress.forget(topic)
                for one in routes:
                    one.native.next_offset = 0
            return got

        self._log.append("delete_topic", append)
        return not is_pending
