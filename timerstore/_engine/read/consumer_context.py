"""The components of a store that its consumers use."""

from collections.abc import Callable
from typing import Any, NamedTuple

from timerstore._engine.queues.routes import Routes
from timerstore._engine.read.consumer_offsets import Offsets
from timerstore._engine.read.groups import Groups
from timerstore._engine.read.pull import Puller
from timerstore.clock import Clock


class ConsumerContext(NamedTuple):
    """The components of one store."""

    clock: Clock
    routes: Routes
    puller: Puller
    groups: Groups
    offsets: Offsets
    call: Callable[..., Any]
    """Runs a function as a call of the store, which `close` waits for."""
