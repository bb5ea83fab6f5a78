"""Another thread, that does something meanwhile: a hook itself is amid the step that it is in."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Answer = TypeVar("Answer")


def elsewhere(act: Callable[[], Answer], patience_s: float = 30.0) -> Answer:
    """Give its answer, or raise what it raised; TimeoutError where it takes too long: nobody waits
    for that thread then.
    """
    answer: Future[Answer] = Future()

    def run() -> None:
        try:
            answer.set_result(act())
        except BaseException as error:  # noqa: BLE001 - handed on
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer.result(patience_s)
