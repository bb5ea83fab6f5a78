"""The messages that must come out of a broker's store when we continue with it.

They are computed from the broker's listings alone: open.jsonl.gz and sent.jsonl.gz of
tests/fixtures/broker, as `fixtures` reads them.

Invariants: imports nothing of timerstore. It knows RocketMQ's rules for timers and handles.
"""

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

from tests.support.broker import fixtures as broker
from tests.support.broker.fixtures import Line
from tests.support.disk_reader import LEVEL_TOPIC, TIMER_TOPIC

Key = tuple[str, str]  # real topic, UNIQ_KEY

# Properties that a delivery or a roll adds or replaces.
LEVEL_DELAYS_S = (1, 5, 10, 30, *(60 * n for n in range(1, 11)), 1200, 1800, 3600, 7200)
_ADDED = {
    "TIMER_ENQUEUE_MS",
    "TIMER_DEQUEUE_MS",
    "TIMER_ROLL_TIMES",
    "TS_ID",
    "TS_LEVEL",
    "__CRC32#",
}


@dataclass(frozen=True)
class Expected:
    """One store's listings, by kind of message."""

    name: str
    end: Line
    messages: list[Line]
    sent: list[Line] = field(repr=False)

    @classmethod
    def of(cls, name: str) -> "Expected":
        """Read the listings of a store."""
        messages, _, end = broker.opened(name)
        return cls(name, end, messages, broker.sent(name))

    @property
    def now_ms(self) -> int:
        """Return the time of the listing."""
        return int(self.end["now_ms"])

    @cached_property
    def precision_ms(self) -> int:
        """Return the slot width."""
        return broker.precision_ms(self.name)

    @cached_property
    def queues(self) -> dict[tuple[str, int], list[Line]]:
        """Return the messages of every queue that has any."""
        found: dict[tuple[str, int], list[Line]] = {}
        for line in self.messages:
            found.setdefault((line["topic"], line["queue_id"]), []).append(line)
        return found

    @cached_property
    def sources(self) -> dict[Key, Line]:
        """Return the newest copy of every message that was ever on the wheel."""
        found: dict[Key, Line] = {}
        timers = (line for line in self.messages if line["topic"] == TIMER_TOPIC)
        for line in sorted(timers, key=_offset):
            if "TIMER_DEL_UNIQKEY" not in line["properties"]:
                found[key_of(line)] = line
        return found

    @cached_property
    def out(self) -> Counter[Key]:
        """Return how often each message is already in its real topic."""
        system = (TIMER_TOPIC, LEVEL_TOPIC)
        return Counter(key_of(line) for line in self.messages if line["topic"] not in system)

    @cached_property
    def recalled(self) -> set[Key]:
        """Return the messages that a delete record of the log names, in either form."""
        values = {line["properties"].get("TIMER_DEL_UNIQKEY") for line in self.messages}
        return {key for key in self.sources if "+".join(key) in values or key[1] in values}

    @cached_property
    def waiting(self) -> dict[Key, Line]:
        """Return the timers that are still to be delivered."""
        return {
            key: line
            for key, line in self.sources.items()
            if not self.out[key] and key not in self.recalled
        }

    @cached_property
    def levels_waiting(self) -> dict[Key, Line]:
        """Return the messages of fixed levels that are still to be delivered."""
        lines = (line for line in self.messages if line["topic"] == LEVEL_TOPIC)
        return {key_of(line): line for line in lines if not self.out[key_of(line)]}

    @cached_property
    def left(self) -> dict[Key, Line]:
        """Return the timers and level messages that are still to be delivered."""
        return {**self.waiting, **self.levels_waiting}

    def due_ms(self, line: Line) -> int:
        """Return the exact millisecond at which a pending message must be delivered."""
        properties = line["properties"]
        if line["topic"] == LEVEL_TOPIC:
            delay_s = LEVEL_DELAYS_S[min(int(properties["DELAY"]), len(LEVEL_DELAYS_S)) - 1]
            return int(line["store_ms"]) + 1000 * delay_s
        if {"TIMER_DELAY_SEC", "TIMER_DELAY_MS"} & properties.keys():
            return int(properties["TIMER_OUT_MS"]) + self.precision_ms
        return int(properties["TIMER_DELIVER_MS"])

    @cached_property
    def by_due(self) -> dict[int, set[Key]]:
        """Return the pending messages by due time, ascending."""
        found: dict[int, set[Key]] = {}
        for key, line in sorted(self.left.items(), key=lambda item: self.due_ms(item[1])):
            found.setdefault(self.due_ms(line), set()).add(key)
        return found

    @cached_property
    def late(self) -> set[Key]:
        """Return the pending messages that were due at the time of the listing."""
        return {
            key for due_ms, keys in self.by_due.items() if due_ms <= self.now_ms for key in keys
        }

    @cached_property
    def due_times(self) -> list[int]:
        """Return the due times of pending messages, ascending."""
        return list(self.by_due)

    @property
    def last_due_ms(self) -> int:
        """Return a time at which no message can be pending."""
        return max([self.now_ms, *self.due_times])


def _offset(line: Line) -> int:
    return int(line["log_offset"])


def key_of(line: Line) -> Key:
    """Return the real topic and message id of a listed message."""
    properties = line["properties"]
    return properties.get("REAL_TOPIC", line["topic"]), properties["UNIQ_KEY"]


def as_delivered(line: Line) -> Line:
    """Return the fields of a pending message that its delivered copy must have too."""
    kept = ("flag", "sys_flag", "born_ms", "born_host", "store_host", "body_crc")
    kept += ("reconsume_times", "body_bytes", "body_sha256")
    return {
        **{name: line[name] for name in kept},
        "topic": line["properties"]["REAL_TOPIC"],
        "queue_id": int(line["properties"]["REAL_QID"]),
        "properties": {k: v for k, v in line["properties"].items() if k not in _ADDED},
    }
