"""The calls and components of a store that its consumers use."""

from collections.abc import Callable
from typing import Any, NamedTuple

from timerstore._engine.read.consumer_offsets import Offsets
from timerstore._engine.read.groups import Filters, Groups
from timerstore._engine.read.wait_queue import AddPoll, RemovePoll
from timerstore.clock import Clock
from timerstore.messages import PullResult


class ConsumerContext(NamedTuple):
    """The calls and components of one store."""

    clock: Clock
    groups: Groups
    offsets: Offsets
    call: Callable[..., Any]
    """Runs a function as a call of the store, which `close` waits for."""
    pull: Callable[[str, int, int, int, int, Filters], PullResult]
    """Pulls of a topic, a queue and an offset: a number of messages, and of bytes."""
    offset_at: Callable[[str, int, int], int]
    before_wait: Callable[[], None]
    """Raises if the store has failed, and requests a sync."""
    poll_adder: Callable[[str, Filters], AddPoll]
    remove_poll: RemovePoll
