"""One store, many processes: a server of an open store, and clients with the calls of a store.

    server = timerstore.net.serve(store, socket="/run/orders.sock")
    store = timerstore.connect("unix:///run/orders.sock")

frames.py, wire_messages.py, wire_values.py, wire_errors.py   the protocol (docs/protocol.md)
call_table.py                                    the calls that travel, one row each
store_server.py, acceptor.py, connections.py, server_connection.py, call_runner.py   the server
server_thread.py, fair_pool.py                   its threads
start_server.py, listening.py, access.py, secret_files.py, server_limits.py    its arguments
client_options.py, connector.py, attempt_limits.py, repeating.py     both clients
channel.py, byte_stream.py, tls_stream.py, surviving_lock.py  the connection of the one for threads
channel_parts.py                                              what both connections have in common
remote_store.py, remote_consumer.py                           the client for threads
remote_wait.py, readable_event.py                its calls for the event loops of others
async_channel.py, async_remote_store.py, async_remote_consumer.py   the client for asyncio
shared_store.py                                  a store that the first process serves to others
not_remote.py                                    the calls that cannot travel, with reasons

The modules are loaded when they are used, as they need the package msgspec.
"""

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from timerstore._engine.base.net_loader import load_net
from timerstore.store import TimerStore, connect

if TYPE_CHECKING:
    from timerstore.net.server_limits import ServerLimits
    from timerstore.net.store_server import StoreServer

__all__ = ["connect", "serve"]


def serve(
    store: TimerStore,
    *,
    socket: str | os.PathLike[str] | None = None,
    tcp: str | None = None,
    tls: tuple[str | os.PathLike[str], str | os.PathLike[str]] | None = None,
    token_file: str | os.PathLike[str] | None = None,
    insecure: bool = False,
    users: Iterable[int | str] = (),
    group: int | str | None = None,
    limits: "ServerLimits | None" = None,
    workers: int = 8,
) -> "StoreServer":
    """Serve an open store to other processes, on threads of this process. Return the server.

    The server ends when it or the store is closed, and by itself when the store has failed. Its
    clients then look for another server, and `StoreServer.wait` raises the failure: close the store
    and open it again.

    socket: the path of a unix socket to create, with mode 0600. Only processes of the same user and
    of root may connect. The file of a server that was killed is replaced.

    tcp: HOST:PORT; port 0 is a free one. It needs a token, and TLS unless the host is loopback.

    tls: files of a certificate chain and of its key, in PEM.

    token_file: a file, readable only by its owner, whose text clients must present on TCP.

    insecure: True to permit TCP without a token and without TLS.

    users: names or ids of further users that may connect to the unix socket. Its mode is then 0660,
    and they must be in its group.

    group: the group of the socket's file, by name or id. Its mode is then 0660, and without `users`
    all members may connect. By default it is the first group of `users`, if they have the same.

    limits: limits on everything that a client can make grow.

    workers: threads that run calls, 1 to 64.

    Raises:
        ConfigError: an argument is invalid, another server listens there, or msgspec is not
            installed.
    """
    server: StoreServer = load_net("start_server").start_server(
        store, socket, tcp, tls, token_file, insecure, users, group, limits, workers
    )
    return server
