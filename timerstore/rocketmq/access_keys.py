"""Access keys of clients, and the signature of their calls.

A call has the header `authorization: MQv2-HMAC-SHA1 Credential=KEY, SignedHeaders=x-mq-date-time,
Signature=HEX`. The signature is that of the header `x-mq-date-time`, and of nothing else. So a
program that reads one call in the network can repeat it: keys need TLS.

Raises: ConfigError for a file that others can read, or with a line that is not a key.
"""

import hashlib
import hmac
import os
import re
from collections.abc import Mapping
from pathlib import Path

from timerstore.errors import ConfigError
from timerstore.net.secret_files import read_secrets
from timerstore.rocketmq.codes import RejectedError
from timerstore.rocketmq.definitions import Code

_HEADER = re.compile(
    r"MQv2-HMAC-SHA1 +Credential=([^,/ ]*)(?:[/ ][^,]*)?, *SignedHeaders=[^,]*, *"
    r"Signature=([0-9A-Fa-f]*)"
)
_SECRET_CHARACTERS_MIN = 8


class AccessKeys:
    """The keys of a server. Without any, each call is accepted."""

    def __init__(self, secrets: Mapping[str, str] | None) -> None:
        self._secrets = secrets

    def check(self, headers: Mapping[str, str]) -> None:
        """Raise RejectedError unless the call is signed with one of the keys."""
        if self._secrets is None:
            return
        found = _HEADER.fullmatch(headers.get("authorization", ""))
        date = headers.get("x-mq-date-time", "")
        if found is None or not date:
            raise RejectedError(
                Code.UNAUTHORIZED,
                "authorization: wanted a call that is signed (MQv2-HMAC-SHA1), got none; give the "
                "client an access key and its secret",
            )
        name, signature = found.groups()
        secret = self._secrets.get(name)
        wanted = hmac.new((secret or "").encode(), date.encode(), hashlib.sha1).hexdigest()
        is_same = hmac.compare_digest(wanted, signature.lower())
        if secret is None or not is_same:
            raise RejectedError(
                Code.UNAUTHORIZED,
                "authorization: the access key or its secret is wrong; wanted one of the server's "
                "file of keys",
            )


def read_keys(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the secrets in a file by access key: on each line a key, a space, its secret.

    Empty lines and lines that begin with # are skipped.
    """
    file, text = read_secrets("keys_file", path)
    return _parsed(text, file)


def _parsed(text: str, file: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or line.startswith("#"):
            continue
        if len(words) != 2 or not line.isascii() or set("/,") & set(words[0]):
            problems.append(
                f"keys_file: wanted an access key, a space and its secret, without / and , in the "
                f"key; at {file} line {number}"
            )
        elif len(words[1]) < _SECRET_CHARACTERS_MIN:
            problems.append(
                f"keys_file: wanted a secret of {_SECRET_CHARACTERS_MIN} characters or more, got "
                f"{len(words[1])}; at {file} line {number}"
            )
        elif words[0] in found:
            problems.append(f"keys_file: wanted each key once; at {file} line {number}")
        else:
            found[words[0]] = words[1]
    if not found and not problems:
        problems.append(f"keys_file: wanted one access key or more, got none; at {file}")
    if problems:
        raise ConfigError(problems)
    return found
