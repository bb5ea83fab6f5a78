"""Open the store after the kills, deliver all messages, and compare it with the reports.

The clock is set by hand and there are no threads, so that all findings come from the store alone.
"""

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import timerstore
from tests.crash.history import History
from tests.crash.report import (
    GROUP,
    QUEUES,
    SOURCE,
    ingest_batches,
    ingest_id,
    ingest_rows,
    key_of,
    read_body,
)
from tests.support.points import noted
from timerstore import CancelResult, Message, StoreConfig, TimerStore
from timerstore._engine.format import watermark
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.timer.wheel import SLOT_BYTES
from timerstore.testing import ManualClock, Stepper

YEAR_MS = 31_557_600_000
_PROBLEMS_MAX = 12


def check(directory: Path, config: dict[str, Any], history: History, seed: int) -> list[str]:
    """Return the problems that were found."""
    checking = _Check(directory, StoreConfig(**config), history, Random(seed))
    checking.run()
    found = checking.problems
    return found[:_PROBLEMS_MAX] + ([f"... {len(found)} in all"] if len(found) > 12 else [])


class _Check:
    def __init__(
        self, directory: Path, config: StoreConfig, history: History, random: Random
    ) -> None:
        self._directory = directory
        self._retains = config.retention_ms > 0
        # no message is removed during the comparison
        self._config = replace(config, retention_ms=0)
        self._begins: dict[int, int] = {}  # by queue: the offset of the first message that is left
        self._removed: set[int] = set()
        self._history = history
        self._random = random
        self.problems = list(history.problems)

    def run(self) -> None:
        clock = ManualClock(time.time_ns() // 1_000_000)
        goes_on = self._has_watermark()
        with noted() as points:
            store = timerstore.open(self._directory, self._config, clock=clock, threads=False)
        if goes_on and "recover_rebuild_begun" in points:
            self.problems.append("there was a watermark, but the whole log was scanned")
        self._note_removed(store)
        self._compare_offsets(store)
        self._compare_waiting(store)
        self._compare_queries(store)
        self._ingest_rest(store)
        last_ms = max((line.due for line in self._history.acked.values()), default=clock.now_ms)
        last_ms = max(last_ms, *(one.due_ms for one in store.pending()), clock.now_ms + 2000)
        stepper = Stepper(store)
        for _ in range(self._random.choice((0, 0, 1, 4))):  # some messages roll in this way
            clock.set(self._random.randint(clock.now_ms, last_ms + 1))
            stepper.settle()
        clock.set(last_ms + 1000 + self._random.choice((0, 0, YEAR_MS)))
        stepper.settle()
        found = self._read_all(store)
        self._expect_nothing_waits(store, "drained")
        self._verify(store, "drained")
        self._compare_queries(store)
        store.close()
        self._compare(found)
        store = timerstore.open(self._directory, self._config, clock=clock, threads=False)
        Stepper(store).settle()
        if self._read_all(store) != found:
            self.problems.append("opened a second time it is not the same")
        self._expect_nothing_waits(store, "opened again")
        self._verify(store, "opened again")
        store.close()

    def _ingest_rest(self, store: TimerStore) -> None:
        """Check that ingested versions are stored, and complete the interrupted ones."""
        found = store.ingested(SOURCE)
        for version, returned in sorted(self._history.ingesting.items()):
            if returned and version not in found:
                self.problems.append(f"ingested, but {version} is not in {found}")
            count = len(ingest_rows(version))
            receipt = store.ingest(SOURCE, version, ingest_batches(version, self._random))
            if receipt != (SOURCE, version, count, version in found):
                self.problems.append(f"ingested again, {receipt} of {count} beside {found}")
            self._history.ingesting[version] = True

    def _has_watermark(self) -> bool:
        """Return whether recovery must use a watermark: no file looks like a broker's."""
        tree = Tree(self._directory)
        if not tree.watermark.exists() or watermark.read(tree.watermark.read_bytes()) is None:
            return False
        slots_bytes = self._config.wheel_slot_count * SLOT_BYTES
        return not tree.abort.exists() or tree.timer_wheel.stat().st_size > slots_bytes

    def _read_all(self, store: TimerStore) -> dict[int, list[Message]]:
        return {
            queue: self._read(store, *name)
            for queue, name in enumerate(QUEUES)
            if store.topics().get(name[0], 0) > name[1]
        }

    def _read(self, store: TimerStore, topic: str, queue_id: int) -> list[Message]:
        found: list[Message] = []
        at = 0
        while True:
            batch = store.pull_batch(topic, queue_id, at)
            if not len(batch) and batch.next_offset <= at:
                return found
            found += batch
            at = batch.next_offset

    def _note_removed(self, store: TimerStore) -> None:
        """Record the messages that retention removed. All of them must have been pulled."""
        for queue, (topic, queue_id) in enumerate(QUEUES):
            if store.topics().get(topic, 0) <= queue_id:
                continue
            first = store.pull_batch(topic, queue_id, 0, max_count=1)
            begin = int(first.queue_offset[0]) if len(first) else first.next_offset
            if not len(first) and first.status in ("OFFSET_TOO_SMALL", "MESSAGE_WAS_REMOVING"):
                rest = self._read(store, topic, queue_id)
                begin = rest[0].queue_offset if rest else begin
            lines = self._history.pulled.get(queue, [])
            self._begins[queue] = begin
            self._removed.update(line.id for line in lines[:begin])
            if begin > len(lines):
                self.problems.append(f"{QUEUES[queue]}: {begin} removed, {len(lines)} were seen")

    def _verify(self, store: TimerStore, when: str) -> None:
        report = store.verify()
        if not report.clean:
            self.problems.append(f"verify, {when}: {report}")

    def _expect_nothing_waits(self, store: TimerStore, when: str) -> None:
        waiting = [one.message_id for one in store.pending()]
        stats = store.stats()
        count = stats["pending_messages"]
        if waiting or count or stats["pending_by_topic"]:
            self.problems.append(f"{when}, {len(waiting)} still wait, counted {count}")

    def _compare_offsets(self, store: TimerStore) -> None:
        """Check that the committed offsets are stored, and no others."""
        for (topic, queue_id), reading in zip(QUEUES, self._history.readings, strict=True):
            found = store.committed(topic, GROUP).get(queue_id, 0)
            if not reading.committed <= found <= reading.begun:
                self.problems.append(f"{topic} {queue_id}: committed {found}, but {reading}")

    def _compare_waiting(self, store: TimerStore) -> None:
        """Check before a service runs that no message is lost, doubled, or back after a cancel."""
        history = self._history
        names = {line.message_id.decode(): i for i, line in history.acked.items()}
        for version, returned in history.ingesting.items():
            if returned:
                names.update((ingest_id(number), number) for number, _ in ingest_rows(version))
        waiting = Counter(one.message_id for one in store.pending())
        there = Counter(m.message_id for ms in self._read_all(store).values() for m in ms)
        cancelled = history.cancelled
        twice = {name: n for name, n in (waiting + there).items() if n > 1}
        if twice:
            named = [(name, n, names.get(name)) for name, n in list(twice.items())[:5]]
            self.problems.append(f"reopened, waiting or delivered more than once: {named}")
        for name, number in names.items():
            if number in cancelled and (name in waiting or name in there):
                self.problems.append(f"reopened, cancelled but there: {history.acked[number]}")
            is_there = name in waiting or name in there
            if number in self._removed:
                if is_there:
                    self.problems.append(f"removed, and there again: {history.acked[number]}")
                continue
            if number not in history.cancel_begun and not is_there:
                self.problems.append(f"reopened, lost: {history.acked.get(number, number)}")
        stats = store.stats()
        if stats["pending_messages"] != len(waiting):
            count = stats["pending_messages"]
            self.problems.append(f"reopened, {len(waiting)} wait, counted {count}")
        topics = dict(Counter(one.topic for one in store.pending()))
        if stats["pending_by_topic"] != topics:
            counted = stats["pending_by_topic"]
            self.problems.append(f"reopened, {topics} wait, counted {counted}")

    def _compare_queries(self, store: TimerStore) -> None:
        """Check that queries by key and id return each pending or visible message once, and no
        others.
        """
        there = {m.log_offset: m for ms in self._read_all(store).values() for m in ms}
        waiting = {one.message_id for one in store.pending()}
        for topic in {topic for topic, _ in QUEUES}:
            for key in {key_of(number) for number in range(13)}:
                found = store.query(topic, key, max_count=1_000_000)
                self._compare_found(topic, key, found, there, waiting)
        numbers = sorted(self._history.acked)
        for number in self._random.sample(numbers, min(len(numbers), 60)):
            line = self._history.acked[number]
            topic, name = QUEUES[line.queue][0], line.message_id.decode()
            found = store.query(topic, name)
            least = number not in self._history.cancel_begun | self._removed
            most = number not in self._history.cancelled
            if not least <= len(found) <= most:
                self.problems.append(f"query by id gave {len(found)} of {line}")
            if any(read_body(message.body)[0] != number for message in found):
                self.problems.append(f"query by id gave another than {line}")

    def _compare_found(
        self,
        topic: str,
        key: str,
        found: list[Message],
        there: dict[int, Message],
        waiting: set[str],
    ) -> None:
        got = {message.log_offset: message for message in found}
        wanted = {o: m for o, m in there.items() if m.topic == topic and key in m.keys}
        if len(got) < len(found):
            self.problems.append(f"query {topic} {key} gave one twice")
        if {o: m for o, m in got.items() if not m.waits} != wanted:
            self.problems.append(f"query {topic} {key}: {sorted(got)}, wanted {sorted(wanted)}")
        names = [message.message_id for message in found if message.waits]
        out = {message.message_id for message in there.values()}
        if len(set(names)) < len(names) or not waiting.issuperset(names) or out & set(names):
            self.problems.append(f"query {topic} {key}: does not wait, or twice: {names}")
        if any(message.topic != topic or key not in message.keys for message in found):
            self.problems.append(f"query {topic} {key}: of another topic, or without the key")

    def _compare(self, found: dict[int, list[Message]]) -> None:
        counts: Counter[int] = Counter()
        for queue, messages in found.items():
            for at, message in enumerate(messages, self._begins.get(queue, 0)):
                counts[self._compare_one(queue, at, message)] += 1
        counts.update(self._removed)
        self._compare_counts(counts)
        self._compare_seen(found)

    def _compare_one(self, queue: int, at: int, message: Message) -> int:
        number, due_ms = read_body(message.body)
        where = f"{QUEUES[queue]} offset {at} id {number:#x}"
        if message.queue_offset != at:
            self.problems.append(f"{where}: it says offset {message.queue_offset}")
        begun = self._history.begun.get(number)
        if begun is None or QUEUES[begun][0] != QUEUES[queue][0] or begun not in (0, queue):
            self.problems.append(f"{where}: put to {begun}")
        acked = self._history.acked.get(number)
        is_moved = acked is not None and number in self._history.moved
        if message.delivered_ms < (message.due_ms if is_moved else due_ms):
            self.problems.append(f"{where}: due {due_ms}, early at {message.delivered_ms}")
        if acked is not None:
            if acked.queue != queue:
                self.problems.append(f"{where}: the receipt says {QUEUES[acked.queue]}")
            # otherwise the due time in the receipt counts
            to_ms = self._history.moving.get(number, -1)
            # A reschedule to a time in the past means now.
            is_named = message.due_ms in (to_ms, message.delivered_ms)
            has_moved = 0 <= to_ms <= message.due_ms and is_named
            if acked.a != -1 and message.due_ms != acked.due and not has_moved:
                self.problems.append(f"{where}: due {message.due_ms}, receipt {acked.due}")
            if acked.a == -1 and at != acked.b:
                self.problems.append(f"{where}: the receipt says offset {acked.b}")
            if message.message_id.encode() != acked.message_id:
                self.problems.append(f"{where}: {message.message_id}, not {acked.message_id!r}")
        return number

    def _compare_counts(self, counts: "Counter[int]") -> None:
        history, cancelled = self._history, self._history.cancelled
        ingested = {n for version in history.ingesting for n, _ in ingest_rows(version)}
        for number in history.begun:
            count = counts[number]
            acked = history.acked.get(number)
            answers = history.answers.get(number, [])
            least = acked is not None and number not in history.cancel_begun
            least |= CancelResult.ALREADY_DELIVERED in answers or number in ingested
            most = number not in cancelled
            if not least <= count <= most:
                word = "lost" if count < least else "doubled" if count > 1 else "not cancelled"
                self.problems.append(f"{word}: {number:#x} came {count} times, {acked} {answers}")
            if number in history.refused and count:
                self.problems.append(f"refused, but stored: {number:#x}")
            if CancelResult.UNKNOWN in answers and not self._retains:
                self.problems.append(f"unknown when cancelled: {acked}")
        for first, size, is_atomic in history.batches:
            if first in history.acked:
                continue
            came = [
                counts[number] > 0 or number in history.cancel_begun
                for number in range(first, first + size)
            ]
            if came != sorted(came, reverse=True):
                self.problems.append(f"no prefix of a put_many that died: {first:#x}, {came}")
            if is_atomic and any(came) and not all(came):
                self.problems.append(f"a part of an atomic put_many: {first:#x}, {came}")

    def _compare_seen(self, found: dict[int, list[Message]]) -> None:
        for queue, pulled in self._history.pulled.items():
            messages = found.get(queue, [])
            lines = pulled[self._begins.get(queue, 0) :]
            if len(messages) < len(lines):
                self.problems.append(
                    f"{QUEUES[queue]}: {len(lines)} were seen, {len(messages)} are there"
                )
            for line, message in zip(lines, messages, strict=False):
                now = (read_body(message.body)[0], message.due_ms, message.delivered_ms)
                if now != (line.id, line.due, line.b):
                    self.problems.append(f"{QUEUES[queue]}: seen {line}, now {now}")
