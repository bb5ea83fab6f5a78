"""A store in another process, with the calls of TimerStore: `timerstore.connect`.

Thread safety: any thread. All share one connection (channel.py).
Invariants:
    1. A call whose connection is lost is sent again only if it then happens once (repeating.py).
    2. A forked child makes its own connection.
Raises: as TimerStore; UnavailableError and ConnectionLostError. ClosedError after `close`.
See also: docs/guide.md, docs/protocol.md.
"""

import os
import ssl
import time
import weakref
from collections.abc import Iterator
from typing import Any

from timerstore._engine.base.closing import close_at_exit
from timerstore._engine.leases import DeadLetter, LeaseConsumer, LeasedMessage
from timerstore._engine.leases.receive_request import Topics
from timerstore.errors import (
    ConfigError,
    ConnectionLostError,
    TimerStoreError,
    UnavailableError,
    quoted,
)
from timerstore.net.attempt_limits import RetryLimit
from timerstore.net.call_table import LIST_CALLS, STORE_CALLS, pack_call
from timerstore.net.channel import Channel, NotSentError
from timerstore.net.connector import Connector
from timerstore.net.endpoints import parse_endpoint
from timerstore.net.not_remote import missing_name
from timerstore.net.recorded_calls import RecordedCalls
from timerstore.net.remote_consumer import RemoteConsumer
from timerstore.net.repeating import CallAttempt, ClientIds
from timerstore.net.wire_messages import PROTOCOL_VERSION, Hello
from timerstore.reports import PendingTimer

_RETRY_S_MAX = 86_400.0


class RemoteStore(RecordedCalls):
    """A connected store; `timerstore.connect` returns it. Close it, or use `with`.

    It has the calls of TimerStore, except those that `timerstore.net.not_remote` lists.
    """

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._ids = ClientIds()
        self._pid = os.getpid()
        close_at_exit(self)

    @property
    def url(self) -> str:
        """The address of the server."""
        return str(self._connector.endpoint)

    def _perform(self, name: str, args: list[Any], options: dict[str, Any]) -> Any:
        found, _ = self._made(name, args, options)
        return found

    def _made(self, name: str, args: list[Any], options: dict[str, Any]) -> tuple[Any, Channel]:
        """Make a call; return its result and the connection that it was made on."""
        if os.getpid() != self._pid:
            self._ids.renew()
            self._pid = os.getpid()
        connector, spec = self._connector, STORE_CALLS[name]
        attempt = CallAttempt(spec, args, options, self._ids if connector.retry_for_s else None)
        limit = self._limit()
        while True:
            try:
                channel = connector.channel(limit.deadline_s)
            except UnavailableError as error:
                raise attempt.given_up(error) from error
            options = attempt.options_for(channel.welcome.dedupe_window_ms)
            try:
                return attempt.result(channel.request(spec, args, options)), channel
            except (NotSentError, TimerStoreError) as error:
                if (pause_s := attempt.pause_s(error, limit)) is None:
                    raise
            time.sleep(pause_s)

    def _limit(self) -> RetryLimit:
        connector = self._connector
        return RetryLimit(connector.retry_for_s, connector.longest_pause_s, connector.endpoint)

    def _do_pending(self, *values: Any) -> Iterator[PendingTimer]:
        return self._listed("pending", values)

    def _do_dead_letters(self, *values: Any) -> Iterator[DeadLetter]:
        return self._listed("dead_letters", values)

    def _listed(self, name: str, values: tuple[Any, ...]) -> Iterator[Any]:
        number, channel = self._made(name, *pack_call(name, values))
        rows = _rows(name, channel, number)
        weakref.finalize(rows, channel.close_later, number).atexit = False
        return rows

    def _do_consumer(self, *values: Any) -> RemoteConsumer:
        args, options = pack_call("consumer", values)

        def join() -> tuple[int, Channel]:
            return self._made("consumer", args, options)

        return RemoteConsumer(join, self._limit, args[0], args[1], options.get("wait"))

    def _do_lease_consumer(
        self, topic: Topics, group: str, wait: float | None, options: dict[str, Any]
    ) -> LeaseConsumer[LeasedMessage]:
        return LeaseConsumer(self.receive, self.ack, self.nack, topic, group, wait, options)

    def close(self) -> None:
        """End the connection. Running calls raise ClosedError; the server's store stays open."""
        self._connector.close()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(missing_name(type(self).__name__, name), name=name, obj=self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"


def _rows(of: str, channel: Channel, number: int) -> Iterator[Any]:
    """Yield the messages of a list that the server keeps for this connection."""
    while page := _next_page(of, channel, number):
        yield from page


def _next_page(of: str, channel: Channel, number: int) -> Any:
    try:
        return channel.request(LIST_CALLS[of]["next"], [], {}, number)
    except NotSentError as error:
        raise ConnectionLostError(
            f"the connection was lost during `{of}`; call it again"
        ) from error


def connect_store(
    url: str,
    *,
    token: str | None,
    tls: ssl.SSLContext | None,
    retry_for: float,
    return_leases: bool,
) -> RemoteStore:
    """Implement timerstore.connect."""
    connector = Connector(
        parse_endpoint(url),
        checked_hello(token, tls, retry_for, return_leases=return_leases),
        tls,
        float(retry_for),
    )
    connector.channel()
    return RemoteStore(connector)


def checked_hello(token: Any, tls: Any, retry_for: Any, *, return_leases: Any) -> Hello:
    """Return a client's first message. ConfigError names every invalid argument of `connect`."""
    problems = []
    if token is not None and not isinstance(token, str):
        problems.append(f"token: wanted text, got {type(token).__name__}")
    if tls is not None and not isinstance(tls, ssl.SSLContext):
        problems.append(f"tls: wanted an ssl.SSLContext, got {quoted(tls)}")
    if type(retry_for) not in (int, float) or not 0 <= retry_for <= _RETRY_S_MAX:
        problems.append(f"retry_for: wanted 0 to {_RETRY_S_MAX:g} s, got {quoted(retry_for)}")
    if type(return_leases) is not bool:
        problems.append(f"return_leases: wanted True or False, got {quoted(return_leases)}")
    if problems:
        raise ConfigError(problems)
    return Hello(PROTOCOL_VERSION, [], token, return_leases)
