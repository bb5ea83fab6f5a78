"""The WSGI application of the tests: each request puts one message.

TIMERSTORE_URL names a server, or TIMERSTORE_SHARED a store that the workers share.
"""

import os
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import timerstore

DELAY_S = 0.3


@cache
def _store() -> Any:
    if url := os.environ.get("TIMERSTORE_URL"):
        return timerstore.connect(url, retry_for=120)  # a busy machine starts slowly
    return timerstore.open(os.environ["TIMERSTORE_SHARED"], shared=True)


if "TIMERSTORE_URL" in os.environ:
    _store()  # before the fork: gunicorn runs with --preload


def application(
    request: dict[str, Any], start: Callable[[str, list[tuple[str, str]]], object]
) -> Iterable[bytes]:
    body = request["wsgi.input"].read(int(request["CONTENT_LENGTH"]))
    receipt = _store().put("orders", body, delay=DELAY_S)
    start("200 OK", [("Content-Type", "text/plain")])
    return [receipt.message_id.encode()]
