"""The settings of a store, each with its default, range, unit and risks.

Names and defaults follow RocketMQ where it has the same setting. For an existing directory, sizes
that its files determine are taken from the files.

Invariants: a StoreConfig that exists is valid.
Raises: ConfigError, which lists every invalid setting.
"""

import ipaddress
import re
from dataclasses import dataclass, fields
from typing import Literal

from timerstore.errors import ConfigError, quoted, typed

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
YEAR_MS = 31_557_600_000
"""365.25 days."""

_INT32_MAX = 2**31 - 1
_RECORD_OVERHEAD_BYTES = 65_536  # RocketMQ allows a record this much in addition to its body
_BLANK_BYTES = 16  # a filler record holds its own offset, so this much stays free after a record
_WHEEL_BLANK_SLOTS = 60  # between the farthest written slot and the oldest unread one


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """All settings of one store. Change some of them with `dataclasses.replace`."""

    # --- geometry: fixed when the directory is created -------------------------------------------
    commit_log_segment_bytes: int = GIB
    """Size of a commit log file, bytes. 4 KiB to 2 GiB - 1. Small files cost opens and filler
    records at their ends. No record is larger than what one file holds (`record_bytes_max`)."""
    queue_segment_bytes: int = 6_000_000
    """Size of a consume queue file, bytes. 20 to 2 GiB - 20, a multiple of the 20 bytes of a unit.
    Every queue of every topic has at least one file, so large files cost space with many topics. A
    RocketMQ broker (seen with 5.3.3) never finishes opening files of one unit; use at least 40
    bytes for it."""
    timer_log_segment_bytes: int = 100 * MIB
    """Size of a timer log file, bytes. 128 to 2 GiB - 1. Small files cost opens."""
    index_slot_count: int = 5_000_000
    """Hash slots of an index file. 1 to 500 M. Each takes 4 bytes on disk and, for the newest file,
    in memory. Few slots make long chains, which slow down queries."""
    index_entry_count: int = 20_000_000
    """Entries of an index file; the first is never used. 2 to 100 M. Each takes 20 bytes when it is
    used. Every message has an entry for its id and one for each key, and so has its delivery."""
    wheel_slot_count: int = 1_209_600
    """Slots of the timing wheel: twice the roll window. An even number, 16 to 64 Mi. Each takes 32
    bytes in memory and on disk. With a small wheel, messages that are due far ahead roll more
    often."""
    precision_ms: int = 1000
    """Width of a slot, ms. 1 to 60,000. Messages are delivered at their millisecond whatever the
    width is. Wide slots take longer to load and sort; narrow slots make the wheel cover less time.
    """
    roll_window_slots: int = 172_800
    """How far ahead a message is placed on the wheel before it has to roll, in slots. 0 to 64 Mi. A
    value below 2, or larger than the wheel allows, means the largest window of the wheel
    (`roll_slots`). With a small window, messages that are due far ahead are written again more
    often."""
    far_wheel: Literal["off", "shared", "own"] = "off"
    """Where messages past the roll window wait. "off": in the timer topic, as in RocketMQ; the
    whole message is written again at the end of each window. "shared" and "own": on the far wheel,
    in side files; the body is written only at the put and at delivery. "shared" moves the messages
    to the wheel when the store is closed, 52 bytes each, so that a broker can open the directory.
    "own" closes at once, and a broker rejects the directory while messages wait on the far wheel
    (`timerstore.convert` changes that)."""

    # --- limits ---------------------------------------------------------------------------------
    message_bytes_max: int = 4 * MIB
    """Largest body, as stored and as inflated, bytes. 1 to 1 GiB. Large bodies delay other
    messages."""
    properties_bytes_max: int = 32_767
    """Largest properties of a record, with those of the engine, bytes. 512 to 32,767 (the limit of
    the format)."""
    delay_ms_max: int = 40 * YEAR_MS
    """Largest delay of a put, ms. 1 ms to 1000 years. A broker that opens the directory accepts 3
    days by default; messages that are already there roll until they are due."""
    topic_queue_count: int = 1
    """Queues of a topic that is created by a put. 1 to 1024."""
    slot_messages_max: int = 0
    """Messages that may wait for one slot (`precision_ms` of due time). A further put raises
    FlowControlError. 0 (no limit) to 2 Gi - 1. A limit keeps loading and sorting of a slot short.
    It costs each put a look at a counter, and opening counts the pending messages."""

    # --- durability -----------------------------------------------------------------------------
    flush: Literal["sync", "async"] = "sync"
    """When `put` returns. "sync": when the message is on disk; callers that wait at the same time
    share one sync. "async": when the kernel has it; a power cut may lose the puts of the last
    `flush_interval_ms`."""
    flush_interval_ms: int = 500
    """Longest time between two syncs while no caller waits for one, ms. 1 to 60,000. A power cut
    loses at most the asynchronous puts of this time."""
    visibility: Literal["durable", "written"] = "durable"
    """When a pull sees a message. "durable": after it was synced. "written": before; this lowers
    latency, but a power cut can lose a message that a consumer has already seen."""
    checkpoint_interval_ms: int = 500
    """Time between two checkpoints while there is work, ms. 10 to 600,000. A long interval makes
    recovery longer."""
    checkpoint_log_bytes: int = 128 * MIB
    """Growth of the commit log after which a checkpoint begins at once, bytes. 4 KiB to 64 GiB."""
    checkpoint_log_bytes_max: int = 256 * MIB
    """Growth of the commit log since the last checkpoint at which appends wait, bytes. At least
    `checkpoint_log_bytes`, at most 64 GiB. Recovery reads this much again."""
    staging_bytes: int = 2 * MIB
    """Appended bytes that are collected before they are written to the commit log. 4 KiB to 4 MiB;
    a soft threshold. Larger writes were slower in every run, and small ones cost system calls."""
    reserve_bytes: int = 16 * MIB
    """Disk space that is reserved ahead of the end of the log, bytes. 0 to 16 GiB. It lets services
    finish their work when the disk is full."""
    property_crc: bool = True
    """Write the `__CRC32#` property, which covers the whole record. Without it a record is 20 bytes
    smaller, and damage outside the body is not detected."""

    delivered_properties: Literal["all", "needed"] = "all"
    """The properties of a delivered message. "all": also TIMER_ENQUEUE_MS, TIMER_DEQUEUE_MS,
    REAL_TOPIC and REAL_QID, as a broker writes them. "needed": without these four, 86 bytes less
    for a short topic name; neither a broker nor this engine reads them."""

    # --- retention -------------------------------------------------------------------------------
    retention_ms: int = 0
    """How long a message is kept after it was stored, ms. Whole commit log files are removed; the
    last one always stays. 0 (no limit) or 1 s to 1000 years; a broker has 72 hours, 259,200,000. A
    pending message is never removed: it is moved to the end of the log first. Messages that a group
    has not read yet are kept until one of the two limits below is reached. Then they are removed,
    counted and logged. A group counts if it has committed in the topic."""
    retention_log_bytes: int = 0
    """Size of the commit log at which its oldest files are removed, whatever their age and even if
    they hold unread messages, bytes. 0 (no limit) to 2^62. If the pending messages alone are larger
    than that, the log takes up to twice their size."""
    retention_disk_percent: int = 0
    """The same limit for the use of the file system, whatever uses it, percent. 0 (no limit) to 99;
    a broker has 85."""

    index_enabled: bool = True
    """Keep the index of keys for `query`. Without it, each key saves 20 bytes of disk and about 20
    ns of one thread. Messages that are put without the index are added when it is enabled again."""
    index_tags: bool = False
    """Add tags to the index, as brokers from 5.4 on do, so that such a broker can find messages by
    tag. This engine does not use them. A tag costs 20 bytes and about 20 ns. After a change of this
    setting the index is rebuilt from the log."""

    histogram_bytes_max: int = 256 * MIB
    """Memory for the counters of `histogram`, bytes; half as much more for a short time while they
    grow. 0 to 64 GiB. A message that is alone in its hour takes up to 200 bytes; one whose topic
    has others in the same second takes none. If the memory is not enough, `histogram` reads all
    pending messages instead."""

    # --- waiting pulls --------------------------------------------------------------------------
    long_poll_enabled: bool = True
    """Wake a waiting pull when its message arrives. Off: a waiting pull looks again once, after
    `short_poll_ms` or its own wait if that is shorter, and returns what it finds. Arriving messages
    then cost nothing for waiting pulls, but reach them later."""
    short_poll_ms: int = 1000
    """How long a pull waits if `long_poll_enabled` is off, ms. 1 to 60,000."""

    # --- operator's switches --------------------------------------------------------------------
    timer_enabled: bool = True
    """Accept delayed messages. Off: a put with a due time in the future raises MessageError."""
    stop_enqueue: bool = False
    """Stop moving messages from the timer topic to the wheel. Puts are still stored."""
    stop_dequeue: bool = False
    """Stop delivery. Messages that come due are delivered late, once this is off again."""
    topic_rates: str = ""
    """Largest delivery rates of delayed messages by topic, messages a second: "orders=100
    mail=0.5", separated by one space; 0.001 to 1,000,000. Limited messages are delivered later,
    never early, and in order. `pace` changes a rate while the store is open. Each pending message
    takes 64 bytes. Messages that are due at once when they are put, and those of delay levels, are
    not limited."""
    spread_seed: int = 0
    """Seed of the random times of `spread=`. 0 (a new seed at each opening) to 2^63 - 1."""
    start_delay_ms: int = 0
    """Time from opening to the first delivery, ms. 0 to 86,400,000."""

    # --- names, retries, fixed delays -----------------------------------------------------------
    dedupe: Literal["content", "id"] = "content"
    """What makes a put a repetition of an earlier one with its message id. "content": the same
    body, tags, keys and properties, and the same due time where `deliver_at` or `deliver_ms` give
    one. A put that differs raises ConflictError. "id": the id alone. A put that differs stores
    nothing, and returns the receipt of the first."""
    dedupe_window_ms: int = 3_600_000
    """How long a message id is remembered, ms. A `put` or `put_many` that repeats an id in this
    time returns the first receipt. 0 (ids are not remembered) to 7 days."""
    dedupe_ids_max: int = 8 * MIB
    """Message ids that are remembered at a time. 4096 to 1 Gi. A put with a further id raises
    BusyError until some are older than the window. Each takes up to 64 bytes of memory and 24 of
    disk."""
    level_delays: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    """The delays of the levels, level 1 first: numbers with s, m, h or d, separated by one space. 1
    to 64 delays, each at most 1000 years. `put(level=n)` uses the n-th delay; a larger n means the
    last. A change applies to new messages. A pending message keeps its due time, unless its delay
    became shorter or its queue is rebuilt: in a restored backup, a repaired store, or after a kill
    shortly after its put. A broker that opens the directory uses its own delays."""
    level_async: bool = False
    """Deliver messages of delay levels while earlier ones are not on disk yet. Off: each batch
    waits for the one before, and all levels are delivered in one order. On: only each level is in
    order."""
    level_pending_max: int = 2000
    """With `level_async`: the largest number of messages of a level that are delivered and not on
    disk yet. 1 to 1 M."""
    broker_name: str = "timerstore"
    """Name of the store in handles. 1 to 127 visible ASCII characters, no space. Handles that were
    issued under another name keep it."""
    store_host: str = "127.0.0.1:10911"
    """`ip:port` written into records and message ids, `[ip]:port` for IPv6. It is never connected
    to."""

    def __post_init__(self) -> None:
        problems = [*self._type_problems()]
        if not problems:
            problems = [*self._range_problems(), *self._relation_problems()]
        if problems:
            raise ConfigError(problems)

    @property
    def record_bytes_max(self) -> int:
        """Largest record, bytes: RocketMQ's limit, or what one commit log file holds if that is
        less.
        """
        return min(
            self.message_bytes_max + _RECORD_OVERHEAD_BYTES,
            self.commit_log_segment_bytes - _BLANK_BYTES,
        )

    @property
    def group_bytes_max(self) -> int:
        """Largest atomic group, bytes: 4 MiB, or what one commit log file holds if that is less."""
        return min(4 * MIB, self.commit_log_segment_bytes - _BLANK_BYTES)

    @property
    def roll_slots(self) -> int:
        """The roll window in use, slots: `roll_window_slots` if the wheel allows it."""
        half = self.wheel_slot_count // 2
        cap = half - min(_WHEEL_BLANK_SLOTS, self.wheel_slot_count // 8)
        return self.roll_window_slots if 2 <= self.roll_window_slots <= cap else cap

    @property
    def store_address(self) -> tuple[str, int]:
        """The address without brackets and the port of `store_host`."""
        host, _, port = self.store_host.rpartition(":")
        return host.strip("[]"), int(port)

    def _type_problems(self) -> list[str]:
        problems = []
        for one in fields(self):
            value = getattr(self, one.name)
            wanted = type(one.default)
            if type(value) is not wanted:
                problems.append(f"{one.name}: wanted {wanted.__name__}, got {typed(value)}")
        return problems

    def _range_problems(self) -> list[str]:
        problems = []
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if not low <= value <= high:
                problems.append(f"{name}: wanted {low} to {high}, got {quoted(value)}")
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                problems.append(
                    f"{name}: wanted {' or '.join(map(repr, choices))}, got {quoted(value)}"
                )
        for name, (pattern, wanted) in _PATTERNS.items():
            value = getattr(self, name)
            if not re.fullmatch(pattern, value):
                problems.append(f"{name}: wanted {wanted}, got {quoted(value)}")
        return problems

    def _relation_problems(self) -> list[str]:
        problems = []
        if self.queue_segment_bytes % 20:
            problems.append(
                "queue_segment_bytes: wanted a multiple of 20, got "
                f"{quoted(self.queue_segment_bytes)}"
            )
        if self.wheel_slot_count % 2:
            problems.append(
                f"wheel_slot_count: wanted an even number, got {quoted(self.wheel_slot_count)}"
            )
        if self.checkpoint_log_bytes_max < self.checkpoint_log_bytes:
            problems.append(
                "checkpoint_log_bytes_max: wanted at least checkpoint_log_bytes "
                f"({quoted(self.checkpoint_log_bytes)}), got "
                f"{quoted(self.checkpoint_log_bytes_max)}"
            )
        if 0 < self.retention_ms < 1000:
            problems.append(
                f"retention_ms: wanted 0, or 1000 and more, got {quoted(self.retention_ms)}"
            )
        if self.level_delays.count(" ") >= 64:
            problems.append(
                f"level_delays: wanted at most 64, got {self.level_delays.count(' ') + 1}"
            )
        problems += _rate_problems(self.topic_rates)
        reach_ms = self.roll_slots * self.precision_ms
        if reach_ms > _INT32_MAX:
            problems.append(
                "precision_ms x roll window: a timer unit holds its distance in 32 bits; "
                f"wanted at most {_INT32_MAX} ms, got {quoted(self.precision_ms)} x "
                f"{quoted(self.roll_slots)}"
            )
        problems.extend(_host_problems(self.store_host))
        return problems


RANGES: dict[str, tuple[int, int]] = {
    "commit_log_segment_bytes": (4 * KIB, _INT32_MAX),
    "queue_segment_bytes": (20, _INT32_MAX - 20),
    "timer_log_segment_bytes": (128, _INT32_MAX),
    "index_slot_count": (1, 500_000_000),
    "index_entry_count": (2, 100_000_000),
    "wheel_slot_count": (16, 64 * MIB),
    "precision_ms": (1, 60_000),
    "roll_window_slots": (0, 64 * MIB),
    "message_bytes_max": (1, GIB),
    "properties_bytes_max": (512, 32_767),
    "delay_ms_max": (1, 1000 * YEAR_MS),
    "topic_queue_count": (1, 1024),
    "slot_messages_max": (0, _INT32_MAX),
    "flush_interval_ms": (1, 60_000),
    "checkpoint_interval_ms": (10, 600_000),
    "checkpoint_log_bytes": (4 * KIB, 64 * GIB),
    "checkpoint_log_bytes_max": (4 * KIB, 64 * GIB),
    "staging_bytes": (4 * KIB, 4 * MIB),
    "reserve_bytes": (0, 16 * GIB),
    "histogram_bytes_max": (0, 64 * GIB),
    "short_poll_ms": (1, 60_000),
    "retention_ms": (0, 1000 * YEAR_MS),
    "retention_log_bytes": (0, 2**62),
    "retention_disk_percent": (0, 99),
    "spread_seed": (0, 2**63 - 1),
    "start_delay_ms": (0, 86_400_000),
    "dedupe_window_ms": (0, 7 * 86_400_000),
    "dedupe_ids_max": (4096, GIB),
    "level_pending_max": (1, 1_000_000),
}
_CHOICES = {
    "flush": ("sync", "async"),
    "visibility": ("durable", "written"),
    "far_wheel": ("off", "shared", "own"),
    "dedupe": ("content", "id"),
    "delivered_properties": ("all", "needed"),
}
RATE_MIN, RATE_MAX = 0.001, 1_000_000
_RATE = r"[A-Za-z0-9%_|-]{1,127}=[0-9]{1,7}(\.[0-9]{1,3})?"
_PATTERNS = {
    "broker_name": (r"[!-~]{1,127}", "1 to 127 visible ASCII characters without a space"),
    "level_delays": (
        r"[1-9][0-9]{0,8}[smhd]( [1-9][0-9]{0,8}[smhd])*",
        "numbers with s, m, h or d, one space between",
    ),
    "topic_rates": (
        rf"|{_RATE}( {_RATE})*",
        "topic=messages a second, with at most 3 decimals, one space between",
    ),
    "store_host": (r"[^:\[\]]+:[0-9]{1,5}|\[[^\[\]]+\]:[0-9]{1,5}", "ip:port or [ip]:port"),
}


def parse_topic_rates(topic_rates: str) -> dict[str, float]:
    """Return messages a second by topic."""
    pairs = (one.partition("=") for one in topic_rates.split(" ") if one)
    return {topic: float(rate) for topic, _, rate in pairs}


def _rate_problems(topic_rates: str) -> list[str]:
    try:
        rates = parse_topic_rates(topic_rates)
    except ValueError:
        return []  # reported by its pattern
    problems = []
    if len(rates) < len(topic_rates.split()):
        problems.append(f"topic_rates: wanted each topic once, got {quoted(topic_rates)}")
    for topic, rate in rates.items():
        if not RATE_MIN <= rate <= RATE_MAX:
            problems.append(f"topic_rates: wanted {RATE_MIN} to {RATE_MAX}, got {topic}={rate}")
    return problems


def _host_problems(store_host: str) -> list[str]:
    host, _, port = store_host.rpartition(":")
    problems = []
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        problems.append(f"store_host: wanted an IP address before the port, got {store_host!r}")
    if not (port.isdecimal() and len(port) <= 5 and int(port) <= 65_535):
        problems.append(f"store_host: wanted a port of at most 65535, got {store_host!r}")
    return problems
