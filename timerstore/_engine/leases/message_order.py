"""Keep the order of message groups: which messages of a queue a group may get now.

    queue 3    a1 b1 a2 c1       a1 and b1 are handed out; a2 waits for a1, and c1 behind it
               retry topic, 4    a1 comes again from here, at any time
               a1 is acked       a2 and c1 are next

The retries of the message groups of a queue, and the timers of their leases, are in one queue of
the retry topic or the dead-letter topic, apart from messages without a group. So the engine's
counts of pending timers and of messages tell, also after a crash, whether any of them is leased or
waits for its retry. Only then the names in memory are asked, which may be too many: a queue whose
last lease is over forgets them.

Thread safety: one thread at a time, but `settled` may be called by any.
Locking: `_lock` for the names; the append lock, for the counts of one queue.
Invariants:
    1. A message group has at most one message of a queue that is leased or waits for its retry.
See also: docs/decisions/0021-message-groups.md.
"""

from collections.abc import Callable, Sequence

from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format.lease import dead_letter_topic, lease_queue_of, retry_topic
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.queues.routes import Routes
from timerstore.types.messages import Message

_GROUPS_MAX = 10_000  # names kept for a queue; with more, it hands out nothing new until it is idle


class _Begun:
    """The messages of one queue that were handed out since it was idle, without those settled."""

    def __init__(self) -> None:
        self.ids: dict[str, set[str]] = {}  # by message group
        self.names: dict[str, str | None] = {}  # by message id; None: of several message groups


class MessageOrder(NotCopyable):
    """The order of the message groups of one topic for one group."""

    def __init__(
        self,
        log: CommitLog,
        routes: Routes,
        topic: str,
        group: str,
        retry_position: Callable[[int], int],
    ) -> None:
        """`retry_position`: returns the offset after the last retry that was handed out."""
        self._log = log
        self._routes = routes
        self._retry_topic = retry_topic(topic, group)
        self._lease_topics = (self._retry_topic, dead_letter_topic(group))
        self._retry_position = retry_position
        self._lock = Lock()
        self._begun: dict[int, _Begun] = {}  # by the queue of the leases

    def free_count(self, queue_id: int, messages: Sequence[Message]) -> int:
        """Return how many of a queue's next messages may be leased now: the first ones."""
        lease_queue_id = lease_queue_of(queue_id)
        begun = self._begun.get(lease_queue_id)
        chosen: set[str] = set()
        for count, one in enumerate(messages):
            name = one.message_group
            if name is None:
                continue
            if begun is None or name in begun.ids or len(begun.ids) >= _GROUPS_MAX:
                if chosen or not self._is_idle(lease_queue_id):
                    return count
                begun = self._begun[lease_queue_id] = _Begun()
            elif name in chosen:
                return count
            chosen.add(name)
        return len(messages)

    def _is_idle(self, queue_id: int) -> bool:
        """Return whether no timer of a queue of leases is pending, and no retry waits in it."""
        position = self._retry_position(queue_id)
        with self._log.lock:
            for topic in self._lease_topics:
                route = self._routes.get(topic, queue_id)
                if route is None:
                    continue
                native = route.native
                waiting = native.next_offset > max(position, 0)  # -1: not known, or deleted
                if native.pending or (topic == self._retry_topic and waiting):
                    return False
        return True

    def handed_out(self, messages: Sequence[Message]) -> None:
        """Record messages that were leased, also again."""
        for one in messages:
            name, begun = one.message_group, self._begun.get(lease_queue_of(one.queue_id))
            if name is not None and begun is not None:
                with self._lock:
                    begun.ids.setdefault(name, set()).add(one.message_id)
                    is_other = begun.names.get(one.message_id, name) != name
                    begun.names[one.message_id] = None if is_other else name

    def settled(self, queue_id: int, message_id: str) -> None:
        """Record that a message is acknowledged or a dead letter; `queue_id`: of its lease."""
        begun = self._begun.get(queue_id)
        if begun is None:
            return
        with self._lock:
            name = begun.names.pop(message_id, None)
            if name is not None and name in begun.ids:
                begun.ids[name].discard(message_id)
                if not begun.ids[name]:
                    del begun.ids[name]
