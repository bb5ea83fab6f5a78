"""Check the arguments of `serve`, and start the server.

Raises: ConfigError that names every invalid argument.
"""

import os
from typing import Any

from timerstore.api import SingleStoreApi
from timerstore.errors import ConfigError, quoted
from timerstore.net.endpoints import is_loopback, parse_host_port
from timerstore.net.secret_files import tls_context, tls_files
from timerstore.rocketmq.access_keys import AccessKeys, read_keys
from timerstore.rocketmq.group_policies import GroupPolicies, read_policies
from timerstore.rocketmq.rocketmq_limits import RocketmqLimits
from timerstore.rocketmq.rocketmq_server import GrpcAddress, RocketmqServer, ServedOptions
from timerstore.store import ConnectedStore, TimerStore


def start_server(
    store: TimerStore | ConnectedStore,
    address: str,
    tls: tuple[str | os.PathLike[str], str | os.PathLike[str]] | None,
    keys_file: str | os.PathLike[str] | None,
    groups_file: str | os.PathLike[str] | None,
    advertise: str | None,
    insecure: bool,
    auto_create: bool,
    limits: RocketmqLimits | None,
) -> RocketmqServer:
    """Implement timerstore.rocketmq.serve."""
    _check(store, address, tls, advertise, limits)
    found = GrpcAddress(*parse_host_port(address, "address"))
    if not insecure:
        _check_safe(found.host, tls, keys_file)
    files = None
    if tls is not None:
        files = tls_files(*tls)
        tls_context(*files)  # grpc reports a wrong file to no one
    options = ServedOptions(
        found,
        files,
        AccessKeys(None if keys_file is None else read_keys(keys_file)),
        GroupPolicies() if groups_file is None else read_policies(groups_file),
        None if advertise is None else GrpcAddress(*parse_host_port(advertise, "advertise")),
        auto_create,
        limits or RocketmqLimits(),
    )
    server = RocketmqServer(store, options)
    server.start()
    return server


def _check(store: Any, address: Any, tls: Any, advertise: Any, limits: Any) -> None:
    problems = []
    if not isinstance(store, SingleStoreApi):
        problems.append(
            f"store: wanted an open TimerStore or a connected one, got {type(store).__name__}"
        )
    if not isinstance(address, str):
        problems.append(f"address: wanted HOST:PORT, got {quoted(address)}")
    if advertise is not None and not isinstance(advertise, str):
        problems.append(f"advertise: wanted HOST:PORT, got {quoted(advertise)}")
    if tls is not None and (not isinstance(tls, tuple) or len(tls) != 2):
        problems.append("tls: wanted the files of a certificate and its key")
    if limits is not None and not isinstance(limits, RocketmqLimits):
        problems.append(f"limits: wanted RocketmqLimits, got {quoted(limits)}")
    if problems:
        raise ConfigError(problems)


def _check_safe(host: str, tls: object, keys_file: object) -> None:
    if is_loopback(host):
        return
    problems = []
    if tls is None:
        problems.append(f"tls: wanted a certificate and its key, as {host} is not loopback")
    if keys_file is None:
        problems.append(f"keys_file: wanted one, as {host} is not loopback")
    if problems:
        raise ConfigError([*problems, "insecure: True permits an address without them"])
