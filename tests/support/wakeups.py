"""Wake-ups of services by puts: shared calls and helpers."""

from collections.abc import Callable
from typing import Any

from tests.support.inside import (
    inside,
    service_event,
)
from timerstore import TimerStore

HOUR_S = 3600
PAUSE_S = 0.005
PATIENCE_S = 30.0
Put = Callable[[TimerStore], Any]
PUTS: dict[str, Put] = {
    "put": lambda store: store.put("t", b"x", delay=HOUR_S),
    "put_many": lambda store: store.put_many("t", [b"x", b"y"], delay=HOUR_S),
    "put_many with keys": lambda store: store.put_many("t", [b"x"], delay=HOUR_S, keys=["k"]),
    "put with a key": lambda store: store.put("t", b"x", delay=HOUR_S, keys="k"),
    "level": lambda store: store.put("t", b"x", level=18),
}


def woken(store: TimerStore) -> set[str]:
    """Return the services that were woken since the last call."""
    found = set()
    for name in ("dispatch", "flush"):
        event = service_event(store.services()[name])
        if event.is_set():
            found.add(name)
        event.clear()
    return found


def armed(store: TimerStore, value: int | None = None) -> int:
    native = inside(store).log.native
    if value is not None:
        native.flush_armed = value
    return int(native.flush_armed)
