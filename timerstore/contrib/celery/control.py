"""Remote control that knows the tasks in the store: `Celery(..., control=Control)`.

A task that is not due waits in the store, not in a worker. So `revoke` removes it there, whatever
workers run, and `inspect().scheduled()` lists it.

Raises: what calls of a store raise.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property
from itertools import islice
from typing import Any

from celery.app import control
from kombu.utils.json import loads

from timerstore.contrib.celery.address import Store
from timerstore.contrib.celery.wire import escaped, priority_of, queue_of, topic_of

NODE = "timerstore"
"""The name under which answers of the store stand among those of the workers."""
SCHEDULED_MAX = 1000
"""Tasks that one `inspect scheduled` lists, the next ones first. `Control.pending` yields all."""
_SYSTEM_TOPICS = ("rmq_sys_", "SCHEDULE_TOPIC_")


class Control(control.Control):
    """Celery's control, with the tasks in the store."""

    def revoke(self, task_id: str | Iterable[str], *args: Any, **options: Any) -> Any:
        """Remove tasks that are not due from the store, and have the workers skip the others.

        With `reply=True` the first answer is that of the node "timerstore": what `cancel` returned
        for each task. CANCELLED: it will not run. ALREADY_DELIVERED: it was due, so only a worker
        that has not begun it can skip it. UNKNOWN: there is no such task.
        """
        ids = [task_id] if isinstance(task_id, str) else list(task_id)
        removed = self.remove(ids)
        replies = super().revoke(task_id, *args, **options)
        if options.get("reply"):
            return [{NODE: {"ok": removed}}, *(replies or ())]
        return replies

    def remove(self, task_ids: Iterable[str]) -> dict[str, str]:
        """Remove tasks that are not due from the store; return what `cancel` found for each."""
        with self._store() as store:
            if store is None:
                return {}
            topics = [
                one
                for one in store.topics()
                if queue_of(one) is not None and not one.startswith(_SYSTEM_TOPICS)
            ]
            return {one: _removed(store, topics, one) for one in task_ids}

    def pending(self, queue: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield the tasks that are not due, ordered by due time, as `inspect scheduled` shows them.

        They are read page by page. A task that becomes due in between is left out.
        """
        topic = None if queue is None else topic_of(queue)
        with self._store() as store:
            if store is None:
                return
            for timer in store.pending(topic=topic):
                if queue_of(timer.topic) is None:
                    continue
                for one in store.query(timer.topic, timer.message_id):
                    if one.waits:
                        yield _described(one, timer.due_ms)

    @contextmanager
    def _store(self) -> Iterator[Store | None]:
        """Yield the store of the application; None if its broker is another one."""
        with self.app.connection_for_write() as connection:
            is_ours = connection.transport.driver_type == NODE
            yield connection.default_channel.broker.store if is_ours else None

    @cached_property
    def inspect(self) -> Any:
        """The class for questions to workers, and to the store."""
        return self.app.subclass_with_self(Inspect, reverse="control.inspect")


class Inspect(control.Inspect):
    """Celery's questions to workers. The store answers `scheduled`, too."""

    def _request(self, command: str, **options: Any) -> Any:
        replies = super()._request(command, **options)
        if command != "scheduled" or self.destination or self.pattern:
            return replies
        own = {NODE: list(islice(self.app.control.pending(), SCHEDULED_MAX))}
        if self.callback:
            self.callback(own)
        return {**(replies or {}), **own}


def _removed(store: Store, topics: Iterable[str], task_id: str) -> str:
    result = "UNKNOWN"
    for topic in topics:
        for one in store.query(topic, escaped(task_id)):
            found = str(store.cancel(one.handle)) if one.waits else "ALREADY_DELIVERED"
            if result != "CANCELLED":
                result = found
    return result


def _described(message: Any, due_ms: int) -> dict[str, Any]:
    task = loads(message.body.decode())
    headers = task["headers"]
    return {
        "eta": datetime.fromtimestamp(due_ms / 1000, UTC).isoformat(),
        "priority": priority_of(task),
        "request": {
            "id": headers.get("id"),
            "name": headers.get("task"),
            "args": headers.get("argsrepr"),
            "kwargs": headers.get("kwargsrepr"),
            "delivery_info": task["properties"].get("delivery_info"),
        },
    }
