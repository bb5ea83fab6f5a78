"""Delete a topic: its queues, its pending and leased messages, and the offsets of its groups.

    in memory               "deleting orders"                   calls raise BusyError
    config/topics.json      the same                            durable: from here on it is deleted
    delete records          cancel the pending messages and leases
    rmq_sys_timerstore_deleted    a record for orders, and one for each of its retry topics
    dispatch                comes to the record: empties the queues and removes their files
    consumerOffset.json     without the topics
    config/topics.json      without the topics; "orders is deleted below this log offset"

A refused call ends before the second step, and changes nothing. A crash before it leaves the topic
whole. After it, the next opening does the steps again. The record in the log is the deletion for
all that is derived from the log: a rebuild comes to it in its turn. Queue offsets begin at 0 after
it. The records stay in the log until retention removes their files; queries, keys and dead letters
leave out those below the deletion.

Thread safety: any thread.
Locking: `_lock` during a deletion; the append lock for one record.
Invariants:
    1. From the first step on, a call that puts to the topic, leases its messages or moves their
       leases raises BusyError, and a commit of offsets has no effect. A put without a level that
       has already its queue goes on: its message is deleted, or the first of the new topic.
    2. No message of the topic is pending when its records are appended, and none is leased.
Raises: MessageError; BusyError: nothing was changed; FullError: repeat the call.
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
from timerstore._engine.format.lease import (
    DEAD_LETTER_PREFIX,
    TOPIC_PROPERTY,
    group_of,
    source_of,
)
from timerstore._engine.format.recurring_json import Definition
from timerstore._engine.format.store_paths import DELETED_PROPERTY, DELETED_TOPIC
from timerstore._engine.queues.core import Core
from timerstore._engine.queues.dispatch import Dispatch
from timerstore._engine.queues.record_lookup import real_routes, record_fields
from timerstore._engine.read.consumer_offsets import LeaseProgress
from timerstore._engine.read.groups import Groups
from timerstore._engine.timer.checkpoint import Checkpoint
from timerstore._engine.timer.log_retention import Retention
from timerstore._engine.timer.pending import PendingReader
from timerstore._engine.write.append import Appender
from timerstore._engine.write.cancel import ManyCanceller
from timerstore.errors import BusyError, FullError, MessageError
from timerstore.types.messages import parse_properties

_ROUNDS_MAX = 100
"""A call that ran before the deletion may still move a message in each round."""


class TopicDeleter(NotCopyable):
    """Deletes topics of one store."""

    def __init__(
        self,
        core: Core,
        dispatch: Dispatch,
        pending: PendingReader,
        canceller: ManyCanceller,
        appender: Appender,
        progress: LeaseProgress,
        groups: Groups,
        forget_groups: Callable[[str], None],
        definitions: Callable[[], list[Definition]],
        checkpoint: Checkpoint,
        retention: Retention,
    ) -> None:
        """`forget_groups`: as GroupBacklogs.forget. `definitions`: returns the recurring
        definitions.
        """
        self._clock = core.clock
        self._log = core.log
        self._routes = core.routes
        self._dispatch = dispatch
        self._pending = pending
        self._canceller = canceller
        self._appender = appender
        self._progress = progress
        self._groups = groups
        self._forget_groups = forget_groups
        self._definitions = definitions
        self._checkpoint = checkpoint
        self._retention = retention
        self._lock = Lock()

    def delete(self, topic: str, end_calls: Callable[[], None]) -> bool:
        """Delete a topic, as TimerStore.delete_topic.

        end_calls: returns when no call that began before uses messages of the topic.
        """
        check_topic(topic)
        if group_of(topic) is not None or source_of(topic) is not None:
            raise MessageError(
                f"topic: {topic!r} goes with the topic of its messages; wanted that one"
            )
        with self._lock:
            self._log.check_alive()  # else it may wait for a delivery that does not come
            known = {*self._routes.topics(), *self._routes.deleting}
            if not any(topic in (one, source_of(one)) for one in known):
                return False
            if topic not in self._routes.deleting:
                self._begin(topic, end_calls)
            self._complete()
        return True

    def check(self, topic: str) -> None:
        """Raise the error of a deletion that is refused."""
        check_topic(topic)
        if names := sorted(one.name for one in self._definitions() if one.topic == topic):
            raise MessageError(
                f"topic: {topic!r} has recurring messages, got {', '.join(names)}; "
                "cancel_every them first"
            )
        routes = [one for one in list(self._routes.by_index) if one.topic == topic]
        with self._log.lock:
            count = sum(int(one.native.level_pending) for one in routes)
        if count:
            raise BusyError(
                f"topic: {topic!r} has {count} messages of a fixed level, which cannot be "
                "cancelled; delete it when they are delivered"
            )

    def _begin(self, topic: str, end_calls: Callable[[], None]) -> None:
        """Refuse the deletion, or make it durable that it has begun."""
        deleting = self._routes.deleting
        deleting.add(topic)
        try:
            self._deleted_topics()
            end_calls()
            self.check(topic)  # from here on no message of a level is appended
            self._routes.save_deletions(self._log.segments.begin, self._clock.now_ms)
        except BaseException:
            deleting.discard(topic)
            raise
        reach("delete_topic_begun")

    def complete(self) -> None:
        """Complete the deletions that had begun when the store was opened.

        If that is not possible now, as on a full disk, puts to the topics raise BusyError.
        """
        with self._lock, suppress(BusyError, FullError):
            if self._routes.deleting:
                self._complete()

    def _complete(self) -> None:
        deleting = set(self._routes.deleting)
        with self._retention.still():  # it would meet files that are being removed
            deleted = left = self._deleted_topics()
            for _ in range(_ROUNDS_MAX):
                if self._cancel_pending():
                    continue
                reach("delete_topic_cancelled")
                left = [one for one in left if not self._append(one)]
                if not left:
                    break
            else:
                raise BusyError(f"topics: messages of {left} are still moved; repeat the call")
            reach("delete_topic_appended")
            end = self._log.end
            self._log.sync_through(end)
            self._dispatch.through(end)
            self._progress.remove_deleting()
            reach("delete_topic_offsets_removed")
            for topic in deleted:  # before a put can create it again
                self._groups.restart(topic)
                self._forget_groups(topic)
            self._routes.save_deletions(self._log.segments.begin, self._clock.now_ms, deleting)
            reach("delete_topic_ended")
            # A crash before the next checkpoint costs a rebuild from the log.
            self._checkpoint.run()

    def _deleted_topics(self) -> list[str]:
        """Return the topics that are being deleted, with the topics of retries and half messages.
        Puts to them raise BusyError from here on.
        """
        deleted = [one for one in self._routes.topics() if self._routes.is_deleting(one)]
        self._appender.targets.forget(deleted)
        return deleted

    def _cancel_pending(self) -> bool:
        """Cancel the pending messages and leases; return whether there were any."""
        entries = self._pending.entries()
        found = real_routes(
            self._log, self._routes, entries["log_offset"], entries["size"], is_level=False
        )
        topics = [one.topic for one in list(self._routes.by_index)]
        deleted = [at for at, one in enumerate(topics) if self._routes.is_deleting(one)]
        dead = [at for at, one in enumerate(topics) if one.startswith(DEAD_LETTER_PREFIX)]
        chosen = np.isin(found, deleted)
        for at in np.flatnonzero(np.isin(found, dead)):
            chosen[at] = self._is_last_attempt(int(entries["log_offset"][at]))
        handles = [self._pending.describe(one).handle for one in entries[chosen]]
        self._canceller.cancel(list(handles), lambda at: decode(handles[at]))
        return bool(handles)

    def _is_last_attempt(self, log_offset: int) -> bool:
        """Return whether a timer of a dead-letter topic is the lease of a message that goes."""
        segments = self._log.segments
        with segments.view(self._log.written_through(log_offset + 1)) as view:
            text = record_fields(segments, view, log_offset)[2]
        return self._routes.is_deleting(parse_properties(text).get(TOPIC_PROPERTY, ""))

    def _append(self, topic: str) -> bool:
        """Append the record of the deletion; return False if a message is pending."""
        is_deleting = self._routes.is_deleting
        routes = [one for one in list(self._routes.by_index) if is_deleting(one.topic)]
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
                for one in routes:
                    if one.topic == topic:
                        one.native.next_offset = 0
            return got

        self._log.append("delete_topic", append)
        return not is_pending
