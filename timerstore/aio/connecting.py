"""Connect to a server: `timerstore.aio.connect`."""

import ssl
from typing import Any

from timerstore._engine.base.net_loader import load_net


def connect(
    url: str,
    *,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    retry_for: float = 30.0,
    connect_timeout: float | None = None,
    call_timeout: float = 5.0,
    return_leases: bool = False,
) -> Any:
    """Connect to a server as timerstore.connect does: `await` it, or use `async with`.

    The result is an AsyncRemoteStore, which has the calls of AsyncTimerStore. All tasks of a loop
    share one connection. A call that is cancelled ends in the server, too; messages that it leased
    all the same are given back.

    Raises:
        ConfigError: an argument is invalid, or msgspec is not installed.

    When the result is awaited, it raises the other errors of timerstore.connect.
    """
    return load_net("async_remote_store").connect_async_store(
        url,
        token=token,
        tls=tls,
        retry_for=retry_for,
        connect_timeout=connect_timeout,
        call_timeout=call_timeout,
        return_leases=return_leases,
    )
