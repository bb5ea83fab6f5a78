"""Switch threads often, so that each thread meets the intermediate states of the others."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def many_switches(interval_s: float = 1e-5) -> Iterator[None]:
    """Make Python switch threads every `interval_s` seconds inside the context."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(interval_s)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
