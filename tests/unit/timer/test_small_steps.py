"""The work of small steps: it does not grow with the messages that wait, and it stays small.

Work is counted in calls of functions and of the system, never in time.
"""

import sys
from collections import Counter
from collections.abc import Callable
from itertools import count as numbers
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

from tests.support.bench import NOW, Bench, small
from timerstore.testing import Stepper

WAITING = [0, 1, 5_000]
"""Other messages that wait, spread over a day."""


class Work(NamedTuple):
    """Calls that were made."""

    functions: int
    """Of Python functions of the package."""
    distinct: int
    """Python functions of the package that were called."""
    system: Counter[str]
    """Of functions of the module posix, by name. Those that C makes are not among them."""


def work_of(call: Callable[[], object]) -> Work:
    functions, system = 0, Counter[str]()
    called_code: set[object] = set()

    def note(frame: FrameType, event: str, called: Any) -> None:
        nonlocal functions
        if event == "call" and "/timerstore/" in frame.f_code.co_filename:
            functions += 1
            called_code.add(frame.f_code)
        elif event == "c_call" and called.__module__ == "posix":
            system[called.__name__] += 1

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return Work(functions, len(called_code), system)


def waiting(root: Path, count: int) -> Bench:
    """Open a store with messages that wait, whose services have nothing to do."""
    config = small(checkpoint_interval_ms=600_000, wheel_slot_count=1 << 18)
    bench = Bench(root / f"{count}", config)
    if count:
        due_ms = [NOW + 60_000 + k * 86_400_000 // count for k in range(count)]
        bench.store.put_many("t", [b"x"] * count, deliver_ms=due_ms)
    for _ in range(3):
        bench.turn(1000)
    return bench


def step(bench: Bench) -> None:
    """Step each service once, in the order of the threads' names."""
    stepper = Stepper(bench.store)
    for name in stepper.names:
        stepper.step(name)


def look(bench: Bench) -> Work:
    return work_of(lambda: step(bench))


def look_later(bench: Bench) -> Work:
    bench.clock.advance(100)
    return look(bench)


def deliver(bench: Bench) -> Work:
    bench.store.put("now", b"x", delay=1)
    bench.turn()
    bench.clock.advance(1000)
    return work_of(bench.turn)


def receive(bench: Bench) -> Work:
    put_now(bench)
    return work_of(lambda: bench.store.receive("u", "g"))


def receive_buffered(bench: Bench) -> Work:
    put_now(bench)
    put_now(bench)
    bench.store.receive("u", "g")  # reads both
    return work_of(lambda: bench.store.receive("u", "g"))


def receive_nothing(bench: Bench) -> Work:
    bench.store.receive("u", "g", max_count=100)
    return work_of(lambda: bench.store.receive("u", "g"))


def ack(bench: Bench) -> Work:
    put_now(bench)
    (one,) = bench.store.receive("u", "g")
    return work_of(lambda: bench.store.ack(one))


def cancel(bench: Bench) -> Work:
    receipt = bench.store.put("u", b"x", delay=50)
    bench.turn()
    return work_of(lambda: bench.store.cancel(receipt))


def pull(bench: Bench) -> Work:
    put_now(bench)
    return work_of(lambda: bench.store.pull("u", 0, 0, max_count=1))


def put(bench: Bench) -> Work:
    return work_of(lambda: bench.store.put("u", b"x", keys="k"))


def put_with_id(bench: Bench) -> Work:
    named = {"message_id": f"id-{bench.clock.now_ms}-{next(_NUMBERS)}", "properties": {"a": "b"}}
    return work_of(lambda: bench.store.put("u", b"x", delay=60, **named))


def put_now(bench: Bench) -> None:
    bench.store.put("u", b"x")
    bench.turn()


_NUMBERS = numbers()
_SYNC = {"pwrite": 1, "fdatasync": 1}
LIMITS: dict[Callable[[Bench], Work], tuple[int, dict[str, int]]] = {
    look: (120, {}),
    look_later: (120, {}),
    deliver: (680, {**_SYNC, "pwrite": 3}),
    receive: (139, {"pread": 1}),
    receive_buffered: (72, {}),
    receive_nothing: (64, {}),
    ack: (43, {}),
    cancel: (145, {**_SYNC, "pread": 2}),
    pull: (95, {"pread": 1}),
    put: (38, {}),
    put_with_id: (46, {}),
}
"""Most functions, about a tenth above what they are, and the system calls."""
DISTINCT = {receive: 99, receive_buffered: 57, receive_nothing: 20, put_with_id: 35}
"""Most different functions: the hops of a call."""


@pytest.mark.parametrize("count", WAITING)
def test_work_of_small_steps_is_bounded(tmp_path: Path, count: int) -> None:
    bench = waiting(tmp_path, count)
    for make, (most, system) in LIMITS.items():
        found = min((make(bench) for _ in range(5)), key=lambda one: one.functions)
        assert found.functions <= most, make
        assert found.system == system, make
        assert found.distinct <= DISTINCT.get(make, most), make
    bench.close()
