"""What a consumer hands out, in a test."""

import threading
import time
from collections.abc import Callable
from typing import Any

from timerstore import (
    Consumer,
    Message,
)


def read(consumer: Consumer) -> list[bytes]:
    return [message.body for message in consumer]


def places(messages: list[Message]) -> set[tuple[int, int]]:
    return {(m.queue_id, m.queue_offset) for m in messages}


def until(is_true: Callable[[], bool], seconds: float = 20) -> None:
    """Wait until another thread has made it true."""
    end_s = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end_s, "it does not become true"
        time.sleep(0.0005)


class Running:
    """A call on its own thread."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._result: Any = None
        self._call = call
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._call()
        except Exception as error:  # noqa: BLE001 - looked at by the test
            self._result = error

    def is_done(self, within: float) -> bool:
        self._thread.join(within)
        return not self._thread.is_alive()

    def answer(self) -> Any:
        assert self.is_done(30), "it still waits"
        return self._result
