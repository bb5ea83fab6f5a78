"""A signal handler may run at any bytecode of the wait that it ends."""

import itertools
import signal
from collections.abc import Callable
from typing import Any, cast

import pytest

from tests.support.any_bytecode import handled
from timerstore.cli.stopping import Stop

_FILES = frozenset({"stopping.py", "service.py", "threading.py"})


def test_signal_at_any_bytecode_of_a_wait_ends_it() -> None:
    for at in itertools.count():
        stop = Stop()
        is_handled = handled(
            lambda one=stop: one.wait(0), lambda one=stop: one.ask(signal.SIGTERM), at, _FILES
        )
        if not is_handled:
            break
        assert stop.wait(60)
    assert at > 10


def test_signal_at_any_bytecode_of_the_wait_of_the_dashboard_ends_it() -> None:
    server: Any = pytest.importorskip("timerstore.dashboard.server")
    for at in itertools.count():
        with server._stopped_by_signals() as stopped:
            stop = cast("Callable[..., None]", signal.getsignal(signal.SIGTERM))
            ends: list[bool] = []
            is_handled = handled(
                lambda: ends.append(stopped.wait(0)),  # noqa: B023 - called at once
                lambda: stop(signal.SIGTERM, None),  # noqa: B023
                at,
                _FILES,
            )
            if not is_handled:
                break
            assert ends == [True] or stopped.wait(60)
    assert at > 3
