"""Every knob of a store: default, range, unit, what it risks.

Holds:    a StoreConfig that exists is valid; one that is not says everything that is wrong with it.
Source:   RocketMQ's settings and defaults, where it has the same ones.

On a directory that exists, sizes that its files show are taken from the files: see store.py.
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
_RECORD_OVERHEAD_BYTES = 65_536  # the ancestor allows a record this much beside its body
_BLANK_BYTES = 16  # our blank carries its own position, so this much stays free behind a record
_WHEEL_BLANK_SLOTS = 60  # between the farthest slot that is written and the oldest still unread


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """All settings of one store. Change some of them with `dataclasses.replace`."""

    # --- geometry: fixed when the directory is made ---------------------------------------------
    commit_log_segment_bytes: int = GIB
    """Size of a commit log file. 4 KiB to 2 GiB - 1. Small files cost opens and blanks at their
    ends; the largest record is cut to what one file holds (`record_bytes_max`)."""
    queue_segment_bytes: int = 6_000_000
    """Size of a consume queue file. 20 bytes to 2 GiB - 20, a multiple of the 20 bytes of a unit.
    Every queue of every topic has at least one, so large ones cost space with many topics. A broker
    (seen: 5.3.3) never finishes opening files of one unit: 40 bytes at least where one is to."""
    timer_log_segment_bytes: int = 100 * MIB
    """Size of a timer log file. 128 bytes to 2 GiB - 1. Small files cost opens."""
    index_slot_count: int = 5_000_000
    """Hash slots of an index file. 1 to 500 M; 4 bytes each, on disk and, of the newest file, in
    memory. Few slots make long chains, which queries walk."""
    index_entry_count: int = 20_000_000
    """Entries of an index file, the first of which is never used. 2 to 100 M; 20 bytes each, taken
    as they come. Every message has one for its id and one for each key, and so has its delivery."""
    wheel_slot_count: int = 1_209_600
    """Slots of the wheel: twice the window it looks ahead. An even number, 16 to 64 Mi; 32 bytes
    each, in memory and on disk. A small wheel rolls far messages more often."""
    precision_ms: int = 1000
    """Width of a slot on disk, ms. 1 to 60,000. Delivery is to the millisecond whatever it is; wide
    slots are longer to load and sort when they open, narrow ones make the wheel look less far."""
    roll_window_slots: int = 172_800
    """How far ahead a message is placed before it has to roll, in slots. 0 to 64 Mi; below 2 or
    beyond what the wheel holds, the widest that it holds is used (`roll_slots`). A small window
    writes far messages again more often."""
    far_wheel: Literal["off", "shared", "own"] = "off"
    """Where messages beyond the roll window wait. "shared", "own": on the far wheel, in side files;
    however many years, their bodies are written when they are put and when they are handed over.
    "off": as the ancestor's do: at each window's end the whole message is written again. "shared"
    places them on the wheel when the store is closed, 52 bytes each, so that a broker can open it;
    "own" closes at once, and a broker refuses what was closed while any wait there
    (`timerstore.convert` changes that)."""

    # --- limits ---------------------------------------------------------------------------------
    message_bytes_max: int = 4 * MIB
    """Largest body, as stored and as inflated, bytes. 1 to 1 GiB. Large ones hold up others."""
    properties_bytes_max: int = 32_767
    """Largest properties area of a record, the engine's own included, bytes. 512 to 32,767 (the
    format's limit)."""
    delay_ms_max: int = 40 * YEAR_MS
    """Farthest due time that `put` takes, ms from now. 1 ms to 1000 years. A broker that opens the
    directory takes 3 days by default; farther messages roll until they are due."""
    topic_queue_count: int = 1
    """Queues of a topic when it is first put to. 1 to 1024."""
    slot_messages_max: int = 0
    """Messages that may wait for one slot (`precision_ms` of due time); a put beyond is refused
    with FlowControlError. 0 (off) to 2 Gi - 1. It keeps a slot short to load and sort, and costs
    every put a look at a count; what waits is counted when the store is opened."""

    # --- durability -----------------------------------------------------------------------------
    flush: Literal["sync", "async"] = "sync"
    """When `put` answers: "sync" when the message is on the disk (callers that wait at once share
    one sync), "async" when the kernel has it: a power cut may lose the last `flush_interval_ms`."""
    flush_interval_ms: int = 500
    """Longest time between two syncs while nobody waits for one, ms. 1 to 60,000. A long one risks
    more asynchronous puts at a power cut."""
    visibility: Literal["durable", "written"] = "durable"
    """What a pull sees. "written" shows a message before it is on the disk: lower lateness, but a
    power cut can take back what a consumer saw."""
    checkpoint_interval_ms: int = 500
    """Time between two checkpoints while there is work, ms. 10 to 600,000. A long one makes
    recovery longer."""
    checkpoint_log_bytes: int = 128 * MIB
    """Growth of the commit log that asks for a checkpoint at once, bytes. 4 KiB to 64 GiB."""
    checkpoint_log_bytes_max: int = 256 * MIB
    """Growth of the commit log beyond the last checkpoint at which appends wait, bytes. At least
    `checkpoint_log_bytes`, up to 64 GiB. This much is read again by recovery."""
    staging_bytes: int = 2 * MIB
    """Appended bytes that are gathered before they are written to the commit log. 4 KiB to 1 GiB; a
    soft threshold. Large ones fall out of the processor's cache, small ones cost system calls."""
    reserve_bytes: int = 16 * MIB
    """Space that is kept in hand ahead of the end of the log, bytes. 0 to 16 GiB. It is what lets
    services finish their work when the disk is full."""
    property_crc: bool = True
    """Write the `__CRC32#` property, which covers the whole record. Off saves 20 bytes a record and
    leaves damage outside the body unseen."""

    # --- how long what was delivered is kept -----------------------------------------------------
    retention_ms: int = 0
    """How long a message is kept after it was stored, ms; by whole commit log files, of which the
    last always stays. 0 (for ever) or 1 s to 1000 years; a broker has 72 hours, 259,200,000.
    What still waits is never removed: it is moved to the log's end first. What a group that has
    committed in its topic has not read is kept until one of the two limits below is reached, then
    dropped, counted, logged."""
    retention_log_bytes: int = 0
    """Size of the commit log beyond which its oldest files go, whatever their age and whoever has
    not read them, bytes. 0 (no limit) to 2^62. Where what waits is more than that, the log is up
    to twice as large as what waits."""
    retention_disk_percent: int = 0
    """The same for how full the file system is, by whatever, percent. 0 (no limit) to 99; a
    broker has 85."""

    index_enabled: bool = True
    """Keep the index that `query` looks keys up in. Off saves 20 bytes of disk and about 20 ns of
    one thread a key; what is put meanwhile is added when it is on again."""
    index_tags: bool = False
    """Enter tags into the index, too, as brokers from 5.4 on do (earlier ones do not): so that one
    that opens the directory finds by tag. Nothing here looks them up: it costs 20 bytes and about
    20 ns a tag. After a change of it the index is built anew from the log."""

    histogram_bytes_max: int = 256 * MIB
    """Memory for the counters behind `histogram`, bytes; half as much more for a moment while they
    grow. 0 to 64 GiB. A message alone in its hour takes up to 200 bytes, one whose topic has others
    in the same second none. Where it is not enough, `histogram` reads what waits instead."""

    # --- waiting pulls --------------------------------------------------------------------------
    long_poll_enabled: bool = True
    """A pull that waits is answered when its message comes. Off: it looks again once, after
    `short_poll_ms` or its own wait where that is shorter, and answers what there is: the store then
    does nothing for waiting pulls when messages come, and they come late by as much."""
    short_poll_ms: int = 1000
    """How long a pull waits where `long_poll_enabled` is off, ms. 1 to 60,000."""

    # --- operator's switches --------------------------------------------------------------------
    timer_enabled: bool = True
    """Off: a put with a time in the future is refused with MessageError."""
    stop_enqueue: bool = False
    """On: nothing moves from the timer topic to the wheel; puts are still stored."""
    stop_dequeue: bool = False
    """On: nothing is delivered; it is late when this is taken off."""
    topic_rates: str = ""
    """Most messages a second that timers hand to some topics, "orders=100 mail=0.5", one space
    between; 0.001 to 1,000,000. They come later, never early, and in order. `pace` changes it while
    the store is open. What waits for its turn takes 64 bytes each. Not for fixed levels."""
    spread_seed: int = 0
    """Where the chance of `spread=` begins; 0: elsewhere at each opening. 0 to 2^63 - 1."""
    start_delay_ms: int = 0
    """Time after opening before delivery begins, ms. 0 to 86,400,000."""

    # --- names, retries, fixed delays -----------------------------------------------------------
    dedupe_window_ms: int = 3_600_000
    """How long a message id that a caller gave is remembered, ms: `put` and `put_many` answer the
    first receipt to whoever gives it again. 0 (off: ids are names, and nothing else) to 7 days."""
    dedupe_ids_max: int = 8 * MIB
    """Ids that are remembered at a time. 4096 to 1 Gi; a put with another is refused with BusyError
    until some are older than the window. Each takes up to 64 bytes of memory, and 24 of disk."""
    level_delays: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    """The fixed delays, level 1 first: numbers with s, m, h or d, one space between. 1 to 64 of
    them, each at most 1000 years. `put(level=n)` waits for the n-th, beyond the last for the last.
    What waits keeps the time that it got, but for a delay that was shortened, or where its queue is
    built anew: in a restored backup, a repaired store, or after a kill within moments of the put it
    goes by the table of then. A broker that opens the directory goes by its own."""
    level_async: bool = False
    """Whether messages of fixed levels are handed over while others are not on the disk yet. Off,
    each batch waits for the one before, and all levels come in one order; on, each level is in
    order by itself."""
    level_pending_max: int = 2000
    """With `level_async`: most messages of a level that are handed over and not on the disk yet. 1
    to 1 M."""
    broker_name: str = "timerstore"
    """Name in handles. 1 to 127 visible ASCII characters, no space; a changed one does not match
    the handles given out before."""
    store_host: str = "127.0.0.1:10911"
    """`ip:port` written into records and message ids, `[ip]:port` for IPv6. Never connected to."""

    def __post_init__(self) -> None:
        problems = [*self._type_problems()]
        if not problems:
            problems = [*self._range_problems(), *self._relation_problems()]
        if problems:
            raise ConfigError(problems)

    @property
    def record_bytes_max(self) -> int:
        """Largest record, bytes: what the ancestor allows, cut to what one segment holds."""
        return min(
            self.message_bytes_max + _RECORD_OVERHEAD_BYTES,
            self.commit_log_segment_bytes - _BLANK_BYTES,
        )

    @property
    def group_bytes_max(self) -> int:
        """Most bytes of records that are stored all or none: 4 MiB, cut to one segment."""
        return min(4 * MIB, self.commit_log_segment_bytes - _BLANK_BYTES)

    @property
    def roll_slots(self) -> int:
        """The roll window in use, slots: what is configured where the wheel can hold it."""
        half = self.wheel_slot_count // 2
        cap = half - min(_WHEEL_BLANK_SLOTS, self.wheel_slot_count // 8)
        return self.roll_window_slots if 2 <= self.roll_window_slots <= cap else cap

    @property
    def store_address(self) -> tuple[str, int]:
        """`store_host` taken apart: address without brackets, and port."""
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
    "staging_bytes": (4 * KIB, GIB),
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
    """Give messages a second by topic."""
    pairs = (one.partition("=") for one in topic_rates.split(" ") if one)
    return {topic: float(rate) for topic, _, rate in pairs}


def _rate_problems(topic_rates: str) -> list[str]:
    try:
        rates = parse_topic_rates(topic_rates)
    except ValueError:
        return []  # its pattern says so
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
