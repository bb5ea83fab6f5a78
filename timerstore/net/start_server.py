"""Check the arguments of `serve`, open its sockets, and start the server.

Raises: ConfigError that names every invalid argument; no socket is left open then.
"""

import os
import ssl
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from timerstore._engine.storage.anchor import absolute_path
from timerstore.aio import WORKERS_MAX
from timerstore.errors import ConfigError, quoted
from timerstore.net.access import ServerAccess, SocketRules, read_token, socket_rules
from timerstore.net.endpoints import is_loopback, parse_host_port
from timerstore.net.listening import listen_tcp, listen_unix
from timerstore.net.secret_files import tls_context, tls_files
from timerstore.net.server_limits import ServerLimits
from timerstore.net.store_server import Listener, StoreServer
from timerstore.store import TimerStore


def start_server(
    store: TimerStore,
    socket: str | os.PathLike[str] | None,
    tcp: str | None,
    tls: tuple[str | os.PathLike[str], str | os.PathLike[str]] | None,
    token_file: str | os.PathLike[str] | None,
    insecure: bool,
    users: Iterable[int | str],
    group: int | str | None,
    limits: ServerLimits | None,
    workers: int,
) -> StoreServer:
    """Implement timerstore.net.serve."""
    _check(store, socket, tcp, tls, limits, workers)
    _check_used(socket, tcp, token_file, users, group, insecure=insecure)
    with ExitStack() as undo:
        listeners = []
        if tcp is not None:
            token = None if token_file is None else read_token(token_file)
            context = None if tls is None else tls_context(*tls_files(*tls))
            host, port = parse_host_port(tcp)
            _check_safe(host, token, context, insecure=insecure)
            one = Listener(listen_tcp(host, port), ServerAccess(None, token), context)
            undo.callback(one.socket.close)
            listeners.append(one)
        if socket is not None:
            rules = socket_rules(users, group)
            listeners.append(unix_listener(absolute_path("socket", socket), rules))
            undo.callback(listeners[-1].socket.close)
        server = StoreServer(store, listeners, limits or ServerLimits(), workers)
        server.start()
        undo.pop_all()
        return server


def unix_listener(path: Path, rules: SocketRules, *, is_guarded: bool = False) -> Listener:
    """Return a listener on a unix socket."""
    one, identity = listen_unix(path, rules.mode, rules.group, is_guarded=is_guarded)
    return Listener(one, ServerAccess(rules.users, None), None, path, identity)


def _check(store: Any, socket: Any, tcp: Any, tls: Any, limits: Any, workers: Any) -> None:
    problems = []
    if not isinstance(store, TimerStore):
        problems.append(
            f"store: wanted an open TimerStore, got {type(store).__name__}; for shards, serve each "
            "of `stores` on a socket of its own"
        )
    if socket is None and tcp is None:
        problems.append("socket, tcp: wanted one of them or both, got none")
    if tcp is not None and not isinstance(tcp, str):
        problems.append(f"tcp: wanted HOST:PORT, got {quoted(tcp)}")
    if tls is not None and (tcp is None or not isinstance(tls, tuple) or len(tls) != 2):
        problems.append("tls: wanted the files of a certificate and its key, together with tcp")
    if limits is not None and not isinstance(limits, ServerLimits):
        problems.append(f"limits: wanted ServerLimits, got {quoted(limits)}")
    if type(workers) is not int or not 1 <= workers <= WORKERS_MAX:
        problems.append(f"workers: wanted 1 to {WORKERS_MAX}, got {quoted(workers)}")
    if problems:
        raise ConfigError(problems)


def _check_used(
    socket: object,
    tcp: object,
    token_file: object,
    users: Iterable[int | str],
    group: object,
    *,
    insecure: bool,
) -> None:
    """Reject an option of access that protects nothing."""
    problems = []
    if tcp is None and token_file is not None:
        problems.append("token_file: wanted tcp with it; a unix socket has no token")
    if tcp is None and insecure:
        problems.append("insecure: wanted tcp with it")
    if socket is None and users:
        problems.append("users: wanted socket with it; TCP does not know the users")
    if socket is None and group is not None:
        problems.append("group: wanted socket with it")
    if problems:
        raise ConfigError(problems)


def _check_safe(
    host: str, token: str | None, tls: ssl.SSLContext | None, *, insecure: bool
) -> None:
    problems = []
    if token is None:
        problems.append("token_file: wanted one, as every user of the network can reach a TCP port")
    if tls is None and not is_loopback(host):
        problems.append(f"tls: wanted a certificate and its key, as {host} is not loopback")
    if problems and not insecure:
        raise ConfigError([*problems, "insecure: True permits TCP without them"])
