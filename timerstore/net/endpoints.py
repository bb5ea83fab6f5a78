"""Addresses of servers: unix:///run/orders.sock, tcp://host:port, tls://host:port.

A unix socket's address holds 107 bytes. A longer path is reached through /proc/self/fd, by the
descriptor of its folder.

Raises: ConfigError for another address.
"""

import ipaddress
import os
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from timerstore._engine.storage.anchor import absolute_path
from timerstore.errors import ConfigError, quoted

_credentials = struct.Struct("3i")  # process, user, group
_UNIX_BYTES_MAX = 107
_KEEP_IDLE_S = 30
_KEEP_INTERVAL_S = 10
_UNANSWERED_MS = 60_000
_FORMS = "wanted unix:///PATH, tcp://HOST:PORT or tls://HOST:PORT"


class Endpoint(NamedTuple):
    """Where a server listens."""

    path: Path | None
    """Of a unix socket; otherwise None."""
    host: str = ""
    port: int = 0
    is_tls: bool = False

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.is_tls else 'tcp'}://{host}:{self.port}"


def parse_endpoint(url: object) -> Endpoint:
    """Return the address in a URL."""
    if not isinstance(url, str):
        raise ConfigError(f"url: {_FORMS}, got {quoted(url)}")
    scheme, _, rest = url.partition("://")
    if scheme == "unix" and rest:
        return Endpoint(absolute_path("url", rest))  # any character may be in a path
    if scheme in ("tcp", "tls"):
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
            (host or "").encode("idna")  # else connecting raises an error of its own
        except ValueError as error:
            raise ConfigError(f"url: {_FORMS}, got {quoted(url)} ({error})") from error
        if host and port and rest == parts.netloc and "@" not in rest:
            return Endpoint(None, host, port, scheme == "tls")
        if "@" in rest:  # a password is not repeated in the text
            raise ConfigError(f"url: {_FORMS}, got a user or a password; give a token with `token`")
    raise ConfigError(f"url: {_FORMS}, got {quoted(url)}")


def parse_host_port(text: str, name: str = "tcp") -> tuple[str, int]:
    """Return the HOST:PORT of an option; the port may be 0, for a free one."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(f"{name}: wanted HOST:PORT, got {quoted(text)}")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, so that no network is between."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def unix_address(path: Path) -> Iterator[str]:
    """Yield an address of a unix socket that fits, valid inside the block."""
    if len(os.fsencode(path)) <= _UNIX_BYTES_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        address = f"/proc/self/fd/{folder}/{path.name}"
        if len(os.fsencode(address)) > _UNIX_BYTES_MAX:
            raise ConfigError(
                f"socket: wanted a shorter file name, got {len(os.fsencode(path.name))} bytes; at "
                f"{path}"
            )
        yield address
    finally:
        os.close(folder)


def keep_alive(one: socket.socket) -> None:
    """Have the system end a TCP connection whose other end is gone, after about a minute."""
    if one.family not in (socket.AF_INET, socket.AF_INET6):
        return
    one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEP_IDLE_S)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEP_INTERVAL_S)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MS)


def close_copies(numbers: Iterable[int]) -> None:
    """Close a forked child's copies of sockets, except for numbers below 0.

    The numbers stay taken: the parent's objects, of which the child has copies as well, close them
    later.
    """
    found = [one for one in numbers if one >= 0]
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for one in found:
        os.dup2(nothing, one, inheritable=False)
    os.close(nothing)


def silent_server(endpoint: Endpoint, one: Any) -> str:
    """Return the reason of a connection on which no answer came: of a unix socket, the process.

    `one`: the socket, if it was connected.
    """
    if endpoint.path is None or one is None:
        return "the server does not answer"
    found = one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _credentials.size)
    return f"process {_credentials.unpack(found)[0]}, which listens there, does not answer"


def connected_socket(endpoint: Endpoint, timeout_s: float) -> socket.socket:
    """Return a socket that is connected to a server, without TLS. OSError if none listens."""
    if endpoint.path is None:
        one = socket.create_connection((endpoint.host, endpoint.port), timeout_s)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(one)
        return one
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        one.settimeout(timeout_s)
        with unix_address(endpoint.path) as address:
            one.connect(address)
    except BaseException:
        one.close()
        raise
    return one
