"""config/topics.json: topics and their queue counts.

Invariants:
    1. A file of a 5.3 broker that is read and written again has the same bytes.
Raises: CorruptError if neither the file nor its older copy can be parsed.
On-disk format: JSON as a broker writes it. Unknown fields of a topic are kept unchanged. If a topic
    was deleted, `timerstoreDeleted` has the log offset below which its records are deleted, or -1
    while it is being deleted. A broker ignores it; the log has the same
    (maintenance/topic_deletion.py).
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from timerstore._engine.format import json_text
from timerstore._engine.format.json_text import DataVersion, Json
from timerstore._engine.format.store_paths import QUEUE_COUNT_MAX
from timerstore.errors import CorruptError

PERM_READ = 4
PERM_WRITE = 2

_MESSAGE_TYPE = "message.type"  # the attribute of RocketMQ 5, and its value for priorities
_PRIORITY = "PRIORITY"
_DELETED = "timerstoreDeleted"


class TopicConfig(NamedTuple):
    """One topic. `other` has the fields of a broker that are unknown here."""

    topic: str
    queue_count: int
    read_queue_count: int
    perm: int
    order: bool
    filter_type: str
    sys_flag: int
    attributes: Json
    other: Json

    @property
    def has_priorities(self) -> bool:
        """Return whether each queue of the topic holds the messages of one priority."""
        return self.attributes.get(_MESSAGE_TYPE) == _PRIORITY


@dataclass(frozen=True, slots=True)
class Topics:
    """The whole file, topics in its order."""

    version: DataVersion = json_text.NO_VERSION
    topics: dict[str, TopicConfig] = field(default_factory=dict)
    deleted: dict[str, int] = field(default_factory=dict)

    def with_topic(self, topic: str, queue_count: int, now_ms: int) -> "Topics":
        """Return a file in which a topic exists and has at least `queue_count` queues."""
        return self._with(self._grown(topic, queue_count), now_ms)

    def with_priorities(self, topic: str, queue_count: int, now_ms: int) -> "Topics":
        """Return a file in which a topic has priorities, and at least `queue_count` queues."""
        grown = self._grown(topic, queue_count)
        attributes = {**grown.attributes, _MESSAGE_TYPE: _PRIORITY}
        return self._with(grown._replace(attributes=attributes), now_ms)

    def with_deleted(self, deleted: dict[str, int], gone: Collection[str], now_ms: int) -> "Topics":
        """Return a file with these deletions, and without the topics that are gone."""
        topics = {name: one for name, one in self.topics.items() if name not in gone}
        if (deleted, len(topics)) == (self.deleted, len(self.topics)):
            return self
        return Topics(self.version.next(now_ms), topics, deleted)

    def _grown(self, topic: str, queue_count: int) -> TopicConfig:
        old = self.topics.get(topic)
        if old is None:
            return TopicConfig(  # with a broker's defaults
                topic=topic,
                queue_count=queue_count,
                read_queue_count=queue_count,
                perm=PERM_READ | PERM_WRITE,
                order=False,
                filter_type="SINGLE_TAG",
                sys_flag=0,
                attributes={},
                other={},
            )
        return old._replace(
            queue_count=max(old.queue_count, queue_count),
            read_queue_count=max(old.read_queue_count, queue_count),
        )

    def _with(self, new: TopicConfig, now_ms: int) -> "Topics":
        if new == self.topics.get(new.topic):
            return self
        topics = {**self.topics, new.topic: new}
        return Topics(self.version.next(now_ms), topics, self.deleted)


def read(main: bytes | None, backup: bytes | None) -> Topics:
    """Parse the file (None: absent), or its older copy if the file is absent, empty or invalid."""
    return json_text.first_readable(main, backup, _parse, Topics())


def write(topics: Topics) -> bytes:
    """Return the file's text."""
    return json_text.pretty(
        {
            "dataVersion": topics.version.to_json(),
            "topicConfigTable": {name: _to_json(one) for name, one in topics.topics.items()},
            **({_DELETED: topics.deleted} if topics.deleted else {}),
        }
    )


def _to_json(one: TopicConfig) -> Json:
    table: Json = {
        "attributes": one.attributes,
        "order": one.order,
        "perm": one.perm,
        "readQueueNums": one.read_queue_count,
        "topicFilterType": one.filter_type,
        "topicName": one.topic,
        "topicSysFlag": one.sys_flag,
        "writeQueueNums": one.queue_count,
        **one.other,
    }
    return dict(sorted(table.items()))


def _parse(text: bytes) -> Topics:
    whole = json_text.loads(text)
    table = json_text.as_table(whole.get("topicConfigTable", {}), "topicConfigTable")
    topics = {name: _topic(name, value) for name, value in table.items()}
    deleted = json_text.as_table(whole.get(_DELETED, {}), _DELETED)
    return Topics(
        DataVersion.from_json(whole.get("dataVersion")),
        topics,
        {name: json_text.as_int(at, _DELETED) for name, at in deleted.items()},
    )


def _topic(name: str, value: object) -> TopicConfig:
    rest = dict(json_text.as_table(value, f"topic {name!r}"))
    if rest.pop("topicName", name) != name:
        raise CorruptError(f"topic {name!r}: its topicName is another one")
    return TopicConfig(
        topic=name,
        queue_count=_count(rest, "writeQueueNums", name),
        read_queue_count=_count(rest, "readQueueNums", name),
        perm=json_text.as_int(rest.pop("perm", 6), "perm"),
        order=bool(rest.pop("order", False)),
        filter_type=str(rest.pop("topicFilterType", "SINGLE_TAG")),
        sys_flag=json_text.as_int(rest.pop("topicSysFlag", 0), "topicSysFlag"),
        attributes=json_text.as_table(rest.pop("attributes", {}), "attributes"),
        other=rest,
    )


def _count(table: Json, key: str, name: str) -> int:
    count = json_text.as_int(table.pop(key, 0), key)
    if not 0 <= count <= QUEUE_COUNT_MAX:
        raise CorruptError(f"topic {name!r}: {key}", wanted=f"0 to {QUEUE_COUNT_MAX}", got=count)
    return count
