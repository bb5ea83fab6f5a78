"""Run a function on another thread while a hook of this thread is inside a step."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Answer = TypeVar("Answer")


def elsewhere(act: Callable[[], Answer], patience_s: float = 30.0) -> Answer:
    """Return the result of `act` on another thread, or raise its error.

    Raises:
        TimeoutError: it takes longer than `patience_s`; its thread is then left running.
    """
    answer: Future[Answer] = Future()

    def run() -> None:
        try:
            answer.set_result(act())
        except BaseException as error:  # noqa: BLE001 - handed on
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer.result(patience_s)
