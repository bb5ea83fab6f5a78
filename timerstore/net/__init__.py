"""One store, many processes: a server of an open store, and clients with the calls of a store.

    server = timerstore.net.serve(store, socket="/run/orders.sock")
    store = timerstore.connect("unix:///run/orders.sock")

frames.py, wire_messages.py, wire_values.py, wire_errors.py   the protocol (docs/protocol.md)
call_table.py                                    the calls that travel, one row each
store_server.py, server_connection.py, call_runner.py         the server
start_server.py, listening.py, access.py, server_limits.py    its arguments
channel.py, remote_store.py, remote_consumer.py               the client for threads
async_channel.py, async_remote_store.py, async_remote_consumer.py   the client for asyncio
shared_store.py                                  a store that the first process serves to others
not_remote.py                                    the calls that cannot travel, with reasons

The modules are loaded when they are used, as they need the package msgspec.
"""

import importlib
import os
import ssl
from collections.abc import Iterable
from types import ModuleType
from typing import TYPE_CHECKING

from timerstore.errors import ConfigError
from timerstore.store import TimerStore

if TYPE_CHECKING:
    from timerstore.net.remote_store import RemoteStore
    from timerstore.net.server_limits import ServerLimits
    from timerstore.net.store_server import StoreServer

__all__ = ["connect", "serve"]


def _load(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"timerstore.net.{name}")
    except ModuleNotFoundError as error:
        if error.name != "msgspec":
            raise
        raise ConfigError(
            "a server or a client needs msgspec, which is not installed: "
            "pip install 'timerstore[net]'"
        ) from error


def serve(
    store: TimerStore,
    *,
    socket: str | os.PathLike[str] | None = None,
    tcp: str | None = None,
    tls: tuple[str | os.PathLike[str], str | os.PathLike[str]] | None = None,
    token_file: str | os.PathLike[str] | None = None,
    insecure: bool = False,
    users: Iterable[int] = (),
    limits: "ServerLimits | None" = None,
    workers: int = 8,
) -> "StoreServer":
    """Serve an open store to other processes, on threads of this process. Return the server.

    Close the server before the store, or use `with`.

    socket: the path of a unix socket to create, with mode 0600. Only processes of the same user, of
    root, and of `users` may connect. The file of a server that was killed is replaced.

    tcp: HOST:PORT; port 0 is a free one. It needs a token, and TLS unless the host is loopback.

    tls: files of a certificate chain and of its key, in PEM.

    token_file: a file, readable only by its owner, whose text clients must present on TCP.

    insecure: True to permit TCP without a token and without TLS.

    users: ids of further users that may connect to the unix socket. Its mode is then 0666.

    limits: limits on everything that a client can make grow.

    workers: threads that run calls, 1 to 64.

    Raises:
        ConfigError: an argument is invalid, another server listens there, or msgspec is not
            installed.
    """
    server: StoreServer = _load("start_server").start_server(
        store, socket, tcp, tls, token_file, insecure, users, limits, workers
    )
    return server


def connect(
    url: str,
    *,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    retry_for: float = 30.0,
    return_leases: bool = False,
) -> "RemoteStore":
    """Connect to a server and return a store with the calls of TimerStore, for any thread.

    All threads share one connection. If it is lost, calls wait for the next server and are sent
    again, as far as they then happen once. A forked child process makes its own connection.

    url: unix:///PATH, tcp://HOST:PORT or tls://HOST:PORT.

    token: the text of the server's token file, for TCP.

    tls: settings of TLS, such as further certificate authorities; by default those of
    `ssl.create_default_context`.

    retry_for: seconds to look for a server, at the beginning and after the connection was lost. 0
    raises at once: then puts get no message id from the client.

    return_leases: True to have the server deliver leased messages again as soon as this connection
    ends, instead of when their leases end. A short break of the connection does so, too.

    Raises:
        ConfigError: an argument is invalid, or msgspec is not installed.
        UnavailableError: no server was found in time.
        AccessError: the server rejects the user or the token.
        ProtocolError: the server speaks another version of the protocol.
    """
    store: RemoteStore = _load("remote_store").connect_store(
        url, token=token, tls=tls, retry_for=retry_for, return_leases=return_leases
    )
    return store
