"""config/consumerOffset.json: the committed offset of each consumer group in each queue.

Invariants:
    1. A file of a 5.3 or 5.4 broker that is read and written again has the same bytes. Brokers of
       version 5.3 write numbers and lists without line breaks. Version 5.4 puts each on a line, and
       an empty line into an empty map. A file keeps its form; a new file has the form of 5.3.
Raises: CorruptError if neither the file nor its older copy can be parsed.
On-disk format: {"dataVersion": .., "groupTopicMap": {group: [topic, ..]}, "offsetTable":
    {"topic@group": {queue: offset of the next message}}}. Unknown fields and entries are kept, in
    their order.
See also: files of 5.1.4, 5.3.3 and 5.4.0 brokers in tests/fixtures/consumer_offsets.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from timerstore._engine.format import json_text
from timerstore._engine.format.json_text import DataVersion, Json
from timerstore.errors import CorruptError

SEPARATOR = "@"
"""Separates topic and group; neither may contain it."""


@dataclass(frozen=True, slots=True)
class ConsumerOffsets:
    """The whole file."""

    version: DataVersion = json_text.NO_VERSION
    table: dict[str, dict[int, int]] = field(default_factory=dict)
    topics_of_group: dict[str, list[str]] = field(default_factory=dict)
    other: Json = field(default_factory=dict)
    is_wide: bool = False  # the form of 5.4

    def with_offsets(
        self, changes: Mapping[tuple[str, str], Mapping[int, int]], now_ms: int
    ) -> "ConsumerOffsets":
        """Return a file in which the offsets of some queues, by (topic, group), are replaced."""
        table, topics = dict(self.table), dict(self.topics_of_group)
        for (topic, group), offsets in changes.items():
            key = entry_name(topic, group)
            table[key] = dict(sorted({**table.get(key, {}), **offsets}.items()))
            if topic not in topics.get(group, ()):
                topics[group] = [*topics.get(group, ()), topic]
        return ConsumerOffsets(self.version.next(now_ms), table, topics, self.other, self.is_wide)

    def without(self, is_wanted: Callable[[str], bool], now_ms: int) -> "ConsumerOffsets":
        """Return a file without the topics for which `is_wanted` is false."""
        table = {
            name: one for name, one in self.table.items() if is_wanted(name.partition(SEPARATOR)[0])
        }
        if len(table) == len(self.table):
            return self
        topics = {
            group: [one for one in names if is_wanted(one)]
            for group, names in self.topics_of_group.items()
        }
        return ConsumerOffsets(self.version.next(now_ms), table, topics, self.other, self.is_wide)


def entry_name(topic: str, group: str) -> str:
    """Return the key of a topic and a group."""
    return f"{topic}{SEPARATOR}{group}"


def read(main: bytes | None, backup: bytes | None) -> ConsumerOffsets:
    """Parse the file (None: absent), or its older copy if the file is absent, empty or invalid."""
    return json_text.first_readable(main, backup, _parse, ConsumerOffsets())


def write(offsets: ConsumerOffsets) -> bytes:
    """Return the file's text."""
    whole: Json = {
        "dataVersion": offsets.version.to_json(),
        "groupTopicMap": offsets.topics_of_group,
        "offsetTable": offsets.table,
        **offsets.other,
    }
    return json_text.pretty(dict(sorted(whole.items())), is_wide=offsets.is_wide)


def _parse(text: bytes) -> ConsumerOffsets:
    rest = json_text.loads(text)
    version = DataVersion.from_json(rest.pop("dataVersion", None))
    found = json_text.as_table(rest.pop("offsetTable", {}), "offsetTable")
    table = {name: _offsets(name, one) for name, one in found.items()}
    topics = {
        group: _names(group, one)
        for group, one in json_text.as_table(rest.pop("groupTopicMap", {}), "groupTopicMap").items()
    }
    wide = ConsumerOffsets(version, table, topics, rest, is_wide=True)
    if write(wide) == text:
        return wide
    return ConsumerOffsets(version, table, topics, rest)


def _offsets(name: str, value: object) -> dict[int, int]:
    table = json_text.as_table(value, f"offsetTable {name!r}")
    return {_queue(name, queue): json_text.as_int(one, name) for queue, one in table.items()}


def _queue(name: str, text: str) -> int:
    if not text.isdecimal() or len(text) > 10:
        raise CorruptError(
            f"offsetTable {name!r}: wrong queue", wanted="a whole number", got=repr(text)
        )
    return int(text)


def _names(group: str, value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise CorruptError(
            f"groupTopicMap {group!r}: wrong type", wanted="a list of names", got=repr(value)
        )
    return value
