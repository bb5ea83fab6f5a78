"""Topics and groups that clients name, and the limits on those that they make.

Thread safety: the server's loop only.
"""

from typing import Any

from timerstore._engine.base.message_fields import check_topic
from timerstore._engine.read.groups import check_name
from timerstore.aio import AsyncTimerStore
from timerstore.rocketmq.codes import RejectedError
from timerstore.rocketmq.definitions import Code
from timerstore.rocketmq.rocketmq_limits import RocketmqLimits


def resource_name(resource: Any) -> str:
    """Return the name of a topic or group in the store. A namespace is a prefix, as in a broker."""
    if resource.resource_namespace:
        return f"{resource.resource_namespace}%{resource.name}"
    return str(resource.name)


class ClientNames:
    """The names that clients may use, and the groups that have read through this server."""

    def __init__(
        self, store: AsyncTimerStore, limits: RocketmqLimits, *, auto_create: bool
    ) -> None:
        self._store = store
        self._limits = limits
        self._auto_create = auto_create
        self._groups: set[tuple[str, str]] = set()

    async def check_topic(self, topic: str, *, is_put: bool = False) -> None:
        """Raise an error unless a client may use a topic, or make it with a message.

        Raises:
            MessageError: the name is invalid.
            RejectedError: there is no such topic, and the client may not make it.
        """
        check_topic(topic)
        if (self._auto_create and not is_put) or await self._store._has_topic(topic):
            return
        if not self._auto_create:
            raise RejectedError(
                Code.TOPIC_NOT_FOUND,
                f"topic: wanted one of the store's, as the server makes none "
                f"(--no-auto-create), got {topic!r}",
            )
        if is_put and (count := len(await self._store.topics())) >= self._limits.topics_max:
            raise RejectedError(
                Code.TOO_MANY_REQUESTS,
                f"topic: the store has {count} topics (topics_max), so no client makes another one",
            )

    def check_group(self, topic: str, group: str) -> None:
        """Raise an error if a group may not read a topic.

        Raises:
            MessageError: the name is invalid.
            RejectedError: too many groups have read through this server.
        """
        if (topic, group) in self._groups:
            return
        check_name("group", group)
        if len(self._groups) >= self._limits.groups_max:
            raise RejectedError(
                Code.TOO_MANY_REQUESTS,
                f"group: {len(self._groups)} pairs of topic and group have read through this "
                "server (groups_max)",
            )
        self._groups.add((topic, group))
