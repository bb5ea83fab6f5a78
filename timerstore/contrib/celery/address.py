"""Broker URLs, and the store that one names.

    timerstore:///PATH.sock        a server's unix socket
    timerstore+shared:///FOLDER    a store that the processes share, without a server
    timerstore+tls://HOST:PORT     a server on TCP with TLS; `token_file` in the transport options

Raises: ConfigError for a URL or an option that is invalid. What opening a store raises.
"""

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import timerstore
from timerstore.contrib.token_file import read_token
from timerstore.errors import ConfigError

Store = Any
"""A connected store; its type has no public name."""

_PREFIX = "timerstore"
_RETRY_FOR_S = 10.0
"""Seconds for which calls wait for a server that restarts, before Celery connects again."""


class Address(NamedTuple):
    """A store, as a broker URL names it."""

    kind: str
    """"unix", "shared" or "tls"."""
    place: str
    """The path, or HOST:PORT."""

    def __str__(self) -> str:
        scheme = _PREFIX if self.kind == "unix" else f"{_PREFIX}+{self.kind}"
        return f"{scheme}://{self.place}"


def address_of(client: Any) -> Address:
    """Return the address of a kombu connection.

    kombu keeps the URL as it is, without `timerstore+` if that is in front. After a change to an
    alternate it keeps the parts of the URL, with a path that lost its first slash.
    """
    scheme = client.transport_cls if isinstance(client.transport_cls, str) else _PREFIX
    if "://" in (client.hostname or ""):
        scheme, _, place = client.hostname.partition("://")
        place = unquote(place)
    elif client.hostname:
        place = f"{client.hostname}:{client.port}" if client.port else client.hostname
    else:
        place = f"/{client.virtual_host}"
    kind = scheme.removeprefix(_PREFIX).removeprefix("+") or "unix"
    is_path = place.startswith("/") and len(place) > 1
    if kind not in ("unix", "shared", "tls") or is_path is (kind == "tls"):
        plus = "" if scheme.startswith(_PREFIX) else f"{_PREFIX}+"
        raise ConfigError(
            "broker URL: wanted timerstore:///PATH.sock, timerstore+shared:///FOLDER or "
            f"timerstore+tls://HOST:PORT, got {plus}{scheme}://{place.rpartition('@')[2]}"
        )
    return Address(kind, place)


def open_store(
    address: Address, options: Mapping[str, Any], tls: Mapping[str, Any] | None
) -> Store:
    """Open the store of an address, with one attempt: Celery repeats it and logs each.

    options: the transport options; `token_file` is used.

    tls: kombu's `ssl`, Celery's `broker_use_ssl`; `ca_certs` is used.
    """
    if address.kind == "shared":
        return timerstore.open(address.place, shared=True, return_leases=True)
    is_tls = address.kind == "tls"
    return timerstore.connect(
        f"tls://{address.place}" if is_tls else f"unix://{address.place}",
        token=_token(options.get("token_file")) if is_tls else None,
        tls=_context(tls.get("ca_certs")) if is_tls and tls else None,
        retry_for=_RETRY_FOR_S,
        connect_timeout=0,
        return_leases=True,
    )


def _token(file: object) -> str:
    if not isinstance(file, str | Path):
        raise ConfigError(
            "token_file: wanted the path of the server's token file in the transport options "
            f"(broker_transport_options), got {file!r}"
        )
    return read_token(file)


def _context(ca_certs: Any) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_certs)
    except (OSError, TypeError) as error:  # ssl.SSLError is an OSError
        raise ConfigError(
            "ca_certs: wanted the path of certificates in PEM (broker_use_ssl), got "
            f"{ca_certs!r} ({error})"
        ) from error
