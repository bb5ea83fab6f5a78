"""The timer's services, wheel and topic queues."""

from typing import Any

from tests.support.inside.attribute import Attribute
from timerstore._engine.timer import dequeue_put, fair_queue
from timerstore._engine.timer.delay_queue import DelayQueue
from timerstore._engine.timer.pending import WheelPending


def placing_of_cancels(many_canceller: Any) -> Attribute:
    """Return the method that appends one part of a cancel of many."""
    return Attribute(many_canceller, "_place")


PENDING_DUE = Attribute(WheelPending, "_due")
"""The method by which the reader of pending messages reads due times."""


def run_count(open_slot: Any) -> int:
    """Return how many sorted runs the open slot holds."""
    return len(open_slot._rest._runs)


def delivery_chunk_count() -> int:
    """Return how many messages dequeue-put delivers in one critical section."""
    return dequeue_put._CHUNK


def make_topic_queue(now_ns: int) -> Any:
    """Make the queue of one topic with a rate."""
    return fair_queue._TopicQueue(now_ns)


DELAY_QUEUE_MAKE_BUCKETS = Attribute(DelayQueue, "_make_buckets")
"""The method by which a DelayQueue moves all its entries to buckets of another width."""


def opened_bucket(queue: Any, number: int) -> Any:
    """One sorted bucket of a DelayQueue."""
    return queue._opened[number]


def bucket_parts(queue: Any) -> list[Any]:
    """Return all buckets of a DelayQueue, sorted and not, with the marks in them."""
    return [*queue._buckets.values(), *queue._opened.values()]


def bucket_count(queue: Any) -> int:
    """Return how many buckets a DelayQueue has."""
    return len(queue._buckets)


def bucket_number_count(queue: Any) -> int:
    """Return how many numbers of buckets a DelayQueue holds, stale ones too."""
    return len(queue._numbers) + len(queue._new_numbers)


def bucket_width_ms(queue: Any) -> int:
    """How wide the buckets of a DelayQueue are."""
    return int(queue._width_ms)
