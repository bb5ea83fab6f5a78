"""Access to a server: users of this machine on a unix socket, holders of a token on TCP.

Raises: ConfigError for a token file that others can read, or that has no token.
"""

import grp
import hmac
import os
import pwd
import socket
import struct
from collections.abc import Iterable
from typing import NamedTuple

from timerstore.errors import AccessError, ConfigError, ProtocolError, quoted
from timerstore.net.secret_files import read_secrets
from timerstore.net.wire_messages import PROTOCOL_VERSION, Hello

_OWN_MODE = 0o600
_GROUP_MODE = 0o660
_IDS = 2**32 - 1
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


class SocketRules(NamedTuple):
    """The file of a unix socket, and the users that may connect to it."""

    users: frozenset[int] | None
    """None: each user that the mode of the file lets connect."""
    mode: int
    group: int | None
    """The group of the file, for mode 0660."""


def socket_rules(users: Iterable[int | str] = (), group: int | str | None = None) -> SocketRules:
    """Return the rules of a socket for this process's user, root, and others.

    Only the group can open the file of a socket to others. Without `group` it is the one that is
    the first group of all `users`.
    """
    given = [_user_id(one) for one in ([users] if isinstance(users, str) else users)]
    own = frozenset({os.geteuid(), 0})
    others = frozenset(given) - own
    if group is None and not others:
        return SocketRules(own, _OWN_MODE, None)
    gid = _common_group(others) if group is None else _group_id(group)
    return SocketRules(own | others if given else None, _GROUP_MODE, gid)


def _user_id(one: int | str) -> int:
    if isinstance(one, str):
        try:
            return pwd.getpwnam(one).pw_uid
        except (KeyError, ValueError) as error:
            raise ConfigError(f"users: no user has the name {quoted(one)}") from error
    if type(one) is not int or not 0 <= one < _IDS:
        raise ConfigError(f"users: wanted names or ids of users, got {quoted(one)}")
    return one


def _group_id(one: int | str) -> int:
    if isinstance(one, str):
        try:
            return grp.getgrnam(one).gr_gid
        except (KeyError, ValueError) as error:
            raise ConfigError(f"group: no group has the name {quoted(one)}") from error
    if type(one) is not int or not 0 <= one < _IDS:
        raise ConfigError(f"group: wanted the name or the id of a group, got {quoted(one)}")
    return one


def _common_group(users: frozenset[int]) -> int:
    found = set()
    for one in users:
        try:
            found.add(pwd.getpwuid(one).pw_gid)
        except KeyError as error:
            raise ConfigError(
                f"group: wanted one whose members are the users, as the system does not know the "
                f"group of user {one}"
            ) from error
    if len(found) > 1:
        raise ConfigError(
            "group: wanted one whose members are the users, as they have different groups: "
            f"{', '.join(map(str, sorted(found)))}"
        )
    return found.pop()


def read_token(path: str | os.PathLike[str]) -> str:
    """Return the token in a file: its text without blanks around it."""
    file, text = read_secrets("token_file", path)
    text = text.strip()
    low, high = _TOKEN_CHARACTERS
    if not low <= len(text) <= high:
        raise ConfigError(
            f"token_file: wanted a token of {low} to {high} characters, got {len(text)}; at {file}"
        )
    return text


def uid_of(one: socket.socket) -> int | None:
    """Return the user at the other end of a unix socket; None for another kind."""
    if one.family != socket.AF_UNIX:
        return None
    raw = one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[1])
