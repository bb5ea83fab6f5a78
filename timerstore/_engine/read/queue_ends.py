"""Tell whether a queue has messages from an offset on, without a pull.

Thread safety: any thread.
Invariants:
    1. After `catch_up`, the answer is that of a pull: no put that returned before is missed, within
       the limits of pull.py.
"""

from timerstore._engine.base.owner import Owner
from timerstore._engine.queues.routes import Routes
from timerstore._engine.read.pull import Puller


class QueueEnds(Owner):
    """The ends of the queues of one store."""

    def __init__(self, routes: Routes, puller: Puller) -> None:
        self._routes = routes
        self._puller = puller

    def catch_up(self) -> None:
        """Dispatch the messages that are visible, as a pull does that finds nothing."""
        self._puller.catch_up()

    def has_messages(self, topic: str, queue_id: int, offset: int) -> bool:
        """Return whether a queue has visible messages from an offset on."""
        route = self._routes.get(topic, queue_id)
        return route is not None and route.queue.visible(self._puller.visible_end) > offset
