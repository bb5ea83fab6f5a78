"""Who may ask, and what every answer's head says.

A request passes where it (1) names a host that is this server, (2) has the token, as
`Authorization: Bearer ...`, or as `?token=` where it only reads, and (3), if it writes, has the
page itself as its origin: no form of another site can send either.

Threads:  the server's.
Holds:    (1) a refusal has no body, and is the same for every path; (2) tokens are compared in
          constant time; (3) nothing is kept by a browser, framed, or told to another site.
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
    """Whether only this machine gets there."""
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
    """Make what tells whether a request's Host is this server, bound to a host.

    What another site's name leads to here (DNS rebinding) has that name: only names that are known
    pass, and addresses as numbers, which nobody can rebind. Any port: it may be forwarded.
    """
    known = {bound.lower(), "localhost", *(name.lower() for name in names)}

    def check(given: str) -> bool:
        host = given.rpartition(":")[0] if _has_port(given) else given
        if is_loopback(bound):
            return is_loopback(host.lower())
        return host.lower() in known or _address(host) is not None

    return check


def _has_port(given: str) -> bool:
    return given.rpartition(":")[2].isdigit() and (given.count(":") == 1 or "]:" in given)


class Guard:
    """Passes on what may come in."""

    def __init__(self, app: ASGIApp, token: str, is_host: Callable[[str], bool]) -> None:
        self._app = app
        self._token = token.encode()
        self._is_host = is_host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse."""
        if scope["type"] != "http":
            return  # a web socket: closed without a word

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                head = [(name.encode(), value.encode()) for name, value in HEAD.items()]
                message["headers"] = [*message.get("headers", ()), *head]
            await send(message)

        code = self._refusal(scope)
        if code:
            await Response(status_code=code)(scope, receive, send_guarded)
        else:
            await self._app(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> int:
        """The code of a refusal; 0: none."""
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
        given = headers.get("authorization")
        if given is not None:
            kind, _, token = given.partition(" ")
            return kind.lower() == "bearer" and self._is_token(token.strip())
        if scope is None:
            return False
        query = scope["query_string"].decode("latin-1")
        try:
            tokens = parse_qs(query, max_num_fields=_FIELDS_MAX).get("token")
        except ValueError:  # more fields than that: the page has three
            return False
        return tokens is not None and len(tokens) == 1 and self._is_token(tokens[0])

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), self._token)


def _is_short(headers: Headers) -> bool:
    size = headers.get("content-length", "")
    return size.isascii() and size.isdigit() and len(size) < 10 and int(size) <= BODY_BYTES_MAX
