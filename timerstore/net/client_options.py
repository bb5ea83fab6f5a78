"""Check the arguments of `connect`, for both clients.

Raises: ConfigError that names every invalid argument.
"""

import ssl
import warnings
from typing import Any, NamedTuple

from timerstore.errors import ConfigError, quoted
from timerstore.net.attempt_limits import ClientTimes
from timerstore.net.endpoints import Endpoint, is_loopback, parse_endpoint
from timerstore.net.wire_messages import PROTOCOL_VERSION, Hello

_TIME_S_MAX = 86_400.0
_CALL_S_MIN = 0.1


class ClientOptions(NamedTuple):
    """The checked arguments of `connect`."""

    endpoint: Endpoint
    hello: Hello
    tls: ssl.SSLContext | None
    times: ClientTimes


def checked_options(
    url: object,
    *,
    token: Any,
    tls: Any,
    retry_for: Any,
    connect_timeout: Any,
    call_timeout: Any,
    return_leases: Any,
) -> ClientOptions:
    """Return the options of a client. Warn about a token that others on the network can read."""
    first = retry_for if connect_timeout is None else connect_timeout
    problems = []
    if token is not None and not isinstance(token, str):
        problems.append(f"token: wanted text, got {type(token).__name__}")
    if tls is not None and not isinstance(tls, ssl.SSLContext):
        problems.append(f"tls: wanted an ssl.SSLContext, got {quoted(tls)}")
    if not _is_time(retry_for, 0):
        problems.append(f"retry_for: wanted 0 to {_TIME_S_MAX:g} s, got {quoted(retry_for)}")
    if connect_timeout is not None and not _is_time(connect_timeout, 0):
        problems.append(
            f"connect_timeout: wanted 0 to {_TIME_S_MAX:g} s, got {quoted(connect_timeout)}"
        )
    if not _is_time(call_timeout, _CALL_S_MIN):
        problems.append(
            f"call_timeout: wanted {_CALL_S_MIN:g} to {_TIME_S_MAX:g} s, got {quoted(call_timeout)}"
        )
    if type(return_leases) is not bool:
        problems.append(f"return_leases: wanted True or False, got {quoted(return_leases)}")
    if problems:
        raise ConfigError(problems)
    endpoint = parse_endpoint(url)
    if token is not None and endpoint.path is None and not endpoint.is_tls:
        _warn_unless_loopback(endpoint)
    return ClientOptions(
        endpoint,
        Hello(PROTOCOL_VERSION, [], token, return_leases),
        tls,
        ClientTimes(float(retry_for), float(first), float(call_timeout)),
    )


def _is_time(value: object, least_s: float) -> bool:
    return (
        isinstance(value, int | float)
        and type(value) is not bool
        and (least_s <= value <= _TIME_S_MAX)
    )


def _warn_unless_loopback(endpoint: Endpoint) -> None:
    if not is_loopback(endpoint.host):
        warnings.warn(
            f"the token is sent as plain text to {endpoint}, so others on the network can read it; "
            "use tls://",
            stacklevel=5,  # the call of `connect`
        )
