"""A store with a small wheel and a far wheel, and steps of time."""

from pathlib import Path
from typing import Any

from tests.support.bench import Bench, small
from timerstore import StoreConfig
from timerstore._engine.format.store_paths import Tree

WHEEL_BYTES = 128 * 32

WINDOW = 48  # slots of a second, of a wheel of 128


def far_config(**changes: Any) -> StoreConfig:
    return small(**({"far_wheel": "shared", "roll_window_slots": WINDOW} | changes))


def far_bench(root: Path, **changes: Any) -> Bench:
    return Bench(root, far_config(**changes))


def stat(bench: Bench, name: str) -> int:
    return int(bench.store.stats()[name])


def go(bench: Bench, ms: int, steps: int = 40) -> None:
    """Advance the clock in steps, and run the services after each."""
    end_ms = bench.clock.now_ms + ms
    for n in range(1, steps + 1):
        bench.turn(end_ms - (ms * (steps - n)) // steps - bench.clock.now_ms)


def bodies(bench: Bench) -> list[bytes]:
    return [message.body for message in bench.out()]


def tree(bench: Bench) -> Tree:
    return Tree(bench.root)
