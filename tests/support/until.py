"""Wait for threads of a store or a server, which a test cannot step."""

import time
from collections.abc import Callable

from tests.support.held_sync import PATIENCE_S


def until(condition: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    """Return when the condition is true; fail if that takes too long."""
    end_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end_s, "nothing came"
        time.sleep(0.001)
