"""Access to a server: users of this machine on a unix socket, holders of a token on TCP.

Raises: ConfigError for a token file that others can read, or that has no token.
"""

import hmac
import os
import socket
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from timerstore._engine.storage.paths import absolute_path
from timerstore.errors import AccessError, ConfigError, ProtocolError, quoted
from timerstore.net.wire_messages import PROTOCOL_VERSION, Hello

_TOKEN_CHARACTERS = (16, 4096)
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class ServerAccess(NamedTuple):
    """The clients that may connect to one socket."""

    users: frozenset[int] | None
    """User ids that a unix socket accepts; None on TCP."""
    token: str | None
    """The token that the first message must contain; None if none is necessary."""

    def check_hello(self, hello: Hello) -> None:
        """Raise ProtocolError for another version, and AccessError for a wrong token."""
        if hello.version != PROTOCOL_VERSION:
            raise ProtocolError(
                "the client speaks another version of the protocol",
                wanted=f"version {PROTOCOL_VERSION}",
                got=f"version {hello.version}",
            )
        if self.token is not None and not hmac.compare_digest(
            self.token.encode(), (hello.token or "").encode("utf-8", "replace")
        ):
            raise AccessError("the token is wrong", wanted="the token of the server's token file")

    def accepts_user(self, uid: int) -> bool:
        """Return whether a user of this machine may connect."""
        return self.users is None or uid in self.users


def accepted_users(others: Iterable[int]) -> frozenset[int]:
    """Return this process's user, root, and others."""
    given = list(others)
    if wrong := [one for one in given if type(one) is not int or one < 0]:
        raise ConfigError(f"users: wanted user ids, got {quoted(wrong[0])}")
    return frozenset({os.geteuid(), 0, *given})


def read_token(path: str | os.PathLike[str]) -> str:
    """Return the token in a file: its text without blanks around it."""
    file = absolute_path("token_file", path)
    try:
        mode = file.stat().st_mode
        text = file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"token_file: cannot read {file} ({error})") from error
    if mode & 0o077:
        raise ConfigError(
            f"token_file: wanted a file that only its owner can read (chmod 600), got mode "
            f"{mode & 0o777:o}; at {file}"
        )
    low, high = _TOKEN_CHARACTERS
    if not low <= len(text) <= high:
        raise ConfigError(
            f"token_file: wanted a token of {low} to {high} characters, got {len(text)}; at {file}"
        )
    return text


def tls_files(cert: str | os.PathLike[str], key: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Return the paths of a certificate chain and its key."""
    return absolute_path("tls_cert", cert), absolute_path("tls_key", key)


def uid_of(one: socket.socket) -> int | None:
    """Return the user at the other end of a unix socket; None for another kind."""
    if one.family != socket.AF_UNIX:
        return None
    raw = one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[1])
