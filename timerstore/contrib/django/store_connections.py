"""Connect to the store of a backend. All threads and backends of a process share one connection.

Django makes an object of a backend for each thread, so the stores are kept here.

Raises: as `timerstore.connect`, or as `timerstore.open` for a shared store.
"""

import atexit
from typing import Any

import timerstore
from timerstore.contrib.token_file import read_token

RETRY_S = 10.0
"""How long a call looks for a server before it raises UnavailableError; a web server's own limit
for a request is often 30 s."""

Store = Any
"""What `timerstore.connect` returns: it has the calls of `timerstore.TimerStore`."""

_stores: dict[tuple[str, str | None], Store] = {}


def store_of(url: str, token_file: str | None) -> Store:
    """Return the store of a url, which is connected or opened when it is first used."""
    known = _stores.get((url, token_file))
    if known is not None:
        return known
    made = _connect(url, token_file)
    store = _stores.setdefault((url, token_file), made)
    if store is not made:  # another thread was faster
        made.close()
    return store


def close_store(url: str, token_file: str | None) -> None:
    """Close the store of a url, if it is open; the next use opens it again."""
    store = _stores.pop((url, token_file), None)
    if store is not None:
        store.close()


def _connect(url: str, token_file: str | None) -> Store:
    scheme, _, path = url.partition("://")
    if scheme == "shared":
        return timerstore.open(path, shared=True)
    token = None if token_file is None else read_token(token_file)
    return timerstore.connect(url, token=token, retry_for=RETRY_S)


@atexit.register
def _close_all() -> None:
    for known in list(_stores):
        close_store(*known)
