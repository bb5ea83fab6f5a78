"""A server for the official RocketMQ 5 clients: Java, Python, Node, Rust and others over gRPC.

    server = timerstore.rocketmq.serve(store, address="127.0.0.1:8081")

definitions/                             the protocol: our own .proto files, compiled
method_service.py                        each call: signature, decoding, errors, counts
topic_routes.py, client_settings.py, sending.py, receiving.py, settling.py, health.py    the methods
client_names.py, message_views.py, codes.py     names, messages and errors, to the store and back
known_clients.py, client_leases.py       the memory of the server about its clients
rocketmq_server.py, start_rocketmq_server.py    the server
rocketmq_limits.py, access_keys.py, group_policies.py    its arguments
connected_calls.py                       the store, if another process has it open
byte_budget.py                           the memory of calls
call_counts.py                           counts of calls

The modules are loaded when they are used, as they need the packages grpcio and protobuf.
See also: docs/rocketmq-clients.md, docs/decisions/0020-rocketmq-clients.md.
"""

import importlib
import os
from typing import TYPE_CHECKING

from timerstore.errors import ConfigError
from timerstore.store import ConnectedStore, TimerStore

if TYPE_CHECKING:
    from timerstore.rocketmq.rocketmq_limits import RocketmqLimits
    from timerstore.rocketmq.rocketmq_server import RocketmqServer

__all__ = ["serve"]

_PACKAGES = frozenset({"grpc", "google"})


def serve(
    store: TimerStore | ConnectedStore,
    *,
    address: str = "127.0.0.1:8081",
    tls: tuple[str | os.PathLike[str], str | os.PathLike[str]] | None = None,
    keys_file: str | os.PathLike[str] | None = None,
    groups_file: str | os.PathLike[str] | None = None,
    advertise: str | None = None,
    insecure: bool = False,
    auto_create: bool = True,
    limits: "RocketmqLimits | None" = None,
) -> "RocketmqServer":
    """Serve a store to clients of RocketMQ, on a thread of this process. Return the server.

    The server ends when it is closed. That of an open store also ends when the store is closed or
    has failed.

    store: an open store, or one that `timerstore.connect` returned. Then the server makes a
    connection of its own, with the same address and token. While
    the process that has the store open is away, calls wait for it for `retry_for` seconds; after
    that clients get UNAVAILABLE.

    address: HOST:PORT; port 0 is a free one. An address that is not loopback needs `tls` and
    `keys_file`.

    tls: files of a certificate chain and of its key, in PEM.

    keys_file: a file, readable only by its owner, with an access key, a space and its secret on
    each line. Each call must then be signed.

    groups_file: a TOML file with the attempts, back-off, polls and leases of consumer groups.

    advertise: HOST:PORT that clients are sent to. By default it is the address that they dialled.

    insecure: True to permit an address that is not loopback without TLS and keys.

    auto_create: False to reject topics that the store does not have.

    limits: limits on everything that a client can make grow.

    Raises:
        ConfigError: an argument is invalid, the port is in use, the store has shards, or grpcio or
            protobuf is not installed.
        ClosedError: the store is closed.
        UnavailableError: the process that has a connected store open was not reached in time.
        AccessError, ProtocolError: as `timerstore.connect`.
    """
    try:
        start = importlib.import_module("timerstore.rocketmq.start_rocketmq_server").start_server
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _PACKAGES:
            raise
        raise ConfigError(
            "a server for clients of RocketMQ needs grpcio and protobuf, which are not installed: "
            "pip install '.[rocketmq]' in a checkout"
        ) from error
    server: RocketmqServer = start(
        store, address, tls, keys_file, groups_file, advertise, insecure, auto_create, limits
    )
    return server
