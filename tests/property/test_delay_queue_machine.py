"""Compare timerstore.DelayQueue with a plain dict, in any order of calls and times."""

from contextlib import ExitStack
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.inside.parts import delay_queue_tables
from tests.support.inside.sizes import SMALL_DELAY_QUEUE, replaced
from timerstore import DelayQueue
from timerstore._engine.timer.delay_queue import DUE_MS_MAX

KEYS = st.integers(0, 30)
TIMES = st.one_of(
    st.integers(0, 60),  # few values, so that equal times, equal buckets and edges of buckets occur
    st.integers(0, 5000),
    st.sampled_from([999, 1000, 1001, 10**12, DUE_MS_MAX - 1, DUE_MS_MAX]),
)
COUNTS = st.one_of(st.none(), st.integers(0, 4))


class DelayQueueMachine(RuleBasedStateMachine):
    """The rules are the calls of the queue.

    The model maps a key to (due time, number of entries added before it, value).
    """

    @initialize(bucket_ms=st.sampled_from([1, 3, 10, 1000, DUE_MS_MAX]))
    def begin(self, bucket_ms: int) -> None:
        self.start(bucket_ms)

    def start(self, bucket_ms: int) -> None:
        self.queue = DelayQueue[Any, str](bucket_ms=bucket_ms)
        self.model: dict[Any, tuple[int, int, str]] = {}
        self.added = 0

    def wait(self, key: Any, due_ms: int) -> None:
        self.queue.add(key, due_ms, f"value {self.added}")
        self.model[key] = (due_ms, self.added, f"value {self.added}")
        self.added += 1

    def entry(self, key: Any) -> tuple[int, Any, str] | None:
        """Return the entry that the queue must return."""
        there = self.model.get(key)
        return None if there is None else (there[0], key, there[2])

    @rule(key=KEYS, due_ms=TIMES)
    def add(self, key: int, due_ms: int) -> None:
        self.cancel(key)
        self.wait(key, due_ms)

    @rule(due_ms=TIMES, spread_ms=st.integers(0, 3), count=st.integers(65, 150))
    def add_crowd(self, due_ms: int, spread_ms: int, count: int) -> None:
        """Add so many entries that cancelling them sweeps a bucket."""
        for at in range(count):
            self.wait(f"crowd {self.added}", min(DUE_MS_MAX, due_ms + at * spread_ms))

    @rule(leave=st.integers(0, 3))
    def cancel_crowd(self, leave: int) -> None:
        burst = [key for key in self.model if isinstance(key, str)]
        for key in burst[leave:]:
            self.cancel(key)

    @rule(key=KEYS)
    def cancel(self, key: int) -> None:
        assert self.queue.cancel(key) == self.entry(key)
        self.model.pop(key, None)

    @rule(key=KEYS)
    def find(self, key: int) -> None:
        assert self.queue.find(key) == self.entry(key)
        assert (key in self.queue) == (key in self.model)

    @rule(now_ms=TIMES, max_count=COUNTS)
    def expire(self, now_ms: int, max_count: int | None) -> None:
        due = [key for key, (due_ms, *_) in self.model.items() if due_ms <= now_ms]
        due = sorted(due, key=self.model.__getitem__)[:max_count]
        wanted = [self.entry(key) for key in due]
        assert self.queue.expire(now_ms, max_count=max_count) == wanted
        for key in due:
            del self.model[key]

    @rule()
    def next_due(self) -> None:
        wanted = min((due_ms for due_ms, *_ in self.model.values()), default=None)
        assert self.queue.next_due_ms() == wanted

    @invariant()
    def holds_what_it_says(self) -> None:
        queue = self.queue
        assert len(queue) == len(self.model)
        counts, opened, marks, numbers = delay_queue_tables(queue)
        assert sum(counts.values()) == len(self.model)
        assert {*opened, *marks} <= {*counts} <= numbers
        for number, count in counts.items():
            assert count > 0
            assert 0 <= marks.get(number, 0) <= count + 64

    def teardown(self) -> None:
        if hasattr(self, "queue"):
            self.expire(DUE_MS_MAX, None)
            assert not delay_queue_tables(self.queue).counts


class FittingMachine(DelayQueueMachine):
    """The same machine with buckets that are rebuilt often, wider and finer."""

    @initialize(bucket_ms=st.sampled_from([1, 3, 10]))
    def begin(self, bucket_ms: int) -> None:
        self.sizes = ExitStack()
        self.sizes.enter_context(replaced(SMALL_DELAY_QUEUE))
        self.start(bucket_ms)

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "sizes"):
            self.sizes.close()


TestDelayQueue = DelayQueueMachine.TestCase
TestFitting = FittingMachine.TestCase
