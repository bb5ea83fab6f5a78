"""Authenticate requests and add security headers to every response.

A request is accepted if it (1) names this server in its Host header, (2) has the token, as
`Authorization: Bearer ...`, or as `?token=` in a request that only reads, and (3), if it writes,
has this dashboard as its Origin. A form of another site cannot satisfy these conditions.

Invariants:
    1. A rejection has no body and is the same for every path.
    2. Tokens are compared in constant time.
    3. Browsers do not cache responses, show them in frames, or send referrers to other sites.
"""

import hmac
import ipaddress
from collections.abc import Callable, Iterable
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_BYTES_MAX = 16 * 1024
_FIELDS_MAX = 16
_READS = frozenset({"GET", "HEAD"})

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
HEAD = {
    "cache-control": "no-store",
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def is_loopback(host: str) -> bool:
    """Return whether `host` is reachable from this machine only."""
    if host == "localhost":
        return True
    address = _address(host)
    return address is not None and address.is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None


def host_check(bound: str, names: Iterable[str] = ()) -> Callable[[str], bool]:
    """Return a function that checks a request's Host header for a server bound to `bound`.

    This prevents DNS rebinding, where the name of another site resolves to this server: only known
    names are accepted, and numeric addresses, which cannot be rebound. Ports are not compared,
    since a port may be forwarded.
    """
    known = {bound.lower(), "localhost", *(name.lower() for name in names)}

    def check(header: str) -> bool:
        host = header.rpartition(":")[0] if _has_port(header) else header
        if is_loopback(bound):
            return is_loopback(host.lower())
        return host.lower() in known or _address(host) is not None

    return check


def _has_port(header: str) -> bool:
    return header.rpartition(":")[2].isdigit() and (header.count(":") == 1 or "]:" in header)


class Guard:
    """ASGI middleware that accepts or rejects requests."""

    def __init__(self, app: ASGIApp, token: str, is_host: Callable[[str], bool]) -> None:
        self._app = app
        self._token = token.encode()
        self._is_host = is_host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request, or reject it."""
        if scope["type"] != "http":
            return  # a WebSocket: closed without a response

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                head = [(name.encode(), value.encode()) for name, value in HEAD.items()]
                message["headers"] = [*message.get("headers", ()), *head]
            await send(message)

        code = self._rejection(scope)
        if code:
            await Response(status_code=code)(scope, receive, send_guarded)
        else:
            await self._app(scope, receive, send_guarded)

    def _rejection(self, scope: Scope) -> int:
        """Return the status code of the rejection; 0 accepts."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_host(hosts[0]):
            return 421
        does_read = scope["method"] in _READS
        if not self._has_token(headers, scope if does_read else None):
            return 401
        origins = headers.getlist("origin")
        if not does_read and origins != [f"http://{hosts[0]}"]:
            return 403
        if not does_read and not _is_short(headers):
            return 413
        return 0

    def _has_token(self, headers: Headers, scope: Scope | None) -> bool:
        header = headers.get("authorization")
        if header is not None:
            kind, _, token = header.partition(" ")
            return kind.lower() == "bearer" and self._is_token(token.strip())
        if scope is None:
            return False
        query = scope["query_string"].decode("latin-1")
        try:
            tokens = parse_qs(query, max_num_fields=_FIELDS_MAX).get("token")
        except ValueError:  # too many fields; the page sends three
            return False
        return tokens is not None and len(tokens) == 1 and self._is_token(tokens[0])

    def _is_token(self, token: str) -> bool:
        return hmac.compare_digest(token.encode("utf-8", "surrogatepass"), self._token)


def _is_short(headers: Headers) -> bool:
    size = headers.get("content-length", "")
    return size.isascii() and size.isdigit() and len(size) < 10 and int(size) <= BODY_BYTES_MAX
