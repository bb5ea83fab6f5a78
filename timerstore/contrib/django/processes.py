"""Run the same function in several processes, and start one again that dies.

The processes are spawned, as the caller may have threads (Django's autoreload has).
"""

import logging
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from threading import Event
from typing import Any

_LOOK_S = 0.5
_MORE_S = 5.0  # for the end of a process, in addition to the time that its tasks have

_log = logging.getLogger(__name__)


def supervise(
    count: int, target: Callable[..., None], args: tuple[Any, ...], stopping: Event, stop_s: float
) -> None:
    """Run `count` processes until `stopping` is set. They then get SIGTERM, and `stop_s` seconds to
    end; after that they are killed.
    """
    spawn = multiprocessing.get_context("spawn")

    def start() -> BaseProcess:
        made = spawn.Process(target=target, args=args, daemon=True)
        made.start()
        return made

    running = [start() for _ in range(count)]
    while not stopping.wait(_LOOK_S):
        for k, one in enumerate(running):
            if not one.is_alive():
                _log.error("process %s ended with exit code %s", one.pid, one.exitcode)
                running[k] = start()
    for one in running:
        one.terminate()
    deadline_s = time.monotonic() + stop_s + _MORE_S
    for one in running:
        one.join(max(0.0, deadline_s - time.monotonic()))
        if one.is_alive():
            _log.error("process %s did not end in time; it is killed", one.pid)
            one.kill()
            one.join()
